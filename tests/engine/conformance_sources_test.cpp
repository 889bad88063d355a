// Sources are interchangeable: each of them as gate, as up, in a sum, under each fusion, as a modulator.
#include <tiffin/layers.hpp>

#include "support/conformance.hpp"
#include "support/doctest.hpp"
#include "support/policies.hpp"

#include <string>
#include <type_traits>

using namespace tiffin;

namespace {

// The same leaf under another name, where a block would read its tensors twice.
template <class Source>
using gate_of = ffn<gate<silu, Source>, named<dense, "other">>;
template <class Source>
using up_of = ffn<gate<sigmoid, named<dense, "other">>, Source, add>;
template <class Source>
using term_of = ffn<gate<gelu, sum<named<dense, "other">, Source>>>;
template <class Source>
using output_of = ffn<gate<silu, named<dense, "other">>, none, multiply, project<no_norm, Source>>;
template <class Source>
using modulator_of = modulated<mlp, Source, multiply>;

struct dense_case {
    using source = dense;
    [[maybe_unused]] static constexpr bool on_simd = true;
};
struct table_case {
    using source = token_embedding;
    [[maybe_unused]] static constexpr bool on_simd = false;
};
struct sum_case {
    using source = sum<named<dense, "first">, token_embedding>;
    [[maybe_unused]] static constexpr bool on_simd = false;
};
struct bank_case {
    using source = routed_low_rank<>;
    [[maybe_unused]] static constexpr bool on_simd = true;
};
struct pool_case {
    using source = routed_embedding<>;
    [[maybe_unused]] static constexpr bool on_simd = true;
};
struct normed_case {
    using source = normed<rms, sum<token_embedding, named<token_embedding, "second">>>;
    [[maybe_unused]] static constexpr bool on_simd = false;
};
struct through_case {
    using source = trained_memory<>;
    [[maybe_unused]] static constexpr bool on_simd = true;
};
struct given_case {
    using source = per_layer_input;
    [[maybe_unused]] static constexpr bool on_simd = false;
};
struct modulator_case {
    using source = token_modulator<>;
    [[maybe_unused]] static constexpr bool on_simd = false;
};
struct pool_modulator_case {
    using source = tiffin_test::pool_of_three<>;
    [[maybe_unused]] static constexpr bool on_simd = false;
};

template <class Case, class... Others>
inline constexpr bool one_of = (std::is_same_v<Case, Others> || ...);

// `simd` for a representative set: its kernels take the time to compile.
template <class Block, class Case>
void check(const char* name) {
    tiffin_test::composition what = tiffin_test::compose_readable<Block>(name);
#if !defined(TIFFIN_TEST_GRADIENTS)
    if constexpr (Case::on_simd)
        what.contenders.push_back(
            tiffin_test::make_contender("simd", tiffin_test::order::as_written, Block{}, simd{}));
#endif
    tiffin_test::check_conformance(what);
}

}  // namespace

TEST_CASE_TEMPLATE("sources are interchangeable", Case, dense_case, table_case, sum_case, bank_case,
                   pool_case, normed_case, through_case, given_case, modulator_case, pool_modulator_case) {
    using source = typename Case::source;
#if defined(TIFFIN_TEST_SMALL) || defined(TIFFIN_TEST_GRADIENTS)
    // Each place has two sources and each source one place, but for two that `simd` computes.
    if constexpr (one_of<Case, dense_case, bank_case, given_case>) check<gate_of<source>, Case>("as gate");
    if constexpr (one_of<Case, table_case, bank_case>) check<up_of<source>, Case>("as up");
    if constexpr (one_of<Case, sum_case, pool_case>) check<term_of<source>, Case>("in a sum");
    if constexpr (one_of<Case, through_case, modulator_case, pool_modulator_case>)
        check<modulator_of<source>, Case>("as modulator");
    if constexpr (one_of<Case, normed_case, through_case>) check<output_of<source>, Case>("as output");
#else
    check<gate_of<source>, Case>("as gate");
    check<up_of<source>, Case>("as up");
    check<term_of<source>, Case>("in a sum");
    check<modulator_of<source>, Case>("as modulator");
    if constexpr (!std::is_same_v<source, dense>) check<output_of<source>, Case>("as output");
#endif
}
