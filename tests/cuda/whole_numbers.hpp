// Memory of the device, and layers of small whole numbers, which come out to the bit in every format.
#pragma once

#include <tiffin/cuda.hpp>

#include "support/doctest.hpp"

#include <cstddef>
#include <cstdint>
#include <random>
#include <span>
#include <string>
#include <vector>

namespace tiffin_cuda_test {

inline constexpr std::size_t d = 24, d_ff = 40, vocab = 9;

// Numbers on the device.
template <class T>
class there {
public:
    explicit there(const std::vector<T>& from) : there(from.size()) {
        REQUIRE(cudaMemcpy(data_.data(), from.data(), size_ * sizeof(T), cudaMemcpyHostToDevice) ==
                cudaSuccess);
    }
    explicit there(std::size_t count)
        : size_(count),
          data_(tiffin::cuda_detail::device_memory::make(count * sizeof(T), "test").or_throw()) {}
    [[nodiscard]] T* data() const { return data_.template as<T>(); }
    [[nodiscard]] std::span<T> span() const { return {data(), size_}; }
    [[nodiscard]] std::size_t size() const { return size_; }
    [[nodiscard]] std::vector<T> here() const {
        std::vector<T> made(size_);
        REQUIRE(cudaMemcpy(made.data(), data(), size_ * sizeof(T), cudaMemcpyDeviceToHost) == cudaSuccess);
        return made;
    }
    [[nodiscard]] tiffin::matrix_view<T> rows(std::size_t width = d) const {
        return {data(), size_ / width, width};
    }

private:
    std::size_t size_;
    tiffin::cuda_detail::device_memory data_;
};

// Small whole numbers, most of them 0: products and their sums are exact in every format, so that a
// layer's output is the reference's, rounded once.
inline std::vector<float> whole_numbers(std::size_t count, unsigned seed, int of = 3) {
    std::mt19937 random(seed);
    std::vector<float> made(count);
    for (float& v : made)
        v = random() % static_cast<unsigned>(of) == 0 ? static_cast<float>(random() % 3) - 1 : 0.0f;
    return made;
}
inline std::vector<std::int32_t> some_ids(std::size_t tokens, unsigned seed) {
    std::mt19937 random(seed);
    std::vector<std::int32_t> made(tokens);
    for (auto& id : made) id = static_cast<std::int32_t>(random() % vocab);
    return made;
}
template <class Format>
std::vector<typename Format::storage> encoded(const std::vector<float>& from) {
    std::vector<typename Format::storage> made(from.size());
    for (std::size_t i = 0; i < from.size(); ++i) Format::encode(&from[i], made[i]);
    return made;
}

// The tensors of a block, in whole numbers; of a map, experts.
struct whole_tensors {
    std::vector<std::vector<float>> numbers;
    std::vector<std::int32_t> map;
    tiffin::weights given;

    void add(const std::string& name, tiffin::shape sizes) {
        const auto& made = numbers.emplace_back(
            whole_numbers(sizes.elements(), static_cast<unsigned>(numbers.size()) + 7, 6));
        given.add(name, made.data(), sizes);
    }
    void add_glu(const std::string& prefix) {
        add(prefix + "gate_proj.weight", {d_ff, d});
        add(prefix + "up_proj.weight", {d_ff, d});
        add(prefix + "down_proj.weight", {d, d_ff});
    }
    void add_stem(const std::string& prefix) {
        add(prefix + "gate_proj.weight", {d_ff, d});
        add(prefix + "stem_embed.weight", {vocab, d_ff});
        add(prefix + "down_proj.weight", {d, d_ff});
    }
    void add_map(std::int32_t experts) {
        for (std::int32_t id = 0; id < static_cast<std::int32_t>(vocab); ++id)
            map.insert(map.end(), {id * id % experts, (id * id + 1 + id % (experts - 1)) % experts});
        given.add("hash_map", {map.data(), tiffin::dtype::i32, {vocab, 2}});
    }
};

// Tensors in f32, moved to the device.
struct moved_tensors {
    std::vector<there<float>> held;
    tiffin::weights given;

    explicit moved_tensors(const tiffin::weights& here) {
        for (const tiffin::weights::entry& e : here.entries()) {
            const auto* const from = static_cast<const float*>(e.tensor.data);
            held.emplace_back(std::vector<float>(from, from + e.tensor.shape.elements()));
            given.add(e.name, held.back().data(), e.tensor.shape);
        }
    }
};

}  // namespace tiffin_cuda_test
