// A user's own policies, and registers of other widths than the machine's.
#include <tiffin/activation/silu.hpp>
#include <tiffin/block/ffn.hpp>
#include <tiffin/layers.hpp>
#include <tiffin/norm/rms.hpp>
#include <tiffin/router/softmax.hpp>
#include <tiffin/scalar.hpp>
#include <tiffin/source/dense.hpp>
#include <tiffin/source/named.hpp>
#include <tiffin/source/sum.hpp>
#include <tiffin/source/token_embedding.hpp>

// Of types, which is what these are about.
#undef TIFFIN_TEST_TEXTS
#include "support/conformance.hpp"
#include "support/doctest.hpp"

#include <cmath>
#include <concepts>
#include <string_view>
#include <tuple>
#include <type_traits>

namespace engine_conformance_custom_test {
using namespace tiffin;
using tiffin_test::check;
using tiffin_test::compose_on_both;
using tiffin_test::order;

// Not without a name: nvcc warns of what is declared in such a namespace and used on the device alone.
namespace own {

// s * U[t] + s: the example of tree.hpp, with a tensor that is read twice.
struct scaled_embedding {
    using rows = table<"weight">;
    using scale = tiffin::vector<"scale">;
    using tensors = tensor_list<rows, scale>;
    static constexpr std::string_view name = "scaled_embed";

    TIFFIN_HD auto operator()(const auto& at) const { return at[rows{}] * at[scale{}] + at[scale{}]; }
};

// All kinds of tensor in one leaf, declared in an order that is not that of the formula.
struct modulated_dense {
    using shift = tiffin::vector<"shift", presence::optional>;
    using rows = table<"rows">;
    using matrix = projection<"matrix">;
    using tensors = tensor_list<shift, rows, matrix>;

