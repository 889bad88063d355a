// Rows by the last ids: the two published hashes against their formulas in wider arithmetic, many sequences in one call,
// what is taken back, and what is wrong.
#include <tiffin/table/ngram_addresses.hpp>

#include <tiffin/call/prepare.hpp>
#include <tiffin/cpu/simd/simd.hpp>
#include <tiffin/layers.hpp>
#include <tiffin/table/prefetched_rows.hpp>
#include <tiffin/table/row_store.hpp>

#include "support/doctest.hpp"
#include "support/random.hpp"
#include "support/tensor_set.hpp"

#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <utility>
#include <vector>

namespace table_ngram_addresses_test {
using namespace tiffin;

namespace {

using ids_type = std::vector<std::int32_t>;
__extension__ typedef __int128 wide;

constexpr std::int32_t end_of_sequence = 7;

ids_type random_text(std::size_t n, std::size_t vocab, unsigned seed) {
    return tiffin_test::random_ids(n, vocab, seed);
}

// The id k places before place t of one sequence, or none; after `end` nothing older counts.
std::int32_t at(const ids_type& text, std::size_t t, std::size_t k, std::int32_t end) {
    for (std::size_t j = 1; j < k; ++j)
        if (j <= t && end >= 0 && text[t - j] == end) return ngram_history::none;
    return k <= t ? text[t - k] : ngram_history::none;
}

// A number of 64 bits with the sign that its bits say, by arithmetic alone.
wide signed_64(wide v) {
    const wide two_64 = wide{1} << 64;
    v = (v % two_64 + two_64) % two_64;
    return v >= two_64 / 2 ? v - two_64 : v;
}
wide by_bits(wide a, wide b) {  // xor of two numbers of 64 bits
    wide result = 0;
    const wide two_64 = wide{1} << 64;
    a = (a + two_64) % two_64;
    b = (b + two_64) % two_64;
    for (int i = 0; i < 64; ++i)
        if ((a >> i) % 2 != (b >> i) % 2) result += wide{1} << i;
    return signed_64(result);
}
std::int32_t engram_row(const engram_hash& h, const ids_type& text, std::size_t t, std::size_t n,
                        std::int64_t prime, std::int32_t end) {
    wide mix = 0;
    for (std::size_t k = 0; k < n; ++k) {
        const std::int32_t id = k == 0 ? text[t] : at(text, t, k, end);
        const wide c = id == ngram_history::none ? h.pad : h.compressed[static_cast<std::size_t>(id)];
        mix = by_bits(mix, signed_64(c * wide{h.multipliers[k]}));
    }
    if (h.unsigned_remainder && mix < 0) mix += wide{1} << 64;
    return static_cast<std::int32_t>((mix % prime + prime) % prime);
}

engram_hash some_hash(std::size_t vocab, bool large) {
    engram_hash h;
    for (std::size_t i = 0; i < vocab; ++i) h.compressed.push_back(static_cast<std::int32_t>(i * 5 % 17));
    const std::int64_t m = large ? 0x7FFF'FFFF'FFFF'FFF1 : 0x0123'4567'89AB'CDEF / 17;
    h.multipliers = {m, m / 3 * 2 + 1, m / 5 + 4};
    h.primes = {{97, 101}, {103, 107}};
    h.pad = 3;
    h.may_wrap = large;
    return h;
}

template <class Hash>
std::vector<ids_type> rows_of(const ngram_addresses<Hash>& address, const ids_type& text, std::size_t step) {
    std::vector<ngram_history> past(1, ngram_history(address.order()));
    std::vector<ids_type> rows(address.tables());
    for (std::size_t t = 0; t < text.size(); t += step) {
        const ids_type now(text.begin() + static_cast<std::ptrdiff_t>(t),
                           text.begin() + static_cast<std::ptrdiff_t>(std::min(text.size(), t + step)));
        ids_type got(now.size() * address.tables());
        address(now, std::vector<std::uint32_t>(now.size()), past, got).or_throw();
        for (std::size_t i = 0; i < rows.size(); ++i)
            rows[i].insert(rows[i].end(), got.begin() + static_cast<std::ptrdiff_t>(i * now.size()),
                           got.begin() + static_cast<std::ptrdiff_t>((i + 1) * now.size()));
    }
    return rows;
}

}  // namespace

TEST_CASE("engram_hash: the formula, signed and unsigned, where products overflow and where not") {
    constexpr std::size_t vocab = 29;
    const ids_type text = random_text(150, vocab, 3);
    for (const bool large : {false, true})
        for (const std::int32_t end : {ngram_history::none, end_of_sequence}) {
            engram_hash h = some_hash(vocab, large);
            std::vector<std::vector<ids_type>> both;
            for (const bool without_sign : {false, true}) {
                CAPTURE(large);
                CAPTURE(end);
                h.unsigned_remainder = without_sign;
                const auto address = ngram_addresses<engram_hash>::of(h, end).or_throw();
                REQUIRE(address.tables() == 4);
                CHECK(address.rows(2) == 103);
                const auto rows = rows_of(address, text, text.size());
                for (std::size_t t = 0; t < text.size(); ++t)
                    for (std::size_t i = 0; i < 4; ++i)
                        CHECK(rows[i][t] == engram_row(h, text, t, 2 + i / 2, h.primes[i / 2][i % 2], end));
                CHECK(rows_of(address, text, 1) == rows);
                CHECK(rows_of(address, text, 7) == rows);
                both.push_back(rows);
            }
            CHECK((both[0] == both[1]) == !large);  // they differ where a product overflows, and there alone
        }
}

TEST_CASE(
    "engram_hash, ids as they are, all heads in one table: the formula; what is missing reads the pad") {
    const engram_hash h{.compressed = {},
                        .multipliers = {0x1234567890ABC, 0x7FEDCBA98765, 0x3141592653589},
                        .primes = {{101, 103}, {107, 109}},
                        .pad = end_of_sequence,
                        .ids = 83,
                        .offsets = {0, 101, 204, 311}};
    ids_type text = random_text(90, 83, 4);
    for (const std::size_t t : {0u, 5u, 6u, 20u, 22u}) text[t] = end_of_sequence;
    const auto address = ngram_addresses<engram_hash>::of(h, h.pad).or_throw();
    REQUIRE(address.tables() == 4);
    CHECK(address.rows(3) == 420);
    const auto rows = rows_of(address, text, 13);
    for (std::size_t i = 0; i < 4; ++i)
        for (std::size_t t = 0; t < text.size(); ++t) {
            // As in llama.cpp's qwen4exp: an end of a sequence in the window resets it and everything before it.
            wide mix = static_cast<wide>(text[t]) * h.multipliers[0];
            bool cut = false;
            for (std::size_t k = 1; k < 2 + i / 2; ++k) {
                cut = cut || t < k || text[t - k] == end_of_sequence;
                mix ^= static_cast<wide>(cut ? end_of_sequence : text[t - k]) * h.multipliers[k];
            }
            CHECK(rows[i][t] == static_cast<std::int32_t>(mix % h.primes[i / 2][i % 2] + h.offsets[i]));
        }
    const auto why = [&](auto change) {
        engram_hash other = h;
        change(other);
        return ngram_addresses<engram_hash>::of(other, h.pad).failure().message();
    };
    CHECK(why([](engram_hash& o) { o.multipliers[2] = std::int64_t{1} << 60; }) ==
          "multipliers[2]: is 1152921504606846976; times the compressed id 82 it overflows 63 bits");
    CHECK(why([](engram_hash& o) { o.multipliers[1] = -3; }) ==
          "multipliers[1]: is -3; times the compressed id 82 it overflows 63 bits");
    CHECK(why([](engram_hash& o) { o.primes[1][1] = 0; }) == "primes: of 3 ids have 0 among them");
    CHECK(why([](engram_hash& o) { o.offsets[1] = -1; }) == "offsets[1]: is -1");
    CHECK(why([](engram_hash& o) { o.offsets.pop_back(); }) == "offsets: are 3 for 4 primes");
    CHECK(why([](engram_hash& o) { o.offsets[0] = std::int64_t{1} << 31; }) ==
          "table 0: has 2147483749 rows; 1 to 2^31 - 1 can be addressed");
    CHECK(why([](engram_hash& o) { o.offsets[2] = std::numeric_limits<std::int64_t>::max(); }) ==
          "table 2: has 9223372036854775807 rows; 1 to 2^31 - 1 can be addressed");
}

TEST_CASE(
    "longcat_hash: the formula, and an id that ends a sequence, which counts no more than what is older") {
    const longcat_hash h{.ids = 83, .ratio = 3, .longest = 4, .per_length = 2};
    ids_type text = random_text(90, 83, 4);
    for (const std::size_t t : {0u, 5u, 6u, 20u, 22u}) text[t] = end_of_sequence;
    for (const std::int32_t end : {ngram_history::none, end_of_sequence}) {
        CAPTURE(end);
        const auto address = ngram_addresses<longcat_hash>::of(h, end).or_throw();
        REQUIRE(address.tables() == 6);
        const auto rows = rows_of(address, text, 13);
        for (std::size_t i = 0; i < 6; ++i) {
            const wide m = 3 * 83 + 2 * static_cast<wide>(i) + 1;
            CHECK(static_cast<wide>(address.rows(i)) == m);
            for (std::size_t t = 0; t < text.size(); ++t) {
                wide sum = text[t];
                for (std::size_t k = 1; k < 2 + i / 2; ++k) {
                    wide power = 1;
                    for (std::size_t j = 0; j < k; ++j) power *= 83;
                    const std::int32_t id = at(text, t, k, end);
                    if (id >= 0 && id != end) sum += id * (power % m);
                }
                CHECK(rows[i][t] == static_cast<std::int32_t>(sum % m));
            }
        }
    }
    // The token that ends a sequence sees those before it, those behind it do not see it.
    const auto two = ngram_addresses<longcat_hash>::of({.ids = 10, .ratio = 1, .longest = 2}, 7).or_throw();
    CHECK(rows_of(two, {3, 7, 5}, 3)[0] == ids_type{3, (7 + 3 * 10) % 11, 5});
    const engram_hash sums{{0, 1, 2, 3, 4, 5, 6, 7}, {1, 8}, {{64}}, 2};
    const auto counts = ngram_addresses<engram_hash>::of(sums, 7).or_throw();
    CHECK(rows_of(counts, {3, 7, 5}, 3)[0] == ids_type{3 ^ 2 * 8, 7 ^ 3 * 8, 5 ^ 7 * 8});
    // V^3 has more than 63 bits here, V^k mod M has not.
    const longcat_hash wide_one{.ids = 1u << 30, .ratio = 1, .longest = 4, .per_length = 1};
    const auto of_wide = ngram_addresses<longcat_hash>::of(wide_one).or_throw();
    const ids_type four{(1 << 30) - 1, 12345, (1 << 30) - 7, 99};
    const auto wide_rows = rows_of(of_wide, four, 4);
    const wide m = (wide{1} << 30) + 5, v = wide{1} << 30;
    const wide sum = 99 + four[2] * (v % m) + four[1] * (v * v % m) + four[0] * (v * v % m * v % m);
    CHECK(wide_rows[2][3] == static_cast<std::int32_t>(sum % m));
}

TEST_CASE("ngram_addresses: many sequences in one call, taken back and begun again") {
    constexpr std::size_t vocab = 29, sequences = 3;
    const auto address =
        ngram_addresses<engram_hash>::of(some_hash(vocab, false), end_of_sequence).or_throw();
    std::vector<ids_type> texts;
    for (unsigned s = 0; s < sequences; ++s) texts.push_back(random_text(60, vocab, 10 + s));
    std::vector<ngram_history> past(sequences, ngram_history(address.order(), 5));
    std::vector<std::size_t> done(sequences, 0);
    tiffin_test::random_numbers random(8);
    const auto call = [&](const std::vector<std::uint32_t>& of, const ids_type& ids) {
        ids_type rows(ids.size() * address.tables());
        address(ids, of, past, rows).or_throw();
        return rows;
    };
    for (int turn = 0; turn < 12; ++turn) {
        // Some tokens of each sequence, one sequence's among the others'; then some that are rejected.
        std::vector<std::uint32_t> of;
        ids_type ids;
        std::vector<std::pair<std::size_t, std::size_t>> places;
        for (std::size_t i = 0; i < 11; ++i) {
            const std::size_t s = (i * 7 + static_cast<std::size_t>(turn)) % sequences;
            if (done[s] == texts[s].size()) continue;
            of.push_back(static_cast<std::uint32_t>(s));
            ids.push_back(texts[s][done[s]]);
            places.emplace_back(s, done[s]++);
        }
        const ids_type rows = call(of, ids);
        for (std::size_t i = 0; i < ids.size(); ++i) {
            const auto [s, t] = places[i];
            for (std::size_t table = 0; table < 4; ++table)
                CHECK(rows[table * ids.size() + i] ==
                      engram_row(some_hash(vocab, false), texts[s], t, 2 + table / 2,
                                 some_hash(vocab, false).primes[table / 2][table % 2], end_of_sequence));
        }
        const std::size_t rejected = static_cast<std::size_t>(turn) % 6;
        call(std::vector<std::uint32_t>(rejected, 1), random_text(rejected, vocab, 77));
        CHECK(past[1].undo(rejected).ok());
        CHECK(past[1].length() == done[1]);
    }
    past[2].reset();
    const ids_type fresh = call({2}, {11});
    CHECK(fresh[0] == engram_row(some_hash(vocab, false), {11}, 0, 2, 97, end_of_sequence));

    ngram_history one(3, 2);
    for (std::int32_t i = 0; i < 40; ++i) one.add(i);
    CHECK(one.undo(2).ok());
    CHECK(one.before(1) == 37);
    CHECK(one.before(2) == 36);
    std::size_t more = 0;  // as far as it can still tell what came before
    while (one.undo(1).ok()) ++more;
    CHECK(one.length() == 38 - more);
    CHECK(one.before(2) == static_cast<std::int32_t>(36 - more));
    const status s = one.undo(1);
    CHECK(s.failure().message().find("can undo 0 of its") != std::string::npos);
}

// A layer reads rows by their addresses as it reads rows by token ids.
TEST_CASE("ngram_addresses: stores and layers take the addresses") {
    constexpr std::size_t vocab = 29, d = 12, f = 20, tokens = 9;
    const longcat_hash h{.ids = vocab, .ratio = 2, .longest = 2, .per_length = 1};
    const auto address = ngram_addresses<longcat_hash>::of(h).or_throw();
    const std::size_t rows = address.rows(0);
    std::vector<float> gate(f * d), down(d * f), table(rows * f);
    tiffin_test::random_numbers random(2);
    random.fill(gate, 0.5f), random.fill(down, 0.5f), random.fill(table, 0.5f);
    const ids_type text = random_text(tokens, vocab, 6);
    std::vector<ngram_history> past(1, ngram_history(address.order()));
    ids_type at_rows(tokens);
    address(text, std::vector<std::uint32_t>(tokens), past, at_rows).or_throw();

    weights given, gathered;
    for (weights* w : {&given, &gathered})
        w->add("gate_proj.weight", gate.data(), {f, d}).add("down_proj.weight", down.data(), {d, f});
    given.add("stem_embed.weight", table.data(), {rows, f});
    gathered.add_gathered("stem_embed.weight", dtype::f32, {rows, f});
    const std::vector<float> x = tiffin_test::random_rows(tokens, d, 3);
    std::vector<float> y(tokens * d), wanted(tokens * d);
    prepare(stem{}, given, simd{})(x, at_rows, wanted);
    const in_memory store = in_memory::view({table.data(), dtype::f32, {rows, f}}).or_throw();
    prefetched_rows ahead(store);
    ahead.prefetch(at_rows).or_throw();
    const gathered_rows now = ahead.gather(at_rows).or_throw();
    prepare(stem{}, gathered, simd{})(x, token_inputs{.token_ids = text, .gathered = {&now, 1}}, y);
    CHECK(y == wanted);
}

TEST_CASE("ngram_addresses: what is wrong is told before anything changes") {
    const auto says = [](const auto& r, errc code, const char* text) {
        REQUIRE_FALSE(r.ok());
        CHECK(r.failure().code == code);
        CHECK_MESSAGE(r.failure().message().find(text) != std::string::npos, r.failure().message());
    };
    using addresses = ngram_addresses<engram_hash>;
    engram_hash h = some_hash(29, true);
    h.may_wrap = false;
    says(addresses::of(h), errc::option,
         "multipliers[0]: is 9223372036854775793; times the compressed id 16 it overflows");
    h = some_hash(29, false);
    h.primes[1][0] = 0;
    says(addresses::of(h), errc::option, "primes: of 3 ids have 0 among them");
    h.primes[1][0] = std::int64_t{1} << 31;
    says(addresses::of(h), errc::option, "2147483648 rows; 1 to 2^31 - 1");
    h = some_hash(29, false);
    h.primes.pop_back();
    says(addresses::of(h), errc::size, "of 1 lengths for 3 multipliers");
    h = some_hash(29, false);
    h.compressed[4] = -2;
    says(addresses::of(h), errc::option, "compressed[4]: is -2");
    says(ngram_addresses<longcat_hash>::of({.ids = 1u << 31, .ratio = 4}), errc::option, "8589934593 rows");
    says(ngram_addresses<longcat_hash>::of({.ids = 5, .longest = 40}), errc::size, "by 40 ids");

    const auto address = addresses::of(some_hash(29, false)).or_throw();
    std::vector<ngram_history> past(2, ngram_history(3)), of_two(2, ngram_history(2));
    ids_type rows(8, -5);
    const ids_type ids{1, 2}, beyond{1, 29};
    says(address(beyond, std::vector<std::uint32_t>{0, 1}, past, rows), errc::token_id, "ids[1] = 29");
    says(address(ids, std::vector<std::uint32_t>{0, 2}, past, rows), errc::size,
         "is 2; there are 2 histories");
    says(address(ids, std::vector<std::uint32_t>{0}, past, rows), errc::size, "are 1 for 2 ids");
    says(address(ids, std::vector<std::uint32_t>{0, 1}, of_two, rows), errc::size,
         "for 2 at a time; the addresses are of 3");
    says(address(ids, std::vector<std::uint32_t>{0, 1}, past, std::span(rows).first(7)), errc::size,
         "have room for 7");
    CHECK(rows == ids_type(8, -5));
    CHECK(past[0].length() + past[1].length() == 0);
}

}  // namespace table_ngram_addresses_test
