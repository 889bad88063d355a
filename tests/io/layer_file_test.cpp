// Layer files: the block that a file names is the block composed by hand, to the bit, and what a file
// says wrongly is refused by name.
#include <tiffin/activation/gelu_tanh.hpp>
#include <tiffin/activation/identity.hpp>
#include <tiffin/activation/sigmoid.hpp>
#include <tiffin/call/prepare.hpp>
#include <tiffin/cpu/simd/simd.hpp>
#include <tiffin/io/safetensors_writer.hpp>
#include <tiffin/layers.hpp>
#include <tiffin/reference/reference.hpp>
#include <tiffin/table/row_store.hpp>

#include "layer_files.hpp"
#include "support/doctest.hpp"
#include "support/scratch_folder.hpp"
#include "support/tensor_set.hpp"

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <functional>
#include <initializer_list>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

namespace io_layer_file_test {
using namespace tiffin;
using tiffin_test::random_ids;
using tiffin_test::random_rows;
using tiffin_test::tensor_set;

namespace {

constexpr std::size_t d = 9, f = 21, vocab = 4, tokens = 13;

using options = std::map<std::string, std::string>;

void write(const std::filesystem::path& path, const weights& tensors, const options& metadata) {
    io::safetensors_writer writer;
    for (const auto& [key, value] : metadata) writer.set(key, value);
    for (const weights::entry& e : tensors.entries()) writer.add(e.name, e.tensor);
    const status written = writer.write(path);
    REQUIRE(written.ok());
}

std::vector<float> run(const any_layer& layer) {
    workspace memory = layer.make_workspace(tokens, 1);
    std::vector<float> y(tokens * layer.d_model());
    layer(random_rows(tokens, layer.d_model(), 5), random_ids(tokens, vocab, 7), y, memory);
    return y;
}

// A file with `metadata` against a layer composed by hand; the tensors are the same, in any format.
void check_file(const options& metadata, const tiffin_test::wanted_tensors& wanted,
                const std::function<result<any_layer>(const std::filesystem::path&)>& open,
                const std::function<any_layer(const weights&)>& compose, bool reads_ids) {
    const std::string kind = metadata.contains("block") ? metadata.at("block") : metadata.at("composition");
    CAPTURE(kind);
    for (const dtype type : {dtype::f32, dtype::bf16, dtype::f16}) {
        CAPTURE(name_of(type));
        const tensor_set tensors(wanted, {{d, f, vocab}, {type}, {type}, 0b101u, 3});
        const tiffin_test::scratch_folder folder;
        const std::filesystem::path file = folder / "layer.safetensors";
        write(file, tensors.given(), metadata);
        auto opened = open(file);
        REQUIRE_MESSAGE(opened.ok(), (opened.ok() ? "" : opened.failure().message()));
        CHECK(opened->d_model() == d);
        CHECK(opened->d_ff() == f);
        CHECK(opened->reads_token_ids() == reads_ids);
        const std::vector<float> y = run(compose(tensors.given()));
        CHECK(run(*opened) == y);
        // The layer keeps the file's memory, not the file.
        std::filesystem::remove(file);
        CHECK(run(*opened) == y);
    }
}

template <class Backend>
result<any_layer> open_with(const std::filesystem::path& path) {
    return io::open_layer(path, Backend{});
}

template <class Block, class Backend>
void check(const options& metadata, const Backend& backend) {
    check_file(
        metadata, tiffin_test::tensors_wanted(Block{}), open_with<Backend>,
        [&](const weights& given) { return any_layer(prepare<Block>(given, backend, {.tokens = 0})); },
        !metadata.contains("block") || (metadata.at("block") != "mlp" && metadata.at("block") != "glu"));
}

}  // namespace

TEST_CASE("layer files: the five blocks with their own activations, on simd") {
    check<mlp>({{"block", "mlp"}}, simd_of_any_format{});
    check<swiglu>({{"block", "glu"}}, simd_of_any_format{});
    check<stem>({{"block", "stem"}}, simd_of_any_format{});
    check<stem_gate>({{"block", "stem_gate"}}, simd_of_any_format{});
    check<stem_hybrid>({{"block", "stem_hybrid"}, {"format", "pt"}}, simd_of_any_format{});
}

TEST_CASE("layer files: a composition in one text") {
    check<stem_hybrid>({{"composition", "ffn(gate(silu), sum(dense, token_embedding))"}},
                       simd_of_any_format{});
    check<stem>({{"composition", "stem"}, {"format", "pt"}}, reference{});
}

TEST_CASE("layer files: every activation") {
    const auto both = [](const std::string& name, auto phi) {
        CAPTURE(name);
        using activation = decltype(phi);
        check<ffn<gate<activation>, dense>>({{"block", "glu"}, {"activation", name}}, reference{});
    };
    both("silu", silu{});
    both("gelu", gelu{});
    both("gelu_tanh", gelu_tanh{});
    both("relu", relu{});
    both("sigmoid", sigmoid{});
    both("identity", identity{});
    // The gate's activation, too, where the gate is not `gate_proj`.
    check<ffn<gate<relu, token_embedding>, dense>>({{"block", "stem_gate"}, {"activation", "relu"}},
                                                   reference{});
}

namespace {

void check_refused(const weights& tensors, const options& metadata, errc code,
                   std::initializer_list<std::string_view> words) {
    const tiffin_test::scratch_folder folder;
    const std::filesystem::path file = folder / "layer.safetensors";
    write(file, tensors, metadata);
    const auto opened = open_with<reference<>>(file);
    REQUIRE_FALSE(opened.ok());
    const std::string message = opened.failure().message();  // what people see, which has an end
    INFO(message);
    CHECK(opened.failure().code == code);
    CHECK(opened.failure().where == file.string());
    REQUIRE(message.find(file.string() + ": ") == 0);
    for (const std::string_view word : words) {
        CAPTURE(word);
        CHECK(message.find(word, file.string().size()) != std::string::npos);
    }
}

}  // namespace

TEST_CASE("layer files: options that are wrong") {
    const tensor_set tensors(tiffin_test::tensors_wanted(swiglu{}), {{d, f, vocab}, {}, {}, 0, 3});
    const weights given = tensors.given();
    check_refused(given, {}, errc::option, {"block", "missing"});
    check_refused(given, {{"activation", "silu"}}, errc::option, {"block", "missing"});
    check_refused(given, {{"block", "transformer"}}, errc::option,
                  {"block", "'transformer'", "mlp", "glu", "stem", "stem_gate", "stem_hybrid"});
    check_refused(given, {{"block", "GLU"}}, errc::option, {"'GLU'"});
    check_refused(given, {{"block", ""}}, errc::option, {"block", "''"});
    check_refused(given, {{"block", "glu"}, {"activation", "swish"}}, errc::option,
                  {"activation", "'swish'", "silu", "gelu_tanh", "identity"});
    check_refused(given, {{"block", "glu"}, {"activation", ""}}, errc::option, {"activation", "''"});
    check_refused(given, {{"block", "glu"}, {"top_k", "2"}}, errc::option, {"top_k", "'glu'", "'2'"});
    check_refused(given, {{"block", "glu"}, {"Activation", "silu"}}, errc::option, {"Activation"});
    check_refused(given, {{"composition", "ffn(gate(sillu))"}}, errc::option,
                  {"composition", "'sillu' at byte 9"});
}

TEST_CASE("layer files: tensors in blocks are bytes whose format the metadata tells") {
    for (const dtype type : {dtype::q8_0, dtype::q4_0}) {
        CAPTURE(name_of(type));
        const tensor_set tensors(tiffin_test::tensors_wanted(stem_hybrid{}), {{64, 96, vocab}, {}, {}, 0, 3});
        const weights numbers = tensors.given();
        std::vector<std::vector<std::byte>> memory;
        weights given;
        for (const weights::entry& e : numbers.entries()) {
            const table_shape rows{e.tensor.shape[0], e.tensor.shape[1], type};
            std::vector<std::byte>& bytes = memory.emplace_back(rows.rows * rows.row_bytes());
            for (std::size_t i = 0; i < rows.rows; ++i)
                encode_row(rows, static_cast<const float*>(e.tensor.data) + i * rows.width,
                           bytes.data() + i * rows.row_bytes());
            given.add(e.name, {bytes.data(), type, e.tensor.shape});
        }
        const tiffin_test::scratch_folder folder;
        const std::filesystem::path file = folder / "layer.safetensors";
        write(file, given, {{"block", "stem_hybrid"}});
        const auto in_double = open_with<reference<>>(file);
        REQUIRE_MESSAGE(in_double.ok(), (in_double.ok() ? "" : in_double.failure().message()));
        CHECK(run(*in_double) == run(any_layer(prepare<stem_hybrid>(given, reference{}, {.tokens = 0}))));
        const auto opened = open_with<simd_of_any_format>(file);
        REQUIRE_MESSAGE(opened.ok(), (opened.ok() ? "" : opened.failure().message()));
        CHECK(run(*opened) ==
              run(any_layer(prepare<stem_hybrid>(given, simd_of_any_format{}, {.tokens = 0}))));
        // Rounded numbers, so that formats that were not read could not pass for them.
        CHECK(run(*opened) !=
              run(any_layer(prepare<stem_hybrid>(numbers, simd_of_any_format{}, {.tokens = 0}))));
    }
}

TEST_CASE("layer files: formats that are wrong") {
    const tensor_set tensors(tiffin_test::tensors_wanted(swiglu{}), {{32, 64, vocab}, {}, {}, 0, 3});
    const weights given = tensors.given();
    const auto refused = [&](const std::string& key, const std::string& value,
                             std::initializer_list<std::string_view> words) {
        check_refused(given, {{"block", "glu"}, {key, value}}, errc::option, {key, "'" + value + "'"});
        check_refused(given, {{"block", "glu"}, {key, value}}, errc::option, words);
    };
    refused("up_proj.weight.format", "q8_0", {"tensor 'up_proj.weight' be there in bytes (U8)"});
    refused("lm_head.weight.format", "q8_0", {"tensor 'lm_head.weight' be there in bytes (U8)"});
    refused("up_proj.weight.format", "pt", {"one of q8_0, q4_0, q4_1"});
    // Bytes without a format, of one that is not known, and bytes that are none of it.
    const std::vector<std::byte> bytes(64 * 34);
    weights raw;
    for (const weights::entry& e : given.entries())
        raw.add(e.name,
                e.name == "up_proj.weight" ? tensor_view{bytes.data(), dtype::u8, {64, 34}} : e.tensor);
    check_refused(raw, {{"block", "glu"}}, errc::dtype, {"up_proj.weight", "U8"});
    check_refused(raw, {{"block", "glu"}, {"up_proj.weight.format", "q9_1"}}, errc::option,
                  {"up_proj.weight.format", "'q9_1'", "one of q8_0, q4_0, q4_1"});
    check_refused(raw, {{"block", "glu"}, {"up_proj.weight.format", "q4_0"}}, errc::shape,
                  {"'up_proj.weight'", "q4_0", "(64, 34)", "18 bytes"});
    check_refused(raw, {{"block", "glu"}, {"up_proj.weight.format", "Q8_0"}}, errc::option,
                  {"up_proj.weight.format", "'Q8_0'", "one of q8_0, q4_0, q4_1"});
    const tiffin_test::scratch_folder folder;
    write(folder / "layer", raw, {{"block", "glu"}, {"up_proj.weight.format", "q8_0"}});
    const auto opened = open_with<reference<>>(folder / "layer");
    CHECK_MESSAGE(opened.ok(), (opened.ok() ? "" : opened.failure().message()));
}

TEST_CASE("layer files: an endless name leaves room for what is wrong with it") {
    const tensor_set tensors(tiffin_test::tensors_wanted(swiglu{}), {{d, f, vocab}, {}, {}, 0, 3});
    const std::string endless = "\n" + std::string(5000, 'n');
    weights extra = tensors.given();
    extra.add(endless, tensors.view("up_proj.weight"));
    check_refused(extra, {{"block", "glu"}}, errc::unused_tensor,
                  {"\\x0annn", "... (5001 bytes): ", "(21, 9)"});
    check_refused(tensors.given(), {{"block", "glu"}, {endless, "1"}}, errc::option,
                  {"... (5001 bytes): is not an option of block 'glu' (its value is '1')"});
}

TEST_CASE("layer files: tensors that are wrong") {
    const tensor_set tensors(tiffin_test::tensors_wanted(swiglu{}), {{d, f, vocab}, {}, {}, ~0u, 3});
    const options glu{{"block", "glu"}};
    // Another block's file.
    check_refused(tensors.given(), {{"block", "mlp"}}, errc::unused_tensor, {"gate_proj."});
    check_refused(tensors.given(), {{"block", "stem"}}, errc::missing_tensor,
                  {"stem_embed.weight", "(vocab, d_ff)"});
    weights few;
    few.add("gate_proj.weight", tensors.view("gate_proj.weight"));
    check_refused(few, glu, errc::missing_tensor, {"up_proj.weight"});
    weights extra = tensors.given();
    extra.add("lm_head.weight", tensors.view("up_proj.bias"));
    check_refused(extra, glu, errc::unused_tensor, {"lm_head.weight", "(21)"});
    const weights right = tensors.given();
    weights changed;
    for (const weights::entry& e : right.entries()) {
        tensor_view t = e.tensor;
        if (e.name == "up_proj.bias") t.type = dtype::i32;
        changed.add(e.name, t);
    }
    check_refused(changed, glu, errc::dtype, {"up_proj.bias", "I32"});
    weights misshapen;
    for (const weights::entry& e : right.entries()) {
        tensor_view t = e.tensor;
        if (e.name == "down_proj.weight") t.shape = {f, d};
        misshapen.add(e.name, t);
    }
    check_refused(misshapen, glu, errc::shape, {"down_proj.weight", "(21, 9)", "axis 0", "d_model = 9"});
}

TEST_CASE("layer files: files that are none") {
    const tiffin_test::scratch_folder folder;
    const std::filesystem::path file = folder / "layer.safetensors";
    const auto missing = io::open_layer(file, reference{});
    REQUIRE_FALSE(missing.ok());
    CHECK(missing.failure().code == errc::file);
    CHECK(missing.failure().where == file.string());
    std::ofstream(file) << "text";
    const auto text = io::open_layer(file, reference{});
    REQUIRE_FALSE(text.ok());
    CHECK(text.failure().code == errc::file);
    CHECK(text.failure().where == file.string());
}

TEST_CASE("layer files: a file that was read already") {
    const tensor_set tensors(tiffin_test::tensors_wanted(stem{}), {{d, f, vocab}, {}, {}, ~0u, 3});
    io::safetensors_writer writer;
    writer.set("block", "stem");
    const weights given = tensors.given();
    for (const weights::entry& e : given.entries()) writer.add(e.name, e.tensor);
    auto bytes = writer.to_bytes("memory");
    REQUIRE(bytes.ok());
    auto parsed = io::safetensors_file::parse(*bytes, "memory");
    REQUIRE(parsed.ok());
    auto file = std::make_shared<const io::safetensors_file>(*std::move(parsed));
    const std::weak_ptr<const io::safetensors_file> watch = file;
    auto loaded = io::load_layer(std::move(file), reference{});
    REQUIRE(loaded.ok());
    CHECK_FALSE(watch.expired());  // the reference reads its tensors in place
    CHECK(run(*loaded) == run(any_layer(prepare<stem>(tensors.given(), reference{}))));
    *loaded = any_layer();
    CHECK(watch.expired());
    // Here a failure's place is the key or tensor itself.
    writer.set("top_k", "2");
    auto again = io::safetensors_file::parse(*writer.to_bytes("memory"), "memory");
    REQUIRE(again.ok());
    const auto refused =
        io::load_layer(std::make_shared<const io::safetensors_file>(*std::move(again)), reference{});
    REQUIRE_FALSE(refused.ok());
    CHECK(refused.failure().code == errc::option);
    CHECK(refused.failure().where == "top_k");
}

}  // namespace io_layer_file_test