    TIFFIN_HD auto operator()(const auto& at) const { return at[matrix{}] * at[rows{}] + at[shift{}]; }
};

// max(z, 0)^2 / (1 + slope z^2).
struct soft_square {
    float slope = 0;
    static constexpr double flops() noexcept { return 6; }
    template <class S>
    TIFFIN_HD S operator()(const S& z) const {
        const S positive = select(z < S(0), S(0), z);
        return positive * positive / (S(1) + constant<S>(slope) * z * z);
    }
};

// g u + mix g.
struct mixed_product {
    float mix = 0;
    static constexpr double flops() noexcept { return 3; }
    template <class S>
    TIFFIN_HD S operator()(const S& g, const S& u) const {
        return g * u + constant<S>(mix) * g;
    }
};

// Written for one number at a time: `simd` calls it lane by lane.
struct one_number_norm {
    static constexpr bool weighted = true;
    static constexpr double flops() noexcept { return 4; }
    template <class S>
    TIFFIN_HD S scale(const S& sum_of_squares, const S& count) const {
        using std::sqrt;
        return S(1) / (S(1) + sqrt(sum_of_squares / count));
    }
    template <class S>
        requires(!requires { typename S::value_type; })
    TIFFIN_HD S operator()(const S& x, const S& scale, const S& weight) const { return x * scale + weight; }
};

// Written for a float: max(z, -1), and g u + u.
struct float_activation {
    static constexpr double flops() noexcept { return 1; }
    TIFFIN_HD float operator()(float z) const { return z < -1.0f ? -1.0f : z; }
};
struct float_fusion {
    static constexpr double flops() noexcept { return 2; }
    TIFFIN_HD float operator()(float g, float u) const { return g * u + u; }
};
// The same for numbers that carry their error bound, or their partials.
struct bounded_activation : float_activation {
    using float_activation::operator();
    template <class S>
        requires(!std::same_as<S, float> && !requires { typename S::value_type; })
    TIFFIN_HD S operator()(const S& z) const { return select(z < S(-1), S(-1), z); }
};
struct bounded_fusion : float_fusion {
    using float_fusion::operator();
    template <class S>
        requires(!std::same_as<S, float> && !requires { typename S::value_type; })
    TIFFIN_HD S operator()(const S& g, const S& u) const { return g * u + u; }
};

// Members called like those of chains, norms and routed leaves say nothing: these are formulas.
struct leaf_with_router {
    using rows = table<"rows">;
    using tensors = tensor_list<rows>;
    softmax_topk router{};
    TIFFIN_HD auto operator()(const auto& at) const { return at[rows{}]; }
};
struct node_with_scope {
    static constexpr std::string_view scope = "elsewhere";
    static constexpr std::size_t layers = 2, hidden = 3;
    static constexpr int blocks() noexcept { return 0; }
    static constexpr part_scope repeated_scope(std::size_t part) noexcept { return {"never", part}; }
    rms norm{};
    leaf_with_router first{};
    named<leaf_with_router, "second"> second{};
    TIFFIN_HD std::tuple<const leaf_with_router&, const named<leaf_with_router, "second">&> parts() const {
        return {first, second};
    }
    static constexpr double flops() noexcept { return 2; }
    TIFFIN_HD auto operator()(const auto& a, const auto& b) const { return a + a * b; }
};
// A norm of a row whose part has a name of its own, and a member `check` that is not the one prepare() asks.
struct norm_of_a_row {
    using source_role = row_norm_role;
    using tensors = tensor_list<row_scale, computed>;
    rms norm{};
    leaf_with_router row{};
    [[nodiscard]] bool check() const { return false; }
    TIFFIN_HD std::tuple<const leaf_with_router&> parts() const { return {row}; }
    static constexpr double flops() noexcept { return 3; }
    TIFFIN_HD auto operator()(const auto& at, const auto& v) const { return v * at[row_scale{}]; }
};
static_assert(!chained_source<node_with_scope> && !row_normed_source<node_with_scope> &&
              !routed_source<leaf_with_router>);

}  // namespace own
using namespace own;

TEST_CASE("conformance: an activation and a fusion written for a float") {
    static_assert(activation_policy<float_activation> && fusion_policy<float_fusion>);
    check(compose_on_both<ffn<gate<bounded_activation>, sum<dense, token_embedding>, bounded_fusion>>(
        "for a float"));
}
#if !defined(TIFFIN_TEST_SMALL)
TEST_CASE("conformance: a source with a table and a vector, an activation and a fusion of one's own") {
    ffn<gate<soft_square>, sum<scaled_embedding, dense>, mixed_product> block;
    block.hidden.gate.phi.slope = 0.75f;
    block.hidden.fusion.mix = -0.375f;
    check(compose_on_both("custom policies", block));
}
#endif
TEST_CASE("conformance: a source of all three kinds of tensor, in the gate and in the output") {
    using out = project<no_norm, sum<modulated_dense, named<scaled_embedding, "out_embed">>>;
    check(compose_on_both<ffn<gate<silu, modulated_dense>, none, multiply, out>>("all kinds in one source"));
}
TEST_CASE("conformance: a role is claimed by its tag, not by names of members") {
    check(compose_on_both<ffn<gate<silu>, node_with_scope, multiply>>("members called like roles"));
    check(compose_on_both<ffn<gate<silu>, norm_of_a_row, multiply>>("a norm of one's own"));
}
TEST_CASE("conformance: a norm written for plain numbers") {
    check(compose_on_both<ffn<gate<silu>, token_embedding, multiply, project<one_number_norm>>>(
        "one_number_norm"));
}

#if !defined(TIFFIN_TEST_GRADIENTS)
// The kernel at other register widths: what an older machine runs.
TEST_CASE("conformance: narrower registers") {
    using block = ffn<gate<silu>, sum<dense, token_embedding>, multiply, project<rms>>;
    tiffin_test::composition what = tiffin_test::compose<block>("narrower registers");
    what.contenders.clear();
#    if XSIMD_WITH_SSE2
    what.contenders.push_back(tiffin_test::make_contender("sse2", order::as_written, block{},
                                                          simd<f32, f32, paired, xsimd::sse2>{}));
#    endif
#    if XSIMD_WITH_AVX2 && !defined(TIFFIN_TEST_SMALL)
    what.contenders.push_back(tiffin_test::make_contender("avx2", order::as_written, block{},
                                                          simd<f32, f32, paired, xsimd::avx2>{}));
#    endif
    if (what.contenders.empty())
        MESSAGE("not tested: this machine has no narrower registers");
    else
        check(what);
}
#endif

}  // namespace engine_conformance_custom_test
