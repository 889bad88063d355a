// Models: the formats that weights are kept in, layers that outlive the model, weights packed by several threads.
#include <tiffin/io/model.hpp>
#include <tiffin/io/weight_scales.hpp>

#include <tiffin/executor/thread_team.hpp>
#include <tiffin/reference/reference.hpp>

#include "support/doctest.hpp"
#include "support/gguf_bytes.hpp"
#include "support/scratch_folder.hpp"
#include "support/tensor_set.hpp"

#include <cstddef>
#include <cstdint>
#include <fstream>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace io_model_test {
using namespace tiffin;
using tiffin::io::described_layer;
using tiffin_test::gguf_bytes;

namespace {

constexpr std::size_t d = 64, f = 96, tokens = 3;

void write(const std::filesystem::path& path, const gguf_bytes& file) {
    const auto bytes = file.bytes();
    std::ofstream(path, std::ios::binary)
        .write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
}

gguf_bytes llama() {
    gguf_bytes made;
    made.text("general.architecture", "llama").whole("llama.block_count", 1);
    const auto weight = [](std::uint32_t seed) { return tiffin_test::random_rows(d, f, seed); };
    made.tensor("blk.0.ffn_norm.weight", {d}, std::vector<float>(d, 1.0f));
    made.tensor("blk.0.ffn_gate.weight", {d, f}, weight(1)).tensor("blk.0.ffn_up.weight", {d, f}, weight(2));
    return made.tensor("blk.0.ffn_down.weight", {f, d}, weight(3));
}

dtype kept(std::initializer_list<dtype> types) {
    described_layer made;
    std::size_t n = 0;
    for (const dtype type : types) made.tensors.add("w" + std::to_string(n++), {&made, type, {256, 256}});
    made.tensors.add("router.weight", {&made, dtype::f32, {8, 256}})
        .add("down_proj.bias", {&made, dtype::f32, {256}});
    return kept_format(made);
}

}  // namespace

TEST_CASE("model: weights are kept as they are stored, or as Q8_0, or as F32") {
    for (const dtype type : {dtype::f32, dtype::f16, dtype::bf16, dtype::q8_0, dtype::q4_0})
        CHECK(kept({type, type, type}) == type);
    CHECK(kept({dtype::q4_k, dtype::q4_k, dtype::q6_k}) == dtype::q8_0);
    CHECK(kept({dtype::q4_1, dtype::q4_1, dtype::q4_1}) == dtype::q8_0);
    CHECK(kept({dtype::q4_0, dtype::q8_0}) == dtype::q8_0);
    CHECK(kept({dtype::f16, dtype::bf16}) == dtype::f32);
    CHECK(kept({dtype::f8_e4m3, dtype::f8_e5m2, dtype::f8_e4m3}) == dtype::bf16);
    CHECK(kept({dtype::f8_e4m3, dtype::f32}) == dtype::f32);
    CHECK(kept({dtype::q8_0, dtype::f32}) == dtype::f32);
    CHECK(kept({}) == dtype::f32);
}

TEST_CASE("model: a layer outlives the model, and is packed by several threads") {
    const tiffin_test::scratch_folder folder;
    write(folder / "m.gguf", llama());
    std::optional<any_layer> layer;
    std::size_t told = 0;
    {
        auto opened = io::model::open(folder / "m.gguf");
        REQUIRE(opened.ok());
        CHECK(opened->architecture() == "llama");
        CHECK(opened->layers() == 1);
        thread_team team(2);
        prepare_options how{.tokens = 0};
        how.execute = team;
        how.progress = [&](std::size_t done, std::size_t) { told = done; };
        auto made = open_layer(*opened, 0, reference<>{}, how);  // reads every tensor in place
        REQUIRE(made.ok());
        layer = *std::move(made);
    }
    CHECK(told == 3 * d * f * sizeof(float));
    std::vector<float> x = tiffin_test::random_rows(tokens, d, 9), y(x.size());
    auto space = layer->make_workspace(tokens, 1);
    REQUIRE(layer->try_call(x, std::vector<std::int32_t>{}, y, space).ok());
    float sum = 0;
    for (const float v : y) sum += v * v;
    CHECK(sum > 0);
}

