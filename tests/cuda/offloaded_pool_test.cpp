// Pools in host memory of which the device fetches what was chosen: always those rows, mixed as they are to be.
#include <tiffin/cuda.hpp>
#include <tiffin/layers.hpp>
#include <tiffin/source/routes_of.hpp>
#include <tiffin/table/row_store.hpp>

#include "cuda/whole_numbers.hpp"
#include "support/doctest.hpp"
#include "support/random.hpp"

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace cuda_offloaded_pool_test {
using namespace tiffin_cuda_test;
namespace {

using tiffin::choice;
constexpr std::size_t experts = 5, width = d, tokens = 13, top_k = 2;

std::vector<float> numbers(std::size_t n, unsigned seed) {
    std::vector<float> all(n);
    tiffin_test::random_numbers(seed).fill(all, 1.0f);
    return all;
}
std::vector<choice<float>> chosen_of(std::size_t n, std::size_t of, unsigned seed) {
    tiffin_test::random_numbers random(seed);
    std::vector<choice<float>> all;
    for (std::size_t i = 0; i < n; ++i)
        all.push_back({static_cast<std::int32_t>(random.below(of)), random.signed_unit(1.0f)});
    return all;
}
// Rows that differ by more than what was rounded: a product and a sum per choice, in f32.
std::size_t different(const std::vector<float>& mixed, const std::vector<float>& pool,
                      const std::vector<std::int32_t>& ids, const std::vector<choice<float>>& chosen,
                      std::size_t k, std::size_t ids_of_pool) {
    std::size_t off = 0;
    for (std::size_t t = 0; t < chosen.size() / k; ++t)
        for (std::size_t j = 0; j < width; ++j) {
            double sum = 0, size = 0;
            for (std::size_t i = 0; i < k; ++i) {
                const choice<float>& one = chosen[t * k + i];
                if (one.expert < 0) continue;
                const std::size_t id = ids.empty() ? 0 : static_cast<std::size_t>(ids[t]);
                const double term =
                    static_cast<double>(one.weight) *
                    static_cast<double>(
                        pool[(static_cast<std::size_t>(one.expert) * ids_of_pool + id) * width + j]);
                sum += term;
                size += std::fabs(term);
            }
            const double by = std::fabs(static_cast<double>(mixed[t * width + j]) - sum);
            off += by <= 2 * static_cast<double>(k) * 0x1p-24 * size ? 0u : 1u;
        }
    return off;
}
std::vector<float> received(tiffin::offloaded_pool<>& from, cudaStream_t stream) {
    const auto rows = from.receive(stream).or_throw();
    std::vector<float> here(rows.rows * width);
    if (here.empty()) return here;
    REQUIRE(cudaStreamSynchronize(stream) == cudaSuccess);
    REQUIRE(cudaMemcpy(here.data(), rows.data, here.size() * sizeof(float), cudaMemcpyDeviceToHost) ==
            cudaSuccess);
    return here;
}

}  // namespace

TEST_CASE("offloaded_pool: the rows that were chosen, mixed, calls of several sizes") {
    const std::vector<float> pool = numbers(experts * vocab * width, 3);
    const tiffin::tensor_view view{pool.data(), tiffin::dtype::f32, {experts, vocab, width}};
    auto rows = tiffin::offloaded_pool<>::make(view, experts, top_k, {.tokens = tokens, .cached_rows = 16})
                    .or_throw();
    cudaStream_t stream{};
    REQUIRE(cudaStreamCreate(&stream) == cudaSuccess);
    CHECK(received(rows, stream).empty());
    std::size_t fetched = 0;
    for (const std::size_t n : {tokens, std::size_t{1}, std::size_t{7}}) {
        const std::vector<std::int32_t> ids = some_ids(n, static_cast<unsigned>(n));
        const auto chosen = chosen_of(n * top_k, experts, static_cast<unsigned>(n));
        const there<std::int32_t> ids_there(ids);
        const there<choice<float>> chosen_there(chosen);
        rows.send(ids_there.span(), chosen_there.span(), stream).or_throw();
        CHECK(different(received(rows, stream), pool, ids, chosen, top_k, vocab) == 0);
        std::set<std::pair<std::int32_t, std::int32_t>> distinct;
        for (std::size_t i = 0; i < chosen.size(); ++i) distinct.insert({chosen[i].expert, ids[i / top_k]});
        fetched += distinct.size();
    }
    REQUIRE(rows.check().ok());
    const auto counts = rows.counts().or_throw();
    CHECK(counts.hits + counts.misses == fetched);
    static_cast<void>(cudaStreamDestroy(stream));
}

TEST_CASE("offloaded_pool: a table of one id, choices behind the last") {
    const std::vector<float> table = numbers(experts * width, 5);
    const tiffin::tensor_view view{table.data(), tiffin::dtype::f32, {experts, width}};
    const auto store = tiffin::in_memory::view(view).or_throw();
    auto rows =
        tiffin::offloaded_pool<>::make(tiffin::row_store_ref(store), experts, 3, {.tokens = 4}).or_throw();
    std::vector<choice<float>> chosen = chosen_of(3 * 4, experts, 9);
    chosen[2] = chosen[4] = chosen[5] = {-1, 0.0f};
    const there<choice<float>> chosen_there(chosen);
    rows.send({}, chosen_there.span(), nullptr).or_throw();
    const std::vector<float> mixed = received(rows, nullptr);
    CHECK(different(mixed, table, {}, chosen, 3, 1) == 0);
    REQUIRE(rows.check().ok());
}

// Routes on the device, the chosen rows from the host, the layer that takes them: MoRT with its pool in memory.
TEST_CASE("offloaded_pool: MoRT as it is deployed") {
    constexpr std::size_t backbone = 6;
    const std::vector<float> pool = numbers(experts * vocab * d, 3), router = numbers(experts * d, 4),
                             scale = numbers(d, 5), up = numbers(d_ff * d, 6), down = numbers(d * d_ff, 7),
                             x = numbers(tokens * d, 8);
    const std::vector<std::int32_t> ids = some_ids(tokens, 3);
    tiffin::weights of_router, given, whole;
    of_router.add("router.weight", router.data(), {experts, d});
    given.add("base.up_proj.weight", up.data(), {d_ff, d})
        .add("base.down_proj.weight", down.data(), {d, d_ff});
    given.add("scale", scale.data(), {d});
    whole = given;
    whole.add("router.weight", router.data(), {experts, d});
    whole.add("modulators.weight", pool.data(), {experts, vocab, d});
    tiffin::mort<tiffin::mlp> in_memory;
    tiffin::mort_given<tiffin::mlp> deployed;
    in_memory.modulator.num_layers = deployed.modulator.num_layers = backbone;
    tiffin::routes_of<tiffin::sigmoid_topk_renorm> routing;
    routing.router.top_k = top_k;

    auto routes = tiffin::prepare(routing, of_router, tiffin::cuda<>{}, {.tokens = tokens});
    auto with_rows = tiffin::prepare(deployed, given, tiffin::cuda<>{}, {.tokens = tokens});
    auto with_pool = tiffin::prepare(in_memory, whole, tiffin::cuda<>{}, {.tokens = tokens});
    const tiffin::tensor_view view{pool.data(), tiffin::dtype::f32, {experts, vocab, d}};
    auto rows = tiffin::offloaded_pool<>::make(view, experts, top_k, {.tokens = tokens}).or_throw();

    const there<float> x_there(x), copy(x.size()), y(x.size()), wanted(x.size());
    const there<std::int32_t> ids_there(ids);
    const there<choice<float>> chosen(tokens * top_k), recorded(tokens * top_k);
    routes(x_there.rows(), {.routes = chosen.span()}, copy.rows());
    rows.send(ids_there.span(), chosen.span(), nullptr).or_throw();
    const auto mixed = rows.receive(nullptr).or_throw();
    with_rows(x_there.rows(), {.per_layer_input = mixed}, y.rows());
    with_pool(x_there.rows(), {.token_ids = ids_there.span(), .routes = recorded.span()}, wanted.rows());
    REQUIRE(with_pool.synchronise().ok());
    REQUIRE(rows.check().ok());
    const auto a = chosen.here(), b = recorded.here();
    for (std::size_t i = 0; i < a.size(); ++i) {
        CHECK(a[i].expert == b[i].expert);
        CHECK(a[i].weight == b[i].weight);
    }
    // A product and a sum per choice and a sum of d squares before a norm, whose result is of size 1.
    const auto here = y.here(), there_wanted = wanted.here();
    for (std::size_t i = 0; i < here.size(); ++i)
        CHECK(std::fabs(here[i] - there_wanted[i]) <=
              (2 * top_k + d) * 0x1p-24f * (1 + std::fabs(there_wanted[i])));
}

TEST_CASE("offloaded_pool: what is wrong is told, with its numbers") {
    const std::vector<float> pool = numbers(experts * vocab * width, 3);
    const tiffin::tensor_view view{pool.data(), tiffin::dtype::f32, {experts, vocab, width}};
    const auto says = [](const auto& outcome, tiffin::errc code, const std::string& where,
                         const std::string& words) {
        REQUIRE_FALSE(outcome.ok());
        CHECK(outcome.failure().code == code);
        CHECK(outcome.failure().where == where);
        CHECK_MESSAGE(outcome.failure().what.find(words) != std::string::npos, outcome.failure().what);
    };
    using pool_type = tiffin::offloaded_pool<>;
    says(pool_type::make(view, 0, 1), tiffin::errc::option, "experts", "is 0");
    says(pool_type::make(view, experts, 0), tiffin::errc::option, "top_k", "is 0");
    says(pool_type::make(view, 4, 1), tiffin::errc::size, "pool", "45 rows for 4 experts");
    says(tiffin::offloaded_pool<tiffin::bf16>::make(view, experts, 1), tiffin::errc::dtype, "pool",
         "is F32; it is mixed as BF16");
    auto rows = pool_type::make(view, experts, top_k, {.tokens = 4}).or_throw();
    const there<std::int32_t> ids(some_ids(5, 1));
    const there<choice<float>> chosen(chosen_of(10, experts, 1));
    says(rows.send(ids.span(), chosen.span(), nullptr), tiffin::errc::size, "routes",
         "are 10; there is room for 4");
    says(rows.send(ids.span().first(3), chosen.span().first(8), nullptr), tiffin::errc::size, "ids",
         "are 3 for 4");
    says(rows.send({}, chosen.span().first(8), nullptr), tiffin::errc::size, "ids", "and 9 ids");
    // An expert that is none: noted on the device, as an id outside a table is.
    std::vector<choice<float>> wrong = chosen_of(2, experts, 1);
    wrong[1].expert = experts;
    const there<choice<float>> wrong_there(wrong);
    rows.send(ids.span().first(1), wrong_there.span(), nullptr).or_throw();
    static_cast<void>(received(rows, nullptr));
    const tiffin::status s = rows.check();
    REQUIRE_FALSE(s.ok());
    CHECK(s.failure().code == tiffin::errc::token_id);
}

}  // namespace cuda_offloaded_pool_test
