// A block with everything that a test wants to do with it, behind one type: so that what the tests do
// is compiled once and only the kernels once a composition.
#pragma once

#include <tiffin/bind/bind_weights.hpp>
#include <tiffin/call/prepare.hpp>
#include <tiffin/reference/reference.hpp>
#include <tiffin/runtime/any_layer.hpp>

// The backends that are held against the reference: those of the CPU, by texts or by types; or the device's.
#if defined(TIFFIN_TEST_CUDA)
#    include <tiffin/cuda.hpp>
#elif defined(TIFFIN_TEST_TEXTS)
#    include "support/texts.hpp"
#else
#    include <tiffin/cpu/eigen/eigen.hpp>
#    include <tiffin/cpu/simd/simd.hpp>
#endif

#include "support/bounded.hpp"
#include "support/tensor_set.hpp"

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace tiffin_test {

// What an output may be: see bounded.hpp.
struct expectation {
    double value = 0;
    float low = 0;
    float high = 0;
    nan_result nan = nan_result::never;

    [[nodiscard]] bool accepts(float computed) const noexcept {
        if (std::isnan(computed)) return nan != nan_result::never;
        return nan != nan_result::certain && low <= computed && computed <= high;
    }
};

// What a token has beside x, made of what it is anyway: the residual of x, the layer's own input of the id.
// Exact in f32.
inline float residual_of(float x) noexcept {
    return x * -0.5f;
}
inline float given_of(std::int32_t token_id, std::size_t feature) noexcept {
    return static_cast<float>((static_cast<std::size_t>(token_id) * 31 + feature * 7) % 17) * 0.125f - 1.0f;
}

// Computes the expectations of one token, x and y of d_model numbers.
using oracle = std::function<void(const float* x, std::int32_t token_id, expectation* y)>;

// A block evaluated for one token in numbers that know their error.
struct evaluation {
    order sums;
    std::size_t d_model;
    std::size_t given_width;
    std::size_t scratch;
    std::function<void(const tiffin::token_arguments<bounded>&, const bounded* x, bounded* y,
                       bounded* scratch)>
        evaluate;

    void operator()(const float* x, std::int32_t token_id, expectation* y) const {
        std::vector<bounded> in, residual, beside, out(d_model), between(scratch);
        for (std::size_t i = 0; i < d_model; ++i) in.emplace_back(x[i]);
        for (std::size_t i = 0; i < d_model; ++i) residual.emplace_back(residual_of(x[i]));
        for (std::size_t i = 0; i < given_width; ++i) beside.emplace_back(given_of(token_id, i));
        route_is_uncertain = false;
        const with_sums ordered(sums);
        evaluate({token_id, residual.data(), beside.data()}, in.data(), out.data(), between.data());
        for (std::size_t i = 0; i < d_model; ++i) {
            y[i] = {out[i].value(), out[i].low(), out[i].high(), out[i].nan()};
            // Rounding may lead the token elsewhere, and then anything may come out.
            if (route_is_uncertain) y[i] = {out[i].value(), -HUGE_VALF, HUGE_VALF, nan_result::possible};
        }
    }
};

template <class Block>
oracle make_oracle(order sums, const Block& block, const tiffin::weights& given) {
    tiffin::binding bound = tiffin::bind_weights(block, given).or_throw();
    const std::size_t d_model = bound.needs.d_model, given_width = bound.needs.given_width;
    const auto engine =
        std::make_shared<const tiffin::reference<bounded>::engine<Block>>(block, std::move(bound));
    return evaluation{sums, d_model, given_width, engine->scratch(),
                      [engine](const tiffin::token_arguments<bounded>& token, const bounded* x, bounded* y,
                               bounded* scratch) { engine->evaluate_token(token, x, y, scratch); }};
}

// One way of computing a composition, and how its sums are ordered.
struct contender {
    std::string name;
    std::function<tiffin::any_layer(const tiffin::weights&)> prepare;
    std::function<oracle(const tiffin::weights&)> expect;
};

struct composition {
    std::string name;
    wanted_tensors tensors;
    std::vector<contender> contenders;
    std::function<tiffin::any_layer(const tiffin::weights&)> reference;  // empty: not tested
    std::string differs{};  // where the plan of its text is not that of its type
};

template <class Block, class Backend>
contender make_contender(std::string name, order sums, const Block& block, const Backend& backend) {
    return {std::move(name),
            [=](const tiffin::weights& given) {
                return tiffin::any_layer(tiffin::prepare(block, given, backend, {.tokens = 0}));
            },
            [=](const tiffin::weights& given) { return make_oracle(sums, block, given); }};
}

#if defined(TIFFIN_TEST_CUDA)
template <class Block>
composition compose(std::string name, const Block& block = {}) {
    return {std::move(name),
            tensors_wanted(block),
            {make_contender("cuda", order::any, block, tiffin::cuda_from_host<>{})},
            {}};
}
template <class Block>
composition compose_on_both(std::string name, const Block& block = {}) {
    return compose(std::move(name), block);
}
#elif defined(TIFFIN_TEST_TEXTS)
// A text on `simd`, which promises the order of its additions; on Eigen too, which chooses one by the sizes.
inline composition on_simd(const std::string& text) {
    return {text,
            tensors_wanted_by(text),
            {{"simd", [=](const tiffin::weights& given) { return prepare_on_simd(text, given); },
              [=](const tiffin::weights& given) { return oracle_of(text, true, given); }}},
            {}};
}
inline composition on_both(const std::string& text) {
    composition what = on_simd(text);
    what.contenders.push_back({"eigen",
                               [=](const tiffin::weights& given) { return prepare_on_eigen(text, given); },
                               [=](const tiffin::weights& given) { return oracle_of(text, false, given); }});
    return what;
}
inline composition with_reference(composition what) {
    what.reference = [text = what.name](const tiffin::weights& given) {
        return prepare_on_reference(text, given);
    };
    return what;
}
// A text that means what its type does.
inline composition of_type(composition what, const tiffin::plan_node& type) {
    what.differs = difference_from(what.name, type);
    return what;
}
template <class Block>
composition compose(const std::string& text, const Block& block = {}) {
    return of_type(on_simd(text), tiffin::lower(block));
}
template <class Block>
composition compose_with_reference(const std::string& text, const Block& block = {}) {
    return of_type(with_reference(on_both(text)), tiffin::lower(block));
}
#else
// `simd` promises the order of its additions; Eigen chooses one by the sizes.
template <class Block>
composition compose_on_both(std::string name, const Block& block = {}) {
    return {std::move(name),
            tensors_wanted(block),
            {make_contender("simd", order::as_written, block, tiffin::simd{}),
             make_contender("eigen", order::any, block, tiffin::eigen{})},
            {}};
}

// `simd` alone, whose kernels are the library's own: both share the engine that walks a block.
template <class Block>
composition compose(std::string name, const Block& block = {}) {
    return {std::move(name),
            tensors_wanted(block),
            {make_contender("simd", order::as_written, block, tiffin::simd{})},
            {}};
}
#endif

#if !defined(TIFFIN_TEST_TEXTS)
// Every backend, and the `reference` backend as a layer: one composition of a kind is enough for that.
template <class Block>
composition compose_with_reference(std::string name, const Block& block = {}) {
    composition what = compose_on_both(std::move(name), block);
    what.reference = make_contender("reference", order::as_written, block, tiffin::reference{}).prepare;
    return what;
}
#endif

}  // namespace tiffin_test
