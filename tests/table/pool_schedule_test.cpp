// MoRT as its paper deploys it: routes first, then the chosen rows alone, mixed, and applied layers later.
#include <tiffin/table/pool_schedule.hpp>

#include <tiffin/call/prepare.hpp>
#include <tiffin/call/token_router.hpp>
#include <tiffin/cpu/simd/simd.hpp>
#include <tiffin/layers.hpp>
#include <tiffin/reference/reference.hpp>
#include <tiffin/table/row_store.hpp>

#include "support/doctest.hpp"
#include "support/random.hpp"
#include "support/tensor_set.hpp"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <list>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace table_pool_schedule_test {
using namespace tiffin;

namespace {

constexpr std::size_t d = 19, f = 33, vocab = 23, experts = 5, top_k = 2, tokens = 37, backbone = 6;

struct router_of_two : sigmoid_topk_renorm {
    constexpr router_of_two() { top_k = 2; }
};

std::vector<float> numbers(std::size_t n, unsigned seed) {
    std::vector<float> all(n);
    tiffin_test::random_numbers(seed).fill(all, 0.7f);
    return all;
}

// A layer of the stack: its FFN, and its pool in a store that counts what is read.
struct layer_weights {
    std::vector<float> gate, up, down, router, scale, pool;
    std::atomic<std::size_t> rows_read{0};  // by the thread that reads

    explicit layer_weights(unsigned seed)
        : gate(numbers(f * d, seed)),
          up(numbers(f * d, seed + 1)),
          down(numbers(d * f, seed + 2)),
          router(numbers(experts * d, seed + 3)),
          scale(numbers(d, seed + 4)),
          pool(numbers(experts * vocab * d, seed + 5)) {}

    weights ffn(const std::string& prefix) const {
        weights given;
        given.add(prefix + "gate_proj.weight", gate.data(), {f, d});
        given.add(prefix + "up_proj.weight", up.data(), {f, d});
        given.add(prefix + "down_proj.weight", down.data(), {d, f});
        return given;
    }
    [[nodiscard]] auto store() {
        return from_callback({experts * vocab, d, dtype::f32},
                             [this](std::span<const std::int32_t> ids, std::byte* to) -> status {
                                 rows_read += ids.size();
                                 const tensor_view all{pool.data(), dtype::f32, {experts * vocab, d}};
                                 return in_memory::view(all)->read(ids, to);
                             });
    }
};

}  // namespace

TEST_CASE("token_router: what the layer records, to the bit, with a bias and without") {
    const layer_weights w(7);
    const std::vector<float> bias = numbers(experts, 3), x = numbers(tokens * d, 91);
    const std::vector<std::int32_t> ids = tiffin_test::random_ids(tokens, vocab, 5);
    for (const bool biased : {false, true}) {
        weights given = w.ffn("base.");
        given.add("modulators.weight", w.pool.data(), {experts, vocab, d}).add("scale", w.scale.data(), {d});
        given.add("router.weight", w.router.data(), {experts, d});
        if (biased) given.add("router.selection_bias", bias.data(), {experts});
        mort<swiglu> block;
        block.modulator.num_layers = backbone;
        auto layer = prepare(block, given, simd{});
        std::vector<choice<float>> recorded(tokens * top_k), chosen(tokens * top_k);
        std::vector<float> y(tokens * d);
        token_inputs inputs{.token_ids = ids};
        inputs.routes = recorded;
        layer(x, inputs, y);

        auto router = token_router<router_of_two, simd<>>::prepare({}, given, simd{}).or_throw();
        CHECK(router.choices() == top_k);
        router(x, chosen).or_throw();
        const auto same = [&] {
            for (std::size_t i = 0; i < chosen.size(); ++i) {
                CHECK(chosen[i].expert == recorded[i].expert);
                CHECK(chosen[i].weight == recorded[i].weight);
            }
        };
        same();
        // Routes do not go by the format of the weights, here as in a layer.
        auto rounded = token_router<router_of_two, simd<bf16>>::prepare({}, given, simd<bf16>{}).or_throw();
        std::fill(chosen.begin(), chosen.end(), choice<float>{});
        rounded(x, chosen).or_throw();
        same();
    }
}

