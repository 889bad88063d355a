// The promise of `simd`: a token's output is the same to the bit whatever batch it rides in, however
// many threads run, in whatever order, and however small the workspace is.
#include <tiffin/call/prepare.hpp>
#include <tiffin/cpu/simd/simd.hpp>
#include <tiffin/executor/openmp.hpp>
#include <tiffin/layers.hpp>
#include <tiffin/norm/rms.hpp>
#include <tiffin/reference/reference.hpp>
#include <tiffin/router/softmax.hpp>
#include <tiffin/source/named.hpp>

#include "support/doctest.hpp"
#include "support/executors.hpp"
#include "support/policies.hpp"
#include "support/tensor_set.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <numeric>
#include <span>
#include <string>
#include <thread>
#include <vector>

namespace cpu_bitwise_test {
using namespace tiffin;
using tiffin_test::random_ids;
using tiffin_test::random_rows;
using tiffin_test::tensor_set;

namespace {

// One projection, two, and none; with a norm and without.
using hybrid = ffn<gate<silu>, sum<dense, token_embedding>, multiply, project<rms>>;
using single = mlp;
using tables_only = ffn<gate<silu, token_embedding>, named<token_embedding, "up_embed">>;
// Two experts a token, so that neighbours share some and not others.
struct two_of : softmax_topk_renorm {
    constexpr two_of() noexcept : softmax_topk_renorm{{2}} {}
};
using routed = tiffin_test::mort_of_three<ffn<gate<gelu, sum<dense, routed_low_rank<two_of>>>>>;
using experts = mixture<two_of, stem, mlp>;
#if defined(TIFFIN_TEST_SMALL)
using branches = parallel<experts, retoken<mlp>>;
#else
using branches = parallel<experts, meki_training, retoken<mlp>>;
#endif
// Rows by keys and by ranges, gated by products of their own.
struct two_neurons : peer {
    constexpr two_neurons() noexcept { router.top_k = 2; }
};
using chosen = parallel<two_neurons, l3>;

// Widths with partly filled registers, several depth blocks, and groups of several panels of which
// the last is shorter (from 32 registers of outputs on, at any register width).
constexpr std::size_t L = simd_detail::width<xsimd::default_arch>;
constexpr std::size_t d_model = 300;
#if defined(TIFFIN_TEST_SMALL)
constexpr std::size_t d_ff = 35 * L + 3;
#else
constexpr std::size_t d_ff = 70 * L + 3;
#endif
constexpr std::size_t vocab = 50;
// Tokens: more than share a pass over a group of panels; in the small form no more than it takes.
#if defined(TIFFIN_TEST_SMALL)
constexpr std::size_t most = 200;
#else
constexpr std::size_t most = 400;
#endif

template <class Block>
struct prepared {
    tensor_set tensors{tiffin_test::tensors_wanted(Block{}), {{d_model, d_ff, vocab}, {}, {}, ~0u, 29}};
    layer<Block, simd<>> computed = prepare<Block>(tensors.given(), simd{}, {.tokens = 0});
    std::vector<float> x = random_rows(most, d_model, 31);
    std::vector<std::int32_t> ids = random_ids(most, vocab, 37);
    std::vector<float> alone = std::vector<float>(most * d_model);

    prepared() {  // every token in a call of its own
        workspace memory = computed.make_workspace(1, 1);
        for (std::size_t t = 0; t < most; ++t)
            std::as_const(computed)(std::span(x).subspan(t * d_model, d_model), std::span(ids).subspan(t, 1),
                                    std::span(alone).subspan(t * d_model, d_model), memory);
    }

