#include "layers_on_device.hpp"

#include <tiffin/cuda.hpp>

#include "../support/blocks_on_device.hpp"

#include <algorithm>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <utility>

namespace {

using tiffin::cuda_detail::checked;
using tiffin::cuda_detail::device_memory;

template <class T>
device_memory copy_there(const T* from, std::size_t count) {
    device_memory made = device_memory::make(count * sizeof(T), "compare_layers").or_throw();
    checked(cudaMemcpy(made.data(), from, made.size(), cudaMemcpyHostToDevice), "compare_layers").or_throw();
    return made;
}
template <class T>
std::vector<T> copy_here(const device_memory& from, std::size_t count) {
    std::vector<T> made(count);
    checked(cudaMemcpy(made.data(), from.data(), count * sizeof(T), cudaMemcpyDeviceToHost), "compare_layers")
        .or_throw();
    return made;
}

template <class Block>
class held_layers final : public layers_on_device {
public:
    held_layers(const Block& block, const device_job& job)
        : d_(job.d_model),
          batch_(job.batch),
          tokens_(job.ids.size()),
          x_(copy_there(job.x.data(), job.x.size())),
          ids_(copy_there(job.ids.data(), job.ids.size())),
          beside_(copy_there(job.beside.data(), job.beside.size())),
          y_(device_memory::make(batch_ * d_ * sizeof(float), "compare_layers").or_throw()) {
        tiffin::weights given;
        const auto& entries = job.given.entries();
        for (std::size_t i = 0; i < entries.size(); ++i) {
            tiffin::tensor_view t = entries[i].tensor;
            if (job.tables[i]) {
                tables_.push_back(copy_there(static_cast<const float*>(t.data), t.shape.elements()));
                t.data = tables_.back().data();
            }
            given.add(entries[i].name, t);
        }
        cudaDeviceProp device{};
        checked(cudaGetDeviceProperties(&device, 0), "compare_layers").or_throw();
        const auto copies = static_cast<std::size_t>(2.0 * device.l2CacheSize / job.dense_bytes) + 1;
        for (std::size_t i = 0; i < std::clamp<std::size_t>(copies, 2, 64); ++i)
            layers_.push_back(tiffin::prepare(block, given, tiffin::cuda<>{}, {.tokens = 0}));
        workspace_ = device_memory::make(layers_[0].workspace_bytes(batch_), "compare_layers").or_throw();
        routes_ =
            device_memory::make(std::max<std::size_t>(batch_ * choices(), 1) * sizeof(tiffin::choice<float>),
                                "compare_layers")
                .or_throw();
    }
    void call(std::size_t first, std::size_t count) override { run(first, count, {}); }
    [[nodiscard]] std::vector<float> output(std::size_t count) const override {
        return copy_here<float>(y_, count * d_);
    }
    [[nodiscard]] std::vector<std::int32_t> routes() override {
        std::vector<std::int32_t> experts;
        for (std::size_t first = 0; first < tokens_; first += batch_) {
            const std::size_t count = std::min(batch_, tokens_ - first);
            run(first, count, {routes_.as<tiffin::choice<float>>(), count * choices()});
            for (const auto& c : copy_here<tiffin::choice<float>>(routes_, count * choices()))
                experts.push_back(c.expert);
        }
        return experts;
    }
    [[nodiscard]] std::size_t choices() const override { return layers_[0].choices(); }
    [[nodiscard]] std::size_t copies() const override { return layers_.size(); }

private:
    void run(std::size_t first, std::size_t count, std::span<tiffin::choice<float>> routes) {
        const auto& layer = layers_[calls_++ % layers_.size()];
        const tiffin::matrix_view<const float> x(x_.as<float>() + first * d_, count, d_);
        tiffin::device_inputs<tiffin::f32> inputs;
        inputs.token_ids = {ids_.as<std::int32_t>() + first, count};
        inputs.routes = routes;
        if (layer.needs().residual) inputs.residual = x;
        if (const std::size_t width = layer.needs().given_width; width > 0)
            inputs.per_layer_input = {beside_.as<float>() + first * width, count, width};
        layer(x, inputs, tiffin::matrix_view<float>(y_.as<float>(), count, d_),
              {workspace_.data(), workspace_.size()}, nullptr);
        layer.synchronise(nullptr).or_throw();
    }

    std::size_t d_;
    std::size_t batch_;
    std::size_t tokens_;
    device_memory x_, ids_, beside_, y_, workspace_, routes_;
    std::vector<device_memory> tables_;
    std::vector<tiffin::layer<Block, tiffin::cuda<>>> layers_;
    std::size_t calls_ = 0;
};

}  // namespace

std::unique_ptr<layers_on_device> make_layers_on_device(const std::string& composition,
                                                        const device_job& job) {
    std::unique_ptr<layers_on_device> made;
    with_block_on_device(composition, [&]<class Block>(const Block& block) {
        made = std::make_unique<held_layers<Block>>(block, job);
    }).or_throw();
    return made;
}
