// Side files: the blocks that they put around a model's, and what is wrong with them.
#include <tiffin/io/side_file.hpp>

#include <tiffin/cpu/simd/simd.hpp>
#include <tiffin/io/safetensors_writer.hpp>
#include <tiffin/layers.hpp>
#include <tiffin/reference/reference.hpp>

#include "support/doctest.hpp"
#include "support/random.hpp"
#include "support/scratch_folder.hpp"
#include "support/tensor_set.hpp"

#include <cstddef>
#include <cstdint>
#include <set>
#include <string>
#include <variant>
#include <vector>

namespace io_side_file_test {
using namespace tiffin;
using tiffin_test::random_rows;

namespace {

constexpr std::size_t d = 12, f = 20, vocab = 7, tokens = 5;

struct own_block {
    std::vector<float> gate = random_rows(f, d, 1), up = random_rows(f, d, 2), down = random_rows(d, f, 3);
    io::described_layer layer{{{"block", "glu"}, {"activation", "silu"}}, {}, {}};

    own_block() {
        layer.tensors.add("gate_proj.weight", gate.data(), {f, d})
            .add("up_proj.weight", up.data(), {f, d})
            .add("down_proj.weight", down.data(), {d, f});
    }
};

std::vector<float> rows_of(const result<any_layer>& layer) {
    INFO((layer.ok() ? "" : layer.failure().message()));
    REQUIRE(layer.ok());
    const std::vector<float> x = random_rows(tokens, d, 9);
    const std::vector<std::int32_t> ids{3, 0, 6, 6, 1};
    std::vector<float> y(x.size());
    workspace memory = layer->make_workspace(tokens, 1);
    REQUIRE(layer->try_call(x, ids, y, memory).ok());
    return y;
}

}  // namespace

TEST_CASE("side file: the model's block modulated, beside a memory, and with a table among its weights") {
    const tiffin_test::scratch_folder folder;
    const own_block own;
    const std::vector<float> modulators = random_rows(vocab, d, 4), scale = random_rows(1, d, 5),
                             table = random_rows(vocab, f, 6);
    io::safetensors_writer writer;
    writer.set("blk.3.block", "retoken").set("blk.3.base.block", "model");
    writer.set("blk.4.block", "stem_hybrid").set("blk.4.weights", "model");
    writer.set("blk.11.block", "stem").set("blk.11.weights", "gate_proj down_proj");
    writer.add("blk.3.modulators.weight", {modulators.data(), dtype::f32, {vocab, d}});
    writer.add("blk.3.scale", {scale.data(), dtype::f32, {d}});
    writer.add("blk.4.stem_embed.weight", {table.data(), dtype::f32, {vocab, f}});
    writer.add("blk.11.stem_embed.weight", {table.data(), dtype::f32, {vocab, f}});
    REQUIRE(writer.write(folder / "side.safetensors").ok());
    const auto side = io::side_file::open(folder / "side.safetensors");
    REQUIRE(side.ok());
    CHECK(side->layers() == std::set<std::size_t>{3, 4, 11});

    const auto check = [&](std::size_t layer, const auto& block, weights given) {
        const auto described = side->around(layer, own.layer);
        REQUIRE(described.ok());
        auto made = try_prepare(block, given, reference<>{});
        REQUIRE(made.ok());
        CHECK(rows_of(io::load_layer(*described, reference<>{})) == rows_of(any_layer(*std::move(made))));
    };
    weights modulated;
    for (const weights::entry& e : own.layer.tensors.entries()) modulated.add("base." + e.name, e.tensor);
    modulated.add("modulators.weight", modulators.data(), {vocab, d}).add("scale", scale.data(), {d});
    check(3, retoken<swiglu>{}, modulated);
    weights hybrid = own.layer.tensors;
    hybrid.add("stem_embed.weight", table.data(), {vocab, f});
    check(4, stem_hybrid{}, hybrid);
    weights alone;
    alone.add("gate_proj.weight", own.gate.data(), {f, d}).add("down_proj.weight", own.down.data(), {d, f});
    alone.add("stem_embed.weight", table.data(), {vocab, f});
    check(11, stem{}, alone);

    const auto none = side->around(5, own.layer);
    REQUIRE_FALSE(none.ok());
    CHECK(none.failure().what == "has nothing for layer 5");
}

TEST_CASE("side file: rows by the last ids beside the model's block") {
    const tiffin_test::scratch_folder folder;
    const own_block own;
    const std::vector<std::int64_t> compressed{3, 1, 0, 2, 4, 5, 6}, multipliers{3, 5, 7}, twos{5, 3},
        threes{4};
    const std::vector<float> table = random_rows(12, 2, 7), key = random_rows(d, 6, 8), norm(d, 1.0f);
    struct change {
        std::string without{}, key{}, value{};
        std::size_t rows = 12;
    };
    const auto open = [&](const change& how) {
        io::safetensors_writer writer;
        writer.set("blk.2.composition", "parallel(ffn(gate(silu), dense), engram)");
        writer.set("blk.2.branch.0.weights", "model");
        for (const char* name : {"key_proj", "value_proj"})
            writer.add("blk.2.branch.1." + std::string(name) + ".weight", {key.data(), dtype::f32, {d, 6}});
        for (const char* name : {"key_norm", "query_norm"})
            writer.add("blk.2.branch.1." + std::string(name) + ".weight", {norm.data(), dtype::f32, {d}});
        writer.set("blk.2.ngrams.block", "engram_addresses").set("blk.2.ngrams.end_of_sequence", "6");
        if (!how.key.empty()) writer.set(how.key, how.value);
        const auto add = [&](const std::string& name, const tensor_view& t) {
            if (name != how.without) writer.add("blk.2.ngrams." + name, t);
        };
        add("compressed", {compressed.data(), dtype::i64, {vocab}});
        add("multipliers", {multipliers.data(), dtype::i64, {3}});
        add("primes.2", {twos.data(), dtype::i64, {2}});
        add("primes.3", {threes.data(), dtype::i64, {1}});
        add("weight", {table.data(), dtype::f32, {how.rows, 2}});
        REQUIRE(writer.write(folder / "side.safetensors").ok());
        auto side = io::side_file::open(folder / "side.safetensors");
        REQUIRE(side.ok());
        return *std::move(side);
    };

    const io::side_file side = open({});
    const auto none = side.ngrams(3);
    REQUIRE(none.ok());
    CHECK_FALSE(none->has_value());
    const auto found = side.ngrams(2);
    INFO((found.ok() ? "" : found.failure().message()));
    REQUIRE(found.ok());
    CHECK((*found)->first_rows() == std::vector<std::size_t>{0, 5, 8, 12});
    CHECK((*found)->table.shape == shape{12, 2});
    std::vector<ngram_history> past(1, ngram_history(3));
    std::vector<std::int32_t> rows(6);
    std::visit(
        [&](const auto& address) {
            CHECK(address.vocab() == vocab);
            const std::vector<std::int32_t> ids{4, 2};
            REQUIRE(address(ids, std::vector<std::uint32_t>(2), past, rows).ok());
        },
        (*found)->address);
    // compressed 4 and 0: 4 * 3 = 12, then 0 ^ 4 * 5 = 20; what is missing is 0.
    CHECK(rows == std::vector<std::int32_t>{12 % 5, 20 % 5, 12 % 3, 20 % 3, 12 % 4, 20 % 4});
    const auto described = side.around(2, own.layer);
    REQUIRE(described.ok());
    const auto layer = io::load_layer(*described, reference<>{});
    INFO((layer.ok() ? "" : layer.failure().message()));
    REQUIRE(layer.ok());
    CHECK(layer->needs().given_width == 6);

    const auto refused = [&](const change& how, errc code, const char* says) {
        const auto wrong = open(how).ngrams(2);
        REQUIRE_FALSE(wrong.ok());
        CHECK(wrong.failure().code == code);
        INFO(wrong.failure().message());
        CHECK(wrong.failure().message().find(says) != std::string::npos);
    };
    refused({.without = "weight"}, errc::missing_tensor, "blk.2.ngrams.weight");
    refused({.without = "primes.3"}, errc::missing_tensor, "primes.3: missing");
    refused({.rows = 11}, errc::shape, "has shape (11, 2); it must be (12, width)");
    refused({.key = "blk.2.ngrams.block", .value = "engrams"}, errc::option, "known are engram_addresses");
    refused({.key = "blk.2.ngrams.pads", .value = "1"}, errc::option, "pads");
    refused({.key = "blk.2.ngrams.end_of_sequence", .value = "-1"}, errc::option, "end_of_sequence");
}

TEST_CASE("side file: one that has something for no layer") {
    const tiffin_test::scratch_folder folder;
    for (const bool told : {false, true}) {
        io::safetensors_writer writer;
        if (told) writer.set("format", "pt");
        REQUIRE(writer.write(folder / "side.safetensors").ok());
        const auto side = io::side_file::open(folder / "side.safetensors");
        REQUIRE_FALSE(side.ok());
        CHECK(side.failure().code == errc::option);
        CHECK(side.failure().what.find("has something for no layer") != std::string::npos);
    }
}

TEST_CASE("side file: names that belong to no layer, and weights that the model has not") {
    const tiffin_test::scratch_folder folder;
    const std::vector<float> one(4, 1.0f);
    const auto open = [&](const std::string& key, const std::string& tensor) {
        io::safetensors_writer writer;
        if (!key.empty()) writer.set(key, "retoken");
        writer.add(tensor, {one.data(), dtype::f32, {4}});
        REQUIRE(writer.write(folder / "side.safetensors").ok());
        return io::side_file::open(folder / "side.safetensors");
    };
    CHECK(open("blk.0.block", "blk.0.scale").ok());
    for (const char* key : {"block", "blk.block", "blk.x.block", "blk.3", "layer.3.block"}) {
        const auto s = open(key, "blk.0.scale");
        REQUIRE_FALSE(s.ok());
        CHECK(s.failure().code == errc::option);
        CHECK(s.failure().what.find("belongs to no layer") != std::string::npos);
    }
    CHECK(open("format", "blk.0.scale").ok());  // as safetensors' own writers put it into every file
    const auto stray = open("", "scale");
    REQUIRE_FALSE(stray.ok());
    CHECK(stray.failure().code == errc::unused_tensor);

    io::safetensors_writer writer;
    writer.set("blk.0.block", "stem").set("blk.0.weights", "gate_proj side_proj");
    REQUIRE(writer.write(folder / "side.safetensors").ok());
    const auto side = io::side_file::open(folder / "side.safetensors");
    REQUIRE(side.ok());
    const own_block own;
    const auto wrong = side->around(0, own.layer);
    REQUIRE_FALSE(wrong.ok());
    CHECK(wrong.failure().what.find("side_proj: the model's block has no weights of this name") !=
          std::string::npos);
}

}  // namespace io_side_file_test