// Every layer as its paper has it, against the layer with its pool in memory, of the same input.
TEST_CASE("pool_schedule: a stack with its pools in stores gives what one with pools in memory gives") {
    std::list<layer_weights> all;
    for (unsigned l = 0; l < backbone; ++l) all.emplace_back(100 * l);
    const auto has_pool = [](std::size_t l) { return l != 3; };  // one layer has none
    const std::vector<std::int32_t> ids = tiffin_test::random_ids(tokens, vocab, 5);
    constexpr double u = 0x1p-24, largest = 0.7;  // of the weights

    for (const std::size_t delay : {0u, 1u, 2u, 5u}) {
        CAPTURE(delay);
        std::list<decltype(all.front().store())> stores;
        std::vector<row_store_ref> pools;
        std::vector<token_router<router_of_two, reference<>>> routers;
        for (layer_weights& w : all) {
            stores.push_back(w.store());
            pools.emplace_back(stores.back());
            weights router;
            router.add("router.weight", w.router.data(), {experts, d});
            routers.push_back(
                token_router<router_of_two, reference<>>::prepare({}, router, reference<>{}).or_throw());
            w.rows_read = 0;
        }
        auto schedule = pool_schedule::of(pools, experts, delay).or_throw();
        std::vector<float> x, y(tokens * d), plain(tokens * d);
        std::vector<choice<float>> chosen(tokens * top_k);
        std::vector<std::size_t> wanted_rows;
        for (int pass = 0; pass < 2; ++pass) {  // the second must not see the first
            x = numbers(tokens * d, 1);
            schedule.begin();
            wanted_rows.clear();
            std::size_t l = 0;
            std::vector<const layer_weights*> before;
            std::vector<std::vector<float>> added;  // by each layer's pool in memory
            std::vector<std::vector<double>> slack;
            for (const layer_weights& w : all) {
                before.push_back(&w);
                added.emplace_back(tokens * d);
                slack.emplace_back(tokens);
                if (has_pool(l)) {
                    routers[l](x, chosen).or_throw();
                    std::set<std::pair<std::int32_t, std::int32_t>> pairs;
                    for (std::size_t i = 0; i < chosen.size(); ++i)
                        pairs.emplace(chosen[i].expert, ids[i / top_k]);
                    wanted_rows.push_back(pairs.size());
                    schedule.send(l, ids, chosen).or_throw();
                    weights pool;
                    pool.add("modulators.weight", w.pool.data(), {experts, vocab, d});
                    pool.add("scale", w.scale.data(), {d})
                        .add("router.weight", w.router.data(), {experts, d});
                    modulator_pool<> source;
                    source.num_layers = backbone;
                    prepare(source, pool, reference<>{})(x, ids, added.back());
                    // Of a mixed row: two products, a sum, the weights' rounding, and that of the logits, of which
                    // a weight changes by less than twice as much; the weights sum to 1.
                    for (std::size_t t = 0; t < tokens; ++t) {
                        double logit = 0;
                        for (std::size_t i = 0; i < d; ++i)
                            logit += largest * static_cast<double>(std::abs(x[t * d + i]));
                        slack.back()[t] = (4 + 2 * logit) * u * largest * std::sqrt(static_cast<double>(d));
                    }
                } else {
                    wanted_rows.push_back(0);
                    schedule.send_nothing().or_throw();
                }
                const auto mixed = schedule.receive().or_throw();
                CHECK(mixed.rows == (l >= delay && has_pool(l - delay) ? tokens : 0));
                prepare(swiglu{}, w.ffn(""), reference<>{})(x, token_inputs{}, plain);
                y = plain;
                if (mixed.rows > 0) {
                    weights given = w.ffn("base.");
                    given.add("scale", before[l - delay]->scale.data(), {d});
                    mort_given<swiglu> block;
                    block.modulator.num_layers = backbone;
                    token_inputs inputs;
                    inputs.per_layer_input = mixed;
                    prepare(block, given, reference<>{})(x, inputs, y);
                }
                // The norm passes an error on as at most twice its size over the row's; y, plain and what was added are
                // rounded once each.
                double worst = 0;
                for (std::size_t t = 0; t < tokens && mixed.rows > 0; ++t) {
                    double squares = 0;
                    for (std::size_t i = 0; i < d; ++i)
                        squares +=
                            static_cast<double>(mixed.row(t)[i]) * static_cast<double>(mixed.row(t)[i]);
                    const double of_norm =
                        largest / std::sqrt(2.0 * backbone) * 2 * slack[l - delay][t] / std::sqrt(squares);
                    for (std::size_t i = t * d; i < (t + 1) * d; ++i) {
                        const double a = static_cast<double>(plain[i]),
                                     b = static_cast<double>(added[l - delay][i]),
                                     c = static_cast<double>(y[i]);
                        const double bound = of_norm + u * (std::abs(a) + std::abs(b) + std::abs(c));
                        worst = std::max(worst, std::abs(c - (a + b)) / bound);
                    }
                }
                CHECK(worst <= 1);
                for (std::size_t i = 0; i < x.size(); ++i) x[i] += 0.3f * y[i];
                ++l;
            }
        }
        // No more than the rows that were chosen, each once, are read; of the last layers nobody waits for them.
        std::size_t l = 0;
        for (const layer_weights& w : all) {
            if (l + delay < backbone) CHECK(w.rows_read == 2 * wanted_rows[l]);
            CHECK(w.rows_read <= 2 * tokens * top_k);
            ++l;
        }
    }
}

