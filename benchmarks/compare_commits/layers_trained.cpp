// Steps of training, forward and back: f32.
#include <tiffin/train/simd.hpp>

#include "layer_sets.hpp"

namespace tiffin_compare {

namespace {

template <class Block>
class training_set final : public any_set {
public:
    training_set(const Block& block, const tiffin::block_shape& sizes, std::uint32_t seed)
        : tensors_(block, sizes, seed),
          layer_(tiffin::prepare_training(block, tensors_.views(), tiffin::simd{}, {.tokens = most_tokens})) {
    }
    // Its memory is its own.
    [[nodiscard]] std::size_t workspace_bytes(std::size_t, std::size_t) const override { return 1; }
    // The gradient of y is x; that of x is written to y.
    void run(tiffin::matrix_view<const float> x, const tiffin::token_inputs& inputs,
             tiffin::matrix_view<float> y, std::span<std::byte>,
             const tiffin::executor_ref& execute) const override {
        layer_.forward(x, {.token_ids = inputs.token_ids}, y, execute);
        layer_.backward(x, {.x = y}, execute);
        layer_.clear_gradients();
    }

private:
    random_tensors tensors_;
    mutable tiffin::trainable_layer<float> layer_;
};

template <class Block>
void add_trained(layer_list& list, std::string name, const Block& block,
                 const tiffin::block_shape& sizes = dense_sizes) {
    list.push_back({std::move(name), sizes.d_model, [=](std::uint32_t seed) {
                        return std::make_unique<training_set<Block>>(block, sizes, seed);
                    }});
}

}  // namespace

void add_trained_layers(layer_list& list) {
    add_trained(list, "swiglu trained", tiffin::swiglu{});
    add_trained(list, "stem_hybrid trained", tiffin::stem_hybrid{});
    tiffin::block_shape sizes = dense_sizes;
    sizes.experts = sizes.rank = 16;
    add_trained(list, "structmoe trained", tiffin::structmoe{}, sizes);
    sizes.experts = 4;
    add_trained(list, "mort<swiglu> trained", told_mort<tiffin::swiglu>(), sizes);
}

}  // namespace tiffin_compare
