// A block with everything that a test wants to do with it, behind one type: so that what the tests do
// is compiled once and only the kernels once a composition.
#pragma once

#include <tiffin/backend/any_layer.hpp>
#include <tiffin/backend/binding.hpp>
#include <tiffin/backend/eigen/eigen.hpp>
#include <tiffin/backend/reference/reference.hpp>
#include <tiffin/backend/simd/simd.hpp>
#include <tiffin/block/block_tensors.hpp>
#include <tiffin/prepare.hpp>

#include "support/bounded.hpp"

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

// Computes the expectations of one token, x and y of d_model numbers.
using oracle = std::function<void(const float* x, std::int32_t token_id, expectation* y)>;

template <order Order, class Block>
oracle make_oracle(const Block& block, const tiffin::weights& given) {
    using number = bounded<Order>;
    static constexpr auto wanted = tiffin::tensors_of<Block>();
    tiffin::binding bound = tiffin::bind_tensors(wanted, given).or_throw();
    const std::size_t d_model = bound.d_model, d_ff = bound.d_ff;
    const typename tiffin::reference<number>::template engine<Block> engine(block, std::move(bound));
    return [=](const float* x, std::int32_t token_id, expectation* y) {
        std::vector<number> in, out(d_model), hidden(d_ff);
        for (std::size_t i = 0; i < d_model; ++i) in.emplace_back(x[i]);
        engine.evaluate_token(in.data(), token_id, out.data(), hidden.data());
        for (std::size_t i = 0; i < d_model; ++i)
            y[i] = {out[i].value(), out[i].low(), out[i].high(), out[i].nan()};
    };
}

// One way of computing a composition, and how its sums are ordered.
struct contender {
    std::string name;
    std::function<tiffin::any_layer(const tiffin::weights&)> prepare;
    std::function<oracle(const tiffin::weights&)> expect;
};

struct composition {
    std::string name;
    std::vector<tiffin::block_tensor> tensors;
    std::vector<contender> contenders;
    std::function<tiffin::any_layer(const tiffin::weights&)> reference;  // empty: not tested
};

template <order Order, class Block, class Backend>
contender make_contender(std::string name, const Block& block, const Backend& backend) {
    return {std::move(name),
            [=](const tiffin::weights& given) {
                return tiffin::any_layer(tiffin::prepare(block, given, backend, {.tokens = 0}));
            },
            [=](const tiffin::weights& given) { return make_oracle<Order>(block, given); }};
}

// `simd` promises the order of its additions; Eigen chooses one by the sizes.
template <class Block>
composition compose(std::string name, const Block& block = {}) {
    static constexpr auto wanted = tiffin::tensors_of<Block>();
    return {std::move(name),
            {wanted.begin(), wanted.end()},
            {make_contender<order::as_written>("simd", block, tiffin::simd{}),
             make_contender<order::any>("eigen", block, tiffin::eigen{})},
            {}};
}

// The same, and the `reference` backend as a layer: one composition of a kind is enough for that.
template <class Block>
composition compose_with_reference(std::string name, const Block& block = {}) {
    composition what = compose(std::move(name), block);
    what.reference = make_contender<order::as_written>("reference", block, tiffin::reference{}).prepare;
    return what;
}

}  // namespace tiffin_test