TEST_CASE("pool_schedule: the mixed rows are the formula") {
    layer_weights w(1);
    auto store = w.store();
    auto schedule = pool_schedule::of({store}, experts, 0).or_throw();
    const std::vector<std::int32_t> ids{4, 4, 22, 0};
    std::vector<choice<float>> chosen;
    for (std::size_t t = 0; t < ids.size(); ++t)
        for (std::size_t i = 0; i < 3; ++i)
            chosen.push_back(
                {static_cast<std::int32_t>((t + 2 * i) % experts), 0.25f * static_cast<float>(i + 1)});
    schedule.begin();
    schedule.send(0, ids, chosen).or_throw();
    const auto mixed = schedule.receive().or_throw();
    REQUIRE(mixed.rows == ids.size());
    REQUIRE(mixed.cols == d);
    for (std::size_t t = 0; t < ids.size(); ++t)
        for (std::size_t j = 0; j < d; ++j) {
            double sum = 0, size = 0;
            for (std::size_t i = 0; i < 3; ++i) {
                const choice<float>& c = chosen[3 * t + i];
                const std::size_t row =
                    static_cast<std::size_t>(c.expert) * vocab + static_cast<std::size_t>(ids[t]);
                const double term = static_cast<double>(c.weight) * static_cast<double>(w.pool[row * d + j]);
                sum += term;
                size += std::abs(term);
            }
            CHECK(std::abs(static_cast<double>(mixed.row(t)[j]) - sum) <= 3 * 0x1p-23 * size);
        }
    CHECK(schedule.rows_read() == w.rows_read);
    CHECK(w.rows_read < chosen.size());  // two tokens have the same id, and share experts
}

// A table whose rows are chosen is a pool of one id: what product keys choose is read when it is known.
TEST_CASE("token_router: rows by product keys, read by a schedule") {
    struct three_rows : product_key_memory {
        three_rows() { router.top_k = 3; }
    };
    constexpr std::size_t rows = 25, heads = 2, choices = 3 * heads;
    const three_rows memory;
    const auto tensors = tiffin_test::tensor_set::of(memory, {{d, d, 1, rows, 5}, {}, {}, ~0u, 3});
    const weights given = tensors.given();
    const std::vector<float> x = numbers(tokens * d, 91);
    auto layer = prepare(memory, given, simd{});
    std::vector<choice<float>> recorded(tokens * choices), chosen(tokens * choices);
    std::vector<float> y(tokens * d);
    token_inputs inputs{};
    inputs.routes = recorded;
    layer(x, inputs, y);

    auto router =
        token_router<product_keys, simd<>>::prepare({3}, given, simd{}, {.tokens = tokens}).or_throw();
    REQUIRE(router.choices() == choices);
    router(x, chosen).or_throw();
    for (std::size_t i = 0; i < chosen.size(); ++i) {
        CHECK(chosen[i].expert == recorded[i].expert);
        CHECK(chosen[i].weight == recorded[i].weight);
    }

    const tensor_view values = tensors.view("values.weight");
    std::atomic<std::size_t> read{0};
    const auto store =
        from_callback({rows, d, dtype::f32}, [&](std::span<const std::int32_t> ids, std::byte* to) {
            read += ids.size();
            return in_memory::view(values)->read(ids, to);
        });
    auto schedule = pool_schedule::of({store}, rows, 0).or_throw();
    const std::vector<std::int32_t> one_id(tokens, 0);
    schedule.begin();
    schedule.send(0, one_id, chosen).or_throw();
    const matrix_view<const float> mixed = schedule.receive().or_throw();
    std::set<std::int32_t> distinct;
    for (const choice<float>& one : chosen) distinct.insert(one.expert);
    CHECK(read == distinct.size());
    const auto* const v = static_cast<const float*>(values.data);
    for (std::size_t t = 0; t < tokens; ++t)
        for (std::size_t j = 0; j < d; ++j) {
            double size = 0;
            for (std::size_t i = 0; i < choices; ++i) {
                const choice<float>& one = chosen[t * choices + i];
                size += std::fabs(static_cast<double>(one.weight) *
                                  static_cast<double>(v[static_cast<std::size_t>(one.expert) * d + j]));
            }
            // The same terms in the same order; each of both sums is off by its roundings.
            const double off =
                std::fabs(static_cast<double>(mixed.row(t)[j]) - static_cast<double>(y[t * d + j]));
            CHECK(off <= 2 * (choices + 1) * 0x1p-24 * size);
        }
}

