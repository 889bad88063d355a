// What a layer goes on reading after prepare(): the tensors that it names, and no others. Each tensor in turn
// is overwritten with NaN, and the layer called again.
#include <tiffin/call/prepare.hpp>
#include <tiffin/cpu/eigen/eigen.hpp>
#include <tiffin/cpu/simd/simd.hpp>
#include <tiffin/layers.hpp>
#include <tiffin/reference/reference.hpp>
#include <tiffin/runtime/any_layer.hpp>

#include "support/doctest.hpp"
#include "support/policies.hpp"
#include "support/tensor_set.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

namespace call_in_place_test {
using namespace tiffin;
using tiffin_test::random_ids;
using tiffin_test::random_rows;
using tiffin_test::tensor_set;

namespace {

constexpr tiffin_test::sizes sizes{.d_model = 32, .d_ff = 64, .vocab = 9};
constexpr std::size_t tokens = 40;  // so many that each of a map's experts has some

std::vector<float> run(const any_layer& layer) {
    const std::vector<float> x = random_rows(tokens, sizes.d_model, 3),
                             residual = random_rows(tokens, sizes.d_model, 4),
                             beside =
                                 random_rows(tokens, std::max<std::size_t>(layer.needs().given_width, 1), 5);
    std::vector<float> y(x.size());
    workspace memory = layer.make_workspace(tokens, 1);
    layer(x,
          {.token_ids = random_ids(tokens, sizes.vocab, 7),
           .residual = {residual.data(), tokens, sizes.d_model},
           .per_layer_input = {beside.data(), tokens, layer.needs().given_width}},
          y, memory);
    return y;
}

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
    return std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

// What is not read in place is held, in no format that is wider than f32, and at most as wide again as panels are.
void check_held_bytes(const any_layer& layer, const weights& given) {
    std::size_t least = 0, most = 0;
    for (const weights::entry& e : given.entries()) {
        if (std::ranges::count(layer.reads_in_place(), e.name) != 0) continue;
        least += bytes_of(dtype::bf16, e.tensor.shape.elements());
        most += 4 * bytes_of(dtype::f32, e.tensor.shape.elements()) + 4096;
    }
    CHECK(layer.held_bytes() >= least);
    CHECK(layer.held_bytes() <= most);
}

// `exact`: whether everything that is named is read in these calls.
template <class Block, class Backend>
void check(const Backend& backend, dtype dense, dtype tables, bool exact = true) {
    tensor_set tensors(tiffin_test::tensors_wanted(Block{}), {sizes, {dense, 0}, {tables, 0}, ~0u, 11});
    const any_layer layer(prepare<Block>(tensors.given(), backend, {.tokens = 0}));
    const std::vector<float> fine = run(layer);
    check_held_bytes(layer, tensors.given());
    const weights given = tensors.given();
    for (const std::string& named : layer.reads_in_place()) CHECK(given.find(named) != nullptr);
    for (const weights::entry& e : given.entries()) {
        const bool named = std::ranges::count(layer.reads_in_place(), e.name) != 0;
        if (named && is_integer(e.tensor.type)) continue;  // a map of NaN would lead anywhere
        CAPTURE(e.name);
        auto* const memory = static_cast<std::byte*>(const_cast<void*>(e.tensor.data));
        const std::size_t bytes = bytes_of(e.tensor.type, e.tensor.shape.elements());
        const std::vector<std::byte> before(memory, memory + bytes);
        std::memset(memory, 0xFF, bytes);
        const bool same = same_bits(run(layer), fine);
        std::copy(before.begin(), before.end(), memory);
        if (exact || !named) CHECK(same == !named);
    }
    CHECK(same_bits(run(layer), fine));
}

template <class Block>
void check_all() {
    check<Block>(simd{}, dtype::f32, dtype::f32);
    check<Block>(eigen{}, dtype::f32, dtype::f32);
    check<Block>(eigen{}, dtype::bf16, dtype::f16);
    check<Block>(reference{}, dtype::f32, dtype::f16, false);
}
#if !defined(TIFFIN_TEST_SMALL)
// Weights and activations of two bytes: what is kept depends on the formats, whichever the block.
template <class Block>
void check_formats() {
    check<Block>(simd<bf16, bf16>{}, dtype::bf16, dtype::bf16);
    check<Block>(simd<f16, bf16>{}, dtype::f32, dtype::f32);
}
#endif

// Aligned like what f32 numbers need, no more: read in place; at an odd address: rows are, other tensors are copied.
template <class Backend>
std::vector<std::string> read_in_place(const Backend& backend, std::size_t offset) {
    tensor_set tensors(tiffin_test::tensors_wanted(stem_hybrid{}),
                       {sizes, {dtype::f32, offset}, {dtype::f32, offset}, 0u, 11});
    return prepare<stem_hybrid>(tensors.given(), backend, {.tokens = 0}).reads_in_place();
}

// Every expert has tokens.
struct all_four : softmax_topk {
    constexpr all_four() noexcept : softmax_topk{4} {}
};
// Every row is chosen by some token.
struct two_neurons : peer {
    constexpr two_neurons() noexcept { router.top_k = 2; }
};

}  // namespace

#if defined(TIFFIN_TEST_SMALL)
#    define DENSE_AND_TOKEN_INDEXED stem_hybrid
#    define ROUTED structmoe_down, mixture<all_four, stem>, two_neurons
#    define MEMORIES meki_training
#    define MODULATORS tiffin_test::mort_of_three<mlp>
#else
#    define DENSE_AND_TOKEN_INDEXED mlp, swiglu, stem, stem_gate, stem_hybrid
#    define ROUTED \
        structmoe, structmoe_gated, structmoe_down, mixture<all_four, stem>, hash_moe<mlp>, two_neurons, l3
#    define MEMORIES meki, meki_training, meki_training_linear, ple_full, ple_given
#    define MODULATORS retoken<mlp>, retoken_folded<mlp>, tiffin_test::mort_of_three<mlp>
#endif

TEST_CASE_TEMPLATE("in place: dense and token-indexed layers", Block, DENSE_AND_TOKEN_INDEXED) {
    check_all<Block>();
}
TEST_CASE_TEMPLATE("in place: routed layers", Block, ROUTED) {
    check_all<Block>();
}
TEST_CASE_TEMPLATE("in place: memories", Block, MEMORIES) {
    check_all<Block>();
}
TEST_CASE_TEMPLATE("in place: modulators", Block, MODULATORS) {
    check_all<Block>();
}
#if !defined(TIFFIN_TEST_SMALL)
TEST_CASE_TEMPLATE("in place: formats of two bytes", Block, swiglu, stem_hybrid, structmoe_down,
                   mixture<all_four, stem>, two_neurons, meki_training, tiffin_test::mort_of_three<mlp>) {
    check_formats<Block>();
}
#endif
TEST_CASE("in place: formats chosen at run time") {
    const simd<any_format, any_format> backend{{dtype::f16}, {dtype::bf16}};
    check<stem_hybrid>(backend, dtype::f16, dtype::bf16);
#if !defined(TIFFIN_TEST_SMALL)
    check<structmoe>(backend, dtype::f16, dtype::bf16);
    check<tiffin_test::mort_of_three<mlp>>(backend, dtype::f16, dtype::bf16);
#endif
}
TEST_CASE("in place: each table as it is given") {
    const simd<any_format, any_format> backend{{dtype::f32}, kept_as_given};
    for (const dtype type : {dtype::f32, dtype::bf16, dtype::f16, dtype::q8_0, dtype::q4_0}) {
        INFO(name_of(type));
        check<stem_hybrid>(backend, dtype::f32, type);
        // The same rows at an odd address, and kept in this format because it was asked for.
        const auto y_of = [&](dtype table, std::size_t offset, const auto& how) {
            tensor_set tensors(tiffin_test::tensors_wanted(stem_hybrid{}),
                               {sizes, {dtype::f32, 0}, {table, offset}, 0u, 11});
            auto layer = prepare<stem_hybrid>(tensors.given(), how);
            std::vector<float> x(layer.d_model(), 0.5f), y(x.size());
            const std::vector<std::int32_t> ids{3};
            layer(std::span<const float>(x), {.token_ids = ids}, std::span<float>(y));
            return y;
        };
        CHECK(y_of(type, 0, backend) == y_of(type, 1, backend));
        CHECK(y_of(type, 0, backend) == y_of(type, 0, simd<any_format, any_format>{{dtype::f32}, {type}}));
    }
}
TEST_CASE("in place: by format and alignment") {
    using names = std::vector<std::string>;
    CHECK(read_in_place(simd{}, 4) == names{"stem_embed.weight"});
    CHECK(read_in_place(simd{}, 1) == names{"stem_embed.weight"});
    CHECK(read_in_place(simd<any_format, any_format>{{}, kept_as_given}, 1) == names{"stem_embed.weight"});
    CHECK(read_in_place(simd<f32, bf16>{}, 0) == names{});
    CHECK(read_in_place(eigen{}, 4).size() == 4);
    CHECK(read_in_place(eigen{}, 1) == names{"stem_embed.weight"});
    CHECK(read_in_place(reference{}, 1).size() == 4);
}
TEST_CASE("in place: bytes held by the layer") {
    // No panel has outputs beyond the last: 32 and 64 are multiples of every one.
    const auto held = [](const auto& backend, std::size_t offset) {
        tensor_set tensors(tiffin_test::tensors_wanted(stem_hybrid{}),
                           {sizes, {dtype::f32, offset}, {dtype::f32, offset}, 0u, 11});
        return prepare<stem_hybrid>(tensors.given(), backend, {.tokens = 0}).held_bytes();
    };
    constexpr std::size_t dense = 3 * 32 * 64, table = 9 * 64;  // numbers
    CHECK(held(simd{}, 4) == dense * 4);
    CHECK(held(simd{}, 1) == dense * 4);
    CHECK(held(simd<bf16, bf16>{}, 4) == (dense + table) * 2);
    CHECK(held(simd<any_format, any_format>{{dtype::bf16}, kept_as_given}, 1) == dense * 2);
    CHECK(held(eigen{}, 4) == 0);
    CHECK(held(eigen{}, 1) == dense * 4);
    CHECK(held(reference{}, 1) == 0);
}

}  // namespace call_in_place_test
