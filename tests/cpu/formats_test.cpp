// Weights and tables in every number format: a layer gives, to the bit, what `simd<>` gives with the widened
// numbers; and what cannot be kept in a format is refused by name.
#include <tiffin/call/prepare.hpp>
#include <tiffin/cpu/eigen/eigen.hpp>
#include <tiffin/cpu/simd/simd.hpp>
#include <tiffin/executor/openmp.hpp>
#include <tiffin/layers.hpp>
#include <tiffin/reference/reference.hpp>

#include "support/doctest.hpp"
#include "support/policies.hpp"
#include "support/random.hpp"
#include "support/stored_blocks.hpp"
#include "support/tensor_set.hpp"

#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <limits>
#include <list>
#include <string>
#include <vector>

namespace cpu_formats_test {
using namespace tiffin;
using tiffin_test::random_ids;
using tiffin_test::random_rows;

namespace {

// A format of the test's own: blocks of 8, a float and bytes.
struct tenths {
    struct storage {
        float scale;
        std::array<std::int8_t, 8> values;
    };
    static constexpr std::size_t block = 8;
    static constexpr float largest = 1e30f;
    static void encode(const float* numbers, storage& to) noexcept {
        float most = 0;
        for (std::size_t i = 0; i < block; ++i) most = std::fmax(most, std::fabs(numbers[i]));
        to.scale = most / 10;
        for (std::size_t i = 0; i < block; ++i)
            to.values[i] = static_cast<std::int8_t>(most > 0 ? std::round(numbers[i] / to.scale) : 0.0f);
    }
    static void decode(const storage& from, float* numbers) noexcept {
        for (std::size_t i = 0; i < block; ++i) numbers[i] = from.scale * static_cast<float>(from.values[i]);
    }
};

// Numbers as a format stores them, and what they are then.
struct rounded {
    std::vector<std::byte> stored;
    std::vector<float> widened;

    template <class Format>
    rounded(const std::vector<float>& numbers, Format) : widened(numbers) {
        stored.resize(numbers.size() / Format::block * sizeof(typename Format::storage));
        typename Format::storage block;
        for (std::size_t i = 0; i < numbers.size(); i += Format::block) {
            Format::encode(numbers.data() + i, block);
            Format::decode(block, widened.data() + i);
            std::memcpy(stored.data() + i / Format::block * sizeof block, &block, sizeof block);
        }
    }
};

// Whether a layer may be given these weights in another format than f32; routers keep theirs.
bool takes_a_format(tensor_kind kind) {
    return kind == tensor_kind::projection || kind == tensor_kind::low_rank_in;
}
bool is_table(tensor_kind kind) {
    return kind == tensor_kind::table || kind == tensor_kind::pool;
}

// A layer's tensors three times: as they are, stored in the formats, and widened from that.
struct three_forms {
    std::list<std::vector<float>> numbers;
    std::list<std::vector<std::byte>> bytes;
    weights plain, stored, widened;