TEST_CASE("model: what is wrong is said with the file") {
    const tiffin_test::scratch_folder folder;
    const auto path = folder / "m.gguf";
    const auto said = [&](const gguf_bytes& file, std::size_t layer) {
        write(path, file);
        auto opened = io::model::open(path);
        if (!opened) return opened.failure().message();
        const auto made = open_layer(*opened, layer, reference<>{});
        return made.ok() ? std::string("read") : made.failure().message();
    };
    CHECK(said(llama(), 0) == "read");
    CHECK(said(llama(), 1) == path.string() + ": there is no layer 1; the model has 1, from 0 on");
    CHECK(said(gguf_bytes(), 0) == path.string() + ": general.architecture is missing from the metadata");
    CHECK(said(gguf_bytes().text("general.architecture", "llama").whole("llama.block_count", 1), 0) ==
          path.string() + ": blk.0.ffn_gate.weight: missing; the FFN of 'llama' reads it");
    gguf_bytes misshapen;
    misshapen.text("general.architecture", "llama").whole("llama.block_count", 1);
    for (const char* const name : {"gate", "up", "down"})
        misshapen.tensor(std::string("blk.0.ffn_") + name + ".weight", {d, f},
                         tiffin_test::random_rows(d, f, 1));
    CHECK(said(misshapen, 0) ==
          path.string() +
              ": layer 0: down_proj.weight: has shape (96, 64); its axis 0 must be d_model = 64, as in "
              "gate_proj.weight");
}

TEST_CASE("model: what scales beside a weight cover is told by their shape") {
    const float scales[2400] = {};
    const auto made = [&](const shape& weight, const shape& beside, dtype type = dtype::f32) {
        tensor_view w{scales, dtype::f8_e4m3, weight};
        const status s = io::add_scales(w, {scales, type, beside}, "w.scale");
        CHECK(w.scales.any() == s.ok());
        return std::pair(s ? w.scales.rows : 0, s ? w.scales.columns : 0);
    };
    constexpr std::size_t all = tensor_scales::all;
    CHECK(made({200, 300}, {}) == std::pair(all, all));
    CHECK(made({200, 300}, {1}) == std::pair(all, all));
    CHECK(made({200, 300}, {1, 1}) == std::pair(all, all));
    CHECK(made({200, 300}, {200}) == std::pair(std::size_t{1}, all));
    CHECK(made({200, 300}, {200, 1}) == std::pair(std::size_t{1}, all));
    CHECK(made({200, 320}, {200, 10}) == std::pair(std::size_t{1}, std::size_t{32}));
    CHECK(made({200, 300}, {2, 3}) == std::pair(std::size_t{128}, std::size_t{128}));
    CHECK(made({200, 300}, {4, 5}) == std::pair(std::size_t{64}, std::size_t{64}));
    CHECK(made({200, 300}, {7, 10}) == std::pair(std::size_t{32}, std::size_t{32}));
    CHECK(made({4, 50, 300}, {4}) == std::pair(std::size_t{50}, all));
    CHECK(made({4, 50, 320}, {4, 50, 10}) == std::pair(std::size_t{1}, std::size_t{32}));
    for (const shape& wrong :
         {shape{300}, shape{2}, shape{3, 2}, shape{100, 300}, shape{200, 7}, shape{200, 0}, shape{2, 3, 1}})
        CHECK(made({200, 300}, wrong) == std::pair(std::size_t{0}, std::size_t{0}));
    CHECK(made({200, 300}, {200}, dtype::i32) == std::pair(std::size_t{0}, std::size_t{0}));
}

}  // namespace io_model_test
