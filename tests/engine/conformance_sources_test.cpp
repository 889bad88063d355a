// Sources are interchangeable: each of them as gate, as up, in a sum, under each fusion, as a modulator.
#include <tiffin/layers.hpp>

#include "support/conformance.hpp"
#include "support/doctest.hpp"
#include "support/policies.hpp"

#include <string>
#include <string_view>
#include <type_traits>

namespace engine_conformance_sources_test {
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
    static constexpr std::string_view text = "dense";
};
struct table_case {
    using source = token_embedding;
    static constexpr std::string_view text = "token_embedding";
};
struct sum_case {
    using source = sum<named<dense, "first">, token_embedding>;
    static constexpr std::string_view text = "sum(named(dense, 'first'), token_embedding)";
};
struct bank_case {
    using source = routed_low_rank<>;
    static constexpr std::string_view text = "routed_low_rank";
};
struct pool_case {
    using source = routed_embedding<>;
    static constexpr std::string_view text = "routed_embedding";
};
struct normed_case {
    using source = normed<rms, sum<token_embedding, named<token_embedding, "second">>>;
    static constexpr std::string_view text =
        "normed(rms, sum(token_embedding, named(token_embedding, 'second')))";
};
struct through_case {
    using source = trained_memory<>;
    static constexpr std::string_view text = "trained_memory";
};
struct given_case {
    using source = per_layer_input;
    static constexpr std::string_view text = "per_layer_input";
};
struct modulator_case {
    using source = token_modulator<>;
    static constexpr std::string_view text = "token_modulator";
};
struct pool_modulator_case {
    using source = tiffin_test::pool_of_three<>;
    static constexpr std::string_view text = "modulator_pool(num_layers=3)";
};

struct undivided_case {
    using source = undivided_modulator<l2, routed_embedding<sigmoid_topk_renorm>>;
    static constexpr std::string_view text = "undivided_modulator";
};

template <class Case, class... Others>
inline constexpr bool one_of = (std::is_same_v<Case, Others> || ...);

template <class Block>
void check(std::string_view before, std::string_view source, std::string_view after) {
    std::string text(before);
    text.append(source).append(after);
    tiffin_test::check_conformance(tiffin_test::compose<Block>(text));
}
template <class Case>
void check_as_gate() {
    check<gate_of<typename Case::source>>("ffn(gate(silu, ", Case::text, "), named(dense, 'other'))");
}
template <class Case>
void check_as_up() {
    check<up_of<typename Case::source>>("ffn(gate(sigmoid, named(dense, 'other')), ", Case::text, ", add)");
}
template <class Case>
void check_as_term() {
    check<term_of<typename Case::source>>("ffn(gate(gelu, sum(named(dense, 'other'), ", Case::text, ")))");
}
template <class Case>
void check_as_output() {
    check<output_of<typename Case::source>>(
        "ffn(gate(silu, named(dense, 'other')), none, multiply, project(no_norm, ", Case::text, "))");
}
template <class Case>
void check_as_modulator() {
    check<modulator_of<typename Case::source>>("modulated(mlp, ", Case::text, ")");
}

}  // namespace

TEST_CASE_TEMPLATE("sources are interchangeable", Case, dense_case, table_case, sum_case, bank_case,
                   pool_case, normed_case, through_case, given_case, modulator_case, pool_modulator_case,
                   undivided_case) {
#if defined(TIFFIN_TEST_SMALL)
    // Each place has two sources and each source one place, but for two.
    if constexpr (one_of<Case, dense_case, bank_case, given_case>) check_as_gate<Case>();
    if constexpr (one_of<Case, table_case, bank_case>) check_as_up<Case>();
    if constexpr (one_of<Case, sum_case, pool_case>) check_as_term<Case>();
    if constexpr (one_of<Case, through_case, modulator_case, pool_modulator_case>) check_as_modulator<Case>();
    if constexpr (one_of<Case, normed_case, through_case>) check_as_output<Case>();
#else
    check_as_gate<Case>();
    check_as_up<Case>();
    check_as_term<Case>();
    check_as_modulator<Case>();
    if constexpr (!std::is_same_v<typename Case::source, dense>) check_as_output<Case>();
#endif
}

}  // namespace engine_conformance_sources_test