    template <class Block>
    three_forms(const Block& block, const block_shape& sizes, dtype weight, dtype table) {
        tiffin_test::random_numbers random(11);
        for (const auto& [name, t] : tensors_needed(block, sizes)) {
            const tensor_kind kind = t.kind;
            std::vector<float>& own = numbers.emplace_back(t.shape.elements());
            random.fill(own, takes_a_format(kind) ? 0.3f : 1.0f);
            plain.add(name, own.data(), t.shape);
            const dtype type = takes_a_format(kind) ? weight : is_table(kind) ? table : dtype::f32;
            const auto& kept =
                bytes.emplace_back(tiffin_test::stored_blocks(type, own.data(), own.size(), 9));
            stored.add(name, {kept.data(), type, t.shape});
            std::vector<float>& read = numbers.emplace_back(own.size());
            read_as_f32(kept.data(), type, 0, read.size(), read.data());
            widened.add(name, read.data(), t.shape);
        }
    }
};

constexpr std::size_t vocab = 37;

template <class Block, class Backend>
std::vector<float> run(const weights& given, const Backend& backend, std::size_t tokens, std::size_t d) {
    auto layer = prepare<Block>(given, backend);
    std::vector<float> y(tokens * d);
    layer(random_rows(tokens, d, 5), random_ids(tokens, vocab, 7), y, openmp{2});
    return y;
}

template <class Block>
void check(dtype weight, dtype table, const block_shape& sizes) {
    CAPTURE(name_of(weight));
    CAPTURE(name_of(table));
    const three_forms forms(Block{}, sizes, weight, table);
    const simd<any_format, any_format, f32> chosen{{weight}, {table}, {}};
    const std::size_t d = sizes.d_model;
    // 1 and 3 tokens run within registers, 150 over weights widened before.
    for (const std::size_t tokens : {1u, 3u, 150u}) {
        CAPTURE(tokens);
        const std::vector<float> wanted = run<Block>(forms.widened, simd<>{}, tokens, d);
        CHECK(run<Block>(forms.plain, chosen, tokens, d) == wanted);
        CHECK(run<Block>(forms.stored, chosen, tokens, d) == wanted);
        CHECK(run<Block>(forms.stored, simd<>{}, tokens, d) == wanted);
    }
}

// All formats, of weights and of tables.
template <class Block>
void check_all() {
    constexpr block_shape sizes{
        .d_model = 96, .d_ff = 288, .vocab = vocab, .experts = 3, .rank = 5, .inner = {96, 64}, .choices = 2};
    constexpr dtype of_weights[] = {dtype::f32,  dtype::bf16, dtype::f16,
                                    dtype::q8_0, dtype::q4_0, dtype::q4_1},
                    of_tables[] = {dtype::f32, dtype::q8_0, dtype::q4_0, dtype::q4_1, dtype::f16};
#if defined(TIFFIN_TEST_SMALL)
    for (std::size_t i = 0; i < std::size(of_weights); ++i)
        check<Block>(of_weights[i], of_tables[i % std::size(of_tables)], sizes);
#else
    for (const dtype weight : of_weights)
        for (const dtype table : of_tables) check<Block>(weight, table, sizes);
#endif
}

}  // namespace

TEST_CASE("formats: stem and its kin") {
    check_all<stem>();
#if !defined(TIFFIN_TEST_SMALL)
    check_all<ffn<gate<silu, token_embedding>, sum<dense, named<token_embedding, "second">>>>();
#endif
}
TEST_CASE("formats: banks, memories, modulators") {
    check_all<structmoe>();
#if !defined(TIFFIN_TEST_SMALL)
    check_all<meki_training>();
    check_all<tiffin_test::mort_of_three<mlp>>();
#endif
}
TEST_CASE("formats: mixtures") {
    check_all<moe<stem>>();
}
TEST_CASE("formats: chosen by type, the test's own among them") {
    constexpr block_shape sizes{.d_model = 64, .d_ff = 96, .vocab = vocab};
    const three_forms forms(stem{}, sizes, dtype::bf16, dtype::q8_0);
    CHECK(run<stem>(forms.plain, simd<bf16, q8_0, f32>{}, 20, 64) ==
          run<stem>(forms.widened, simd<>{}, 20, 64));

    std::list<rounded> memory;
    weights widened;
    for (const weights::entry& e : forms.plain.entries()) {
        const auto* const numbers = static_cast<const float*>(e.tensor.data);
        const std::vector<float> own(numbers, numbers + e.tensor.shape.elements());
        const bool exact = e.name.ends_with("bias");
        widened.add(
            e.name,
            (exact ? memory.emplace_back(own, f32{}) : memory.emplace_back(own, tenths{})).widened.data(),
            e.tensor.shape);
    }
    for (const std::size_t tokens : {1u, 20u, 150u})
        CHECK(run<stem>(forms.plain, simd<tenths, tenths>{}, tokens, 64) ==
              run<stem>(widened, simd<>{}, tokens, 64));
}
TEST_CASE("formats: 16 bits at odd widths") {
    constexpr block_shape odd{.d_model = 259, .d_ff = 77, .vocab = vocab};
    check<stem_hybrid>(dtype::bf16, dtype::f16, odd);
    check<stem_hybrid>(dtype::f16, dtype::bf16, odd);
}

// The other backends widen as well.
TEST_CASE("formats: given blocks on reference and eigen") {
    constexpr block_shape sizes{.d_model = 64, .d_ff = 96, .vocab = vocab};
    const three_forms forms(stem_hybrid{}, sizes, dtype::q4_0, dtype::q8_0);
    CHECK(run<stem_hybrid>(forms.stored, reference{}, 5, 64) ==
          run<stem_hybrid>(forms.widened, reference{}, 5, 64));
    CHECK(run<stem_hybrid>(forms.stored, eigen{}, 5, 64) == run<stem_hybrid>(forms.widened, eigen{}, 5, 64));
}

// Tables in every format, with nothing rounded: rows of two blocks of the widest.
TEST_CASE_TEMPLATE("formats: given tables on every backend", Block, stem_hybrid,
                   tiffin_test::mort_of_three<mlp>) {
    constexpr block_shape sizes{.d_model = 512, .d_ff = 512, .vocab = vocab, .experts = 3};
    for (const dtype table : tiffin_test::row_formats) {
        CAPTURE(name_of(table));
        const three_forms forms(Block{}, sizes, dtype::f32, table);
        const simd<f32, any_format> as_given{{}, kept_as_given};
        CHECK(run<Block>(forms.stored, as_given, 3, 512) == run<Block>(forms.widened, simd<>{}, 3, 512));
        CHECK(run<Block>(forms.stored, eigen{}, 3, 512) == run<Block>(forms.widened, eigen{}, 3, 512));
        CHECK(run<Block>(forms.stored, reference<>{}, 1, 512) ==
              run<Block>(forms.widened, reference<>{}, 1, 512));
    }
}

// A table in the format of the backend is read where it lies.
TEST_CASE("formats: a given table of blocks is not copied") {
    constexpr block_shape sizes{.d_model = 64, .d_ff = 96, .vocab = vocab};
    three_forms forms(stem{}, sizes, dtype::q8_0, dtype::q8_0);
    auto layer = prepare<stem>(forms.stored, simd<q8_0, q8_0>{});
    std::vector<float> before(64), after(64);
    const std::vector<float> x = random_rows(1, 64, 5);
    const std::vector<std::int32_t> id{7};
    layer(x, id, before);
    for (const weights::entry& e : forms.stored.entries())
        if (e.name == "stem_embed.weight") {
            auto* const row =
                const_cast<std::byte*>(static_cast<const std::byte*>(e.tensor.data)) + 7 * 96 / 32 * 34;
            std::memset(row, 0, 96 / 32 * 34);
        }
    layer(x, id, after);
    CHECK(before != after);
}

namespace {

template <class Backend>
void refuses(const weights& given, const Backend& backend, errc code, const std::string& where,
             std::initializer_list<std::string> words) {
    const auto made = try_prepare<stem>(given, backend);
    REQUIRE_FALSE(made.ok());
    CHECK(made.failure().code == code);
    CHECK(made.failure().where == where);
    for (const std::string& word : words) {
        CAPTURE(made.failure().what);
        CHECK(made.failure().what.find(word) != std::string::npos);
    }
}

}  // namespace

TEST_CASE("formats: what a format cannot hold") {
    const three_forms odd(stem{}, {.d_model = 64, .d_ff = 90, .vocab = vocab}, dtype::f32, dtype::f32);
    refuses(odd.plain, simd<f32, q8_0>{}, errc::shape, "stem_embed.weight", {"(37, 90)", "Q8_0", "32"});
    refuses(odd.plain, simd<q4_0>{}, errc::shape, "down_proj.weight", {"(64, 90)", "Q4_0", "32"});
    CHECK(try_prepare<stem>(odd.plain, simd<bf16, f16>{}).ok());

    three_forms forms(stem{}, {.d_model = 64, .d_ff = 96, .vocab = vocab}, dtype::q8_0, dtype::q4_0);
    const auto with = [&](float v, const auto& then) {
        float& number = forms.numbers.front()[70];
        const float before = number;
        number = v;
        then();
        number = before;
    };
    const std::string first = forms.plain.entries()[0].name;
    const float nan = std::numeric_limits<float>::quiet_NaN(), inf = std::numeric_limits<float>::infinity();
    with(1e5f, [&] {
        refuses(forms.plain, simd<f16, f16>{}, errc::value, first, {"number 70", "100000", "F16", "65504"});
        CHECK(try_prepare<stem>(forms.plain, simd<q8_0, q4_0>{}).ok());
        CHECK(try_prepare<stem>(forms.plain, simd<bf16, bf16>{}).ok());
    });
    with(nan, [&] {
        refuses(forms.plain, simd<q8_0, q4_0>{}, errc::value, first, {"number 70", "NaN", "Q8_0"});
        CHECK(try_prepare<stem>(forms.plain, simd<f16, f16>{}).ok());  // which have NaN and infinities
    });
    with(inf, [&] {
        refuses(forms.plain, simd<q4_0, q4_0>{}, errc::value, first, {"number 70", "inf", "Q4_0"});
        CHECK(try_prepare<stem>(forms.plain, simd<f16, f16>{}).ok());
    });
    with(-1e7f, [&] {
        refuses(forms.plain, simd<q8_0, q8_0>{}, errc::value, first, {"number 70", "-10000000"});
    });

    // Given blocks: a scale that is none is refused, whatever the backend keeps; zero means zeros.
    std::vector<std::byte>& blocks = forms.bytes.front();
    const std::byte low = blocks[34], high = blocks[35];
    const auto scale = [&](std::uint16_t bits) { std::memcpy(blocks.data() + 34, &bits, sizeof bits); };
    scale(0x7C00);
    refuses(forms.stored, simd<>{}, errc::value, first, {"block 1", "from 32 on", "infinite"});
    refuses(forms.stored, simd<q8_0, q4_0>{}, errc::value, first, {"block 1", "infinite"});
    scale(0xFE01);
    refuses(forms.stored, reference{}, errc::value, first, {"block 1", "NaN"});
    scale(0);
    CHECK(try_prepare<stem>(forms.stored, simd<q8_0, q4_0>{}).ok());
    blocks[34] = low;
    blocks[35] = high;
    weights cut;
    for (const weights::entry& e : forms.stored.entries())
        cut.add(e.name, e.name == first ? tensor_view{e.tensor.data, dtype::q8_0, {96, 40}} : e.tensor);
    const auto made = try_prepare<stem>(cut, simd<>{});
    REQUIRE_FALSE(made.ok());
    CHECK(made.failure().code == errc::shape);
}

}  // namespace cpu_formats_test
