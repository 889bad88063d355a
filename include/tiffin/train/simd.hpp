// Training on the simd backend: f32 in SIMD registers, products in f32 or bf16.
#pragma once

#include <tiffin/cpu/simd/backend.hpp>
#include <tiffin/cpu/simd/lanes.hpp>
#include <tiffin/plan/policies.hpp>
#include <tiffin/train/prepare_training.hpp>
#include <tiffin/train/simd_product.hpp>

#include <cstddef>
#include <vector>

TIFFIN_BEGIN

namespace train_detail {

// See exact_machine.hpp for what each of these is.
template <class Chosen>
struct simd_machine {
    using Arch = simd_detail::xsimd_arch<Chosen>;
    using number = float;
    using value = simd_detail::lanes<Arch>;
    static constexpr std::size_t width = simd_detail::width<Arch>;

    static value load(const float* from, std::size_t count) noexcept {
        return simd_detail::load<f32, Arch>(from, count);
    }
    static void store(const value& v, float* to, std::size_t count) noexcept {
        simd_detail::store<Arch>(v, to, count);
    }
    static value all(float v) noexcept { return value(v); }
    static value first(const value& v, std::size_t count) noexcept {
        if (count >= width) return v;
        alignas(64) float part[width];
        v.store_aligned(part);
        return load(part, count);
    }
    static float sum(const value& v) noexcept {
        alignas(64) float part[width];
        v.store_aligned(part);
        for (std::size_t half = width / 2; half > 0; half /= 2)
            for (std::size_t i = 0; i < half; ++i) part[i] += part[i + half];
        return part[0];
    }
    template <class Formula, class... Values>
    static value by_number(const Formula& formula, const Values&... values) {
        return simd_detail::apply<Arch>(formula, values...);
    }
};

}  // namespace train_detail

// simd<>: all in f32. simd<bf16>: weights, tables, gradients and everything but the products in f32; the factors of
// products, forward and back, are rounded to bf16 (relative errors of 2^-9 each), and summed in f32.
template <class Weights, class Tables, class Activations, class Arch>
struct training_machine<simd<Weights, Tables, Activations, Arch>> {
    static_assert(
        (std::same_as<Weights, f32> || std::same_as<Weights, bf16>)&&std::same_as<Tables, f32>,
        "tiffin: prepare_training<Block>(weights, simd<...>): a layer learns in f32, with products in f32 or "
        "bf16: write simd<> or simd<bf16>");
    using type = train_detail::simd_machine<Arch>;
    using product = train_detail::simd_product<simd_detail::xsimd_arch<Arch>, Weights>;
};

// With the compiled library training is linked, not instantiated.
#if defined(TIFFIN_COMPILED_ENGINES)
TIFFIN_COMPILED_OTHER_ENGINE_ template class trainable_layer<float>;
namespace train_detail {
TIFFIN_COMPILED_OTHER_ENGINE_ template result<trainable_layer<float>> prepare_plan<simd<>>(
    const plan_node&, std::shared_ptr<const void>, const weights&, const training_options<float>&);
TIFFIN_COMPILED_OTHER_ENGINE_ template result<trainable_layer<float>> prepare_plan<simd<bf16>>(
    const plan_node&, std::shared_ptr<const void>, const weights&, const training_options<float>&);
}  // namespace train_detail
namespace plan_detail {
TIFFIN_COMPILED_OTHER_ENGINE_ template void add_library_policies<training<simd<>>::machine>(
    std::vector<policy_line>&);
}  // namespace plan_detail
#endif

TIFFIN_END