    // Tokens [first, first + count) in one call. True where all bits are as they were alone.
    bool same(std::size_t first, std::size_t count, std::span<std::byte> memory, executor_ref execute) const {
        std::vector<float> y(count * d_model, -7.0f);
        computed(std::span(x).subspan(first * d_model, count * d_model), std::span(ids).subspan(first, count),
                 y, memory, execute);
        return std::memcmp(y.data(), alone.data() + first * d_model, y.size() * sizeof(float)) == 0;
    }
    bool same(std::size_t first, std::size_t count, executor_ref execute, std::size_t workers) const {
        workspace memory = computed.make_workspace(count, workers);
        return same(first, count, memory, execute);
    }
};

// Prepared once for all tests of a block.
template <class Block>
const prepared<Block>& the() {
    static const prepared<Block> one;
    return one;
}

#if defined(TIFFIN_TEST_SMALL)
#    define FOR_EACH_BLOCK hybrid, routed, branches, chosen
constexpr std::size_t counts[] = {2, 5, 13, 193};
constexpr std::size_t shared_counts[] = {5, most};
constexpr std::size_t room_for[] = {13};
constexpr int thread_counts[] = {7};
constexpr int times = 1;
#else
#    define FOR_EACH_BLOCK hybrid, single, tables_only, routed, experts, branches, chosen
constexpr std::size_t counts[] = {2,  3,  4,  5,  6,  7,  8,  9,  10, 11,  12,  13,  14,  15,  16,  17, 18,
                                  23, 24, 25, 36, 37, 64, 95, 96, 97, 191, 192, 193, 383, 384, 385, 400};
constexpr std::size_t shared_counts[] = {1, 5, 12, 100, most};
constexpr std::size_t room_for[] = {1, 2, 5, 12, 13, 100, 192, 193, 399, 400};
constexpr int thread_counts[] = {1, 2, 3, 7};
constexpr int times = 3;
#endif

}  // namespace

TEST_CASE_TEMPLATE("bitwise: any number of tokens, at any position", Block, FOR_EACH_BLOCK) {
    const auto& p = the<Block>();
    for (const std::size_t count : counts) {
        CAPTURE(count);
        CHECK(p.same(0, count, serial{}, 1));
        CHECK(p.same(most - count, count, serial{}, 1));
        CHECK(p.same((most - count) / 2, count, serial{}, 1));
    }
    // The outputs do depend on the token: equal ones would hide everything above.
    CHECK(std::memcmp(p.alone.data(), p.alone.data() + d_model, d_model * sizeof(float)) != 0);
}

TEST_CASE_TEMPLATE("bitwise: any number of threads, any order of tasks", Block, FOR_EACH_BLOCK) {
    const auto& p = the<Block>();
    for (const std::size_t count : shared_counts) {
        CAPTURE(count);
        for (const int threads : thread_counts) {
            CAPTURE(threads);
            for (int again = 0; again < times; ++again)
                CHECK(p.same(0, count, openmp{threads}, static_cast<std::size_t>(threads)));
        }
        CHECK(p.same(0, count, tiffin_test::thread_per_task{}, 6));
        CHECK(p.same(0, count, tiffin_test::odd_and_even{}, 9));
        CHECK(p.same(0, count, tiffin_test::reversed{}, 4));
        CHECK(p.same(0, count, tiffin_test::reversed{1000}, 1000));
        tiffin_test::shuffled unsorted;
        for (int again = 0; again < 2 * times; ++again) CHECK(p.same(0, count, unsorted, 5));
    }
}

TEST_CASE_TEMPLATE("bitwise: any workspace, at any address", Block, FOR_EACH_BLOCK) {
    const auto& p = the<Block>();
    for (const std::size_t tokens : room_for) {
        CAPTURE(tokens);
        workspace one = p.computed.make_workspace(tokens, 1), four = p.computed.make_workspace(tokens, 4);
        CHECK(p.same(0, most, one, serial{}));
        CHECK(p.same(0, most, four, tiffin_test::reversed{}));
        CHECK(p.same(0, most, one, tiffin_test::reversed{}));  // room for fewer workers than there are
    }
    for (const std::size_t offset : {1u, 31u, 63u}) {
        std::vector<std::byte> memory(p.computed.workspace_bytes(20, 1) + 64, std::byte{0xFF});
        CHECK(p.same(0, 57, std::span(memory).subspan(offset), serial{}));
    }
}

TEST_CASE_TEMPLATE("bitwise: tokens in another order, and the same one many times", Block, FOR_EACH_BLOCK) {
    const auto& p = the<Block>();
    constexpr std::size_t count = 101;
    std::vector<float> x(count * d_model), y(count * d_model);
    std::vector<std::int32_t> ids(count);
    std::vector<std::size_t> from(count);
    tiffin_test::random_numbers random(41);
    for (std::size_t t = 0; t < count; ++t) {
        from[t] = random.below(20);
        std::copy_n(p.x.begin() + static_cast<std::ptrdiff_t>(from[t] * d_model), d_model,
                    x.begin() + static_cast<std::ptrdiff_t>(t * d_model));
        ids[t] = p.ids[from[t]];
    }
    workspace memory = p.computed.make_workspace(count, 3);
    p.computed(x, ids, y, memory, tiffin_test::reversed{3});
    std::size_t different = 0;
    for (std::size_t t = 0; t < count; ++t)
        different += std::memcmp(y.data() + t * d_model, p.alone.data() + from[t] * d_model,
                                 d_model * sizeof(float)) == 0
                         ? 0u
                         : 1u;
    CHECK(different == 0);
}

TEST_CASE_TEMPLATE("bitwise: const calls from several threads at once", Block, FOR_EACH_BLOCK) {
    const auto& p = the<Block>();
    std::vector<std::thread> threads;
    std::vector<int> wrong(4, 0);
    for (std::size_t n = 0; n < wrong.size(); ++n)
        threads.emplace_back([&, n] {
            workspace memory = p.computed.make_workspace(40, 1);
            for (std::size_t i = 0; i < 2 + 2 * times; ++i)
                wrong[n] += p.same(40 * n + i, 20 + 5 * n, memory, serial{}) ? 0 : 1;
        });
    for (std::thread& t : threads) t.join();
    for (const int count : wrong) CHECK(count == 0);
}

TEST_CASE("bitwise: the layer's own workspace, of any size it was prepared with") {
    const auto& p = the<hybrid>();
    for (const prepare_options& options :
         {prepare_options{}, prepare_options{.tokens = 1}, prepare_options{.tokens = 7, .workers = 3},
          prepare_options{.tokens = 300, .workspace_limit = 100000}}) {
        auto own = prepare<hybrid>(p.tensors.given(), simd{}, options);
        for (int again = 0; again < 2; ++again) {
            std::vector<float> y(most * d_model);
            own(p.x, p.ids, y, openmp{2});
            CHECK(y == p.alone);
        }
    }
    auto moved = prepare<hybrid>(p.tensors.given(), simd{}, {.tokens = 0});
    auto target = std::move(moved);
    CHECK(target.reserve(3).ok());
    std::vector<float> y(most * d_model);
    target(p.x, p.ids, y);
    CHECK(y == p.alone);
}

// Only the numbers in their tensors tell these experts apart.
TEST_CASE("bitwise: experts of one shape that read different numbers of table rows") {
    using block = mixture<two_of, l3_memory>;
    constexpr std::size_t d = 24, rows = 60, tokens = 16;
    const tensor_set tensors(tiffin_test::tensors_wanted(block{}), {{d, 40, vocab, rows}, {}, {}, ~0u, 53});
    std::vector<std::int32_t> one, all;
    for (std::size_t id = 0; id < vocab; ++id) {
        one.insert(one.end(), {0, 1});
        all.insert(all.end(), {0, static_cast<std::int32_t>(rows)});
    }
    const auto with = [&](std::size_t longest) {
        const weights made = tensors.given();
        weights given;
        for (const weights::entry& e : made.entries())
            if (e.name.ends_with(".ranges"))
                given.add(e.name,
                          tensor_view{
                              (e.name == "experts." + std::to_string(longest) + ".ranges" ? all : one).data(),
                              dtype::i32,
                              {vocab, 2}});
            else
                given.add(e.name, e.tensor);
        return given;
    };
    const auto first = prepare<block>(with(0), simd{}, {.tokens = 0});
    const auto last = prepare<block>(with(rows - 1), simd{}, {.tokens = 0});
    const std::vector<float> x = random_rows(tokens, d, 59);
    const std::vector<std::int32_t> ids = random_ids(tokens, vocab, 61);
    for (const std::size_t workers : {1u, 2u, 7u, 90u}) {
        CAPTURE(workers);
        CHECK(first.workspace_bytes(tokens, workers) == last.workspace_bytes(tokens, workers));
        for (const auto* layer : {&first, &last}) {
            std::vector<float> y(tokens * d), alone(tokens * d);
            workspace memory = layer->make_workspace(tokens, workers);
            (*layer)(x, ids, y, memory, openmp{static_cast<int>(std::min<std::size_t>(workers, 7))});
            for (std::size_t t = 0; t < tokens; ++t)
                (*layer)(std::span(x).subspan(t * d, d), std::span(ids).subspan(t, 1),
                         std::span(alone).subspan(t * d, d), memory);
            CHECK(y == alone);
        }
    }
    // Room for more workers is room for fewer.
    for (std::size_t workers = 2; workers < 2 * rows; ++workers)
        CHECK(first.workspace_bytes(tokens, workers) >= first.workspace_bytes(tokens, workers - 1));
}

// The pieces of a call are an affair of the layer, not of a backend: the others are cut the same way.
TEST_CASE("bitwise: the reference in pieces") {
    const tensor_set tensors(tiffin_test::tensors_wanted(hybrid{}), {{19, 23, vocab}, {}, {}, ~0u, 43});
    const auto computed = prepare<hybrid>(tensors.given(), reference{}, {.tokens = 0});
    const std::vector<float> x = random_rows(50, 19, 47);
    const std::vector<std::int32_t> ids = random_ids(50, vocab, 53);
    std::vector<float> whole(x.size()), cut(x.size());
    workspace memory = computed.make_workspace(1, 1);
    computed(x, ids, whole, memory);
    for (std::size_t t = 0; t < 50; ++t)
        computed(std::span(x).subspan(t * 19, 19), std::span(ids).subspan(t, 1),
                 std::span(cut).subspan(t * 19, 19), memory);
    CHECK(whole == cut);
    workspace more = computed.make_workspace(50, 4);
    computed(x, ids, cut, more, tiffin_test::thread_per_task{});
    CHECK(whole == cut);
}

}  // namespace cpu_bitwise_test
