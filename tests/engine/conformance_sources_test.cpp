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
};
struct table_case {
    using source = token_embedding;
};
struct sum_case {
    using source = sum<named<dense, "first">, token_embedding>;
};
struct bank_case {
    using source = routed_low_rank<>;
};
struct pool_case {
    using source = routed_embedding<>;
};
struct normed_case {
    using source = normed<rms, sum<token_embedding, named<token_embedding, "second">>>;
};
struct through_case {
    using source = trained_memory<>;
};
struct given_case {
    using source = per_layer_input;
};
struct modulator_case {
    using source = token_modulator<>;
};
struct pool_modulator_case {
    using source = tiffin_test::pool_of_three<>;
};

template <class Case, class... Others>
inline constexpr bool one_of = (std::is_same_v<Case, Others> || ...);

template <class Block>
void check(const char* name) {
    tiffin_test::check_conformance(tiffin_test::compose<Block>(name));
}

}  // namespace

TEST_CASE_TEMPLATE("sources are interchangeable", Case, dense_case, table_case, sum_case, bank_case,
                   pool_case, normed_case, through_case, given_case, modulator_case, pool_modulator_case) {
    using source = typename Case::source;
#if defined(TIFFIN_TEST_SMALL) || defined(TIFFIN_TEST_GRADIENTS)
    // Each place has two sources and each source one place, but for two.
    if constexpr (one_of<Case, dense_case, bank_case, given_case>) check<gate_of<source>>("as gate");
    if constexpr (one_of<Case, table_case, bank_case>) check<up_of<source>>("as up");
    if constexpr (one_of<Case, sum_case, pool_case>) check<term_of<source>>("in a sum");
    if constexpr (one_of<Case, through_case, modulator_case, pool_modulator_case>)
        check<modulator_of<source>>("as modulator");
    if constexpr (one_of<Case, normed_case, through_case>) check<output_of<source>>("as output");
#else
    check<gate_of<source>>("as gate");
    check<up_of<source>>("as up");
    check<term_of<source>>("in a sum");
    check<modulator_of<source>>("as modulator");
    if constexpr (!std::is_same_v<source, dense>) check<output_of<source>>("as output");
#endif
}