TEST_CASE("pool_schedule and token_router: what is wrong is told, with its numbers") {
    layer_weights w(1);
    auto store = w.store();
    const auto says = [](const auto& r, errc code, const char* text) {
        REQUIRE_FALSE(r.ok());
        CHECK(r.failure().code == code);
        CHECK_MESSAGE(r.failure().message().find(text) != std::string::npos, r.failure().message());
    };
    says(pool_schedule::of({store}, 7, 1), errc::size, "115 rows for 7 experts");
    says(pool_schedule::of({store}, 0, 1), errc::size, "0 experts");
    auto narrow = from_callback({experts * vocab, d - 1, dtype::f32},
                                [](std::span<const std::int32_t>, std::byte*) -> status { return {}; });
    says(pool_schedule::of({store, narrow}, experts, 1), errc::size,
         "number 1 has rows of 18, the first of 19");

    auto schedule = pool_schedule::of({store}, experts, 1).or_throw();
    const std::vector<std::int32_t> ids{1, 2}, beyond{1, 23};
    const std::vector<choice<float>> chosen{{0, 1.0f}, {4, 1.0f}}, no_expert{{0, 1.0f}, {5, 1.0f}};
    schedule.begin();
    says(schedule.receive(), errc::option, "before the layer has sent");
    says(schedule.send(1, ids, chosen), errc::option, "is 1 of 1");
    says(schedule.send(0, beyond, chosen), errc::token_id, "ids[1] = 23");
    says(schedule.send(0, ids, no_expert), errc::option, "choices[1]: is expert 5 of 5");
    says(schedule.send(0, ids, std::span(chosen).first(1)), errc::size, "1 for 2 tokens");
    schedule.send(0, ids, chosen).or_throw();
    says(schedule.send(0, ids, chosen), errc::option, "twice by one layer");
    CHECK(schedule.receive().or_throw().rows == 0);
    schedule.send_nothing().or_throw();
    CHECK(schedule.receive().or_throw().rows == 2);
    // A store that fails: told where its rows were to arrive.
    auto gone = from_callback({experts * vocab, d, dtype::f32},
                              [](std::span<const std::int32_t>, std::byte*) -> status {
                                  return failure(errc::file, "pool.bin", "is gone");
                              });
    auto failing = pool_schedule::of({gone}, experts, 0).or_throw();
    failing.begin();
    failing.send(0, ids, chosen).or_throw();
    says(failing.receive(), errc::file, "pool.bin: is gone");

    weights none;
    says(token_router<router_of_two, simd<>>::prepare({}, none, simd{}), errc::missing_tensor,
         "router.weight");
    weights given;
    given.add("router.weight", w.router.data(), {1, d});
    says(token_router<router_of_two, simd<>>::prepare({}, given, simd{}), errc::option, "is 2; there are 1");
    weights with_bias;
    with_bias.add("router.weight", w.router.data(), {experts, d});
    with_bias.add("router.selection_bias", w.router.data(), {experts + 1});
    says(token_router<router_of_two, simd<>>::prepare({}, with_bias, simd{}), errc::shape,
         "must be experts = 5");
    weights good;
    good.add("router.weight", w.router.data(), {experts, d});
    auto router = token_router<router_of_two, simd<>>::prepare({}, good, simd{}, {.tokens = 4}).or_throw();
    std::vector<choice<float>> room(10);
    says(router(std::span<const float>(w.gate).first(5 * d), room), errc::size, "prepared for 4");
    says(router(std::span<const float>(w.gate).first(4 * d), room), errc::size, "has room for 10");
}

}  // namespace table_pool_schedule_test
