// A layer file folded: marked, smaller, the same to the bit, and refused a second time.
#include <tiffin/io/fold_layer.hpp>
#include <tiffin/io/safetensors.hpp>
#include <tiffin/table/row_store.hpp>

#include "layer_files.hpp"
#include "support/doctest.hpp"
#include "support/scratch_folder.hpp"
#include "support/tensor_set.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <filesystem>
#include <map>
#include <string>
#include <utility>
#include <vector>

namespace io_fold_layer_test {
using namespace tiffin;
using tiffin_test::random_ids;
using tiffin_test::random_rows;

namespace {

constexpr std::size_t d = 20, f = 12, vocab = 33, tokens = 9;

// A layer file of a block, with all tables of one vocabulary. `formats`: of the tensors not in f32.
template <class Block>
void write_layer(const std::filesystem::path& path, const Block& block, const block_shape& sizes,
                 const std::map<std::string, std::string>& metadata,
                 const std::map<std::string, dtype>& formats = {}) {
    io::safetensors_writer writer;
    tiffin_test::random_numbers random(3);
    std::vector<std::vector<float>> memory;
    std::vector<std::vector<std::byte>> blocks;
    for (const auto& [key, value] : metadata) writer.set(key, value);
    for (const auto& [name, t] : tensors_needed(block, sizes)) {
        if (t.needed == presence::optional) continue;
        memory.emplace_back(t.shape.elements());
        random.fill(memory.back(), 0.7f);
        if (const auto format = formats.find(name); format != formats.end()) {
            const table_shape rows{t.shape[0], t.shape[1], format->second};
            std::vector<std::byte>& bytes = blocks.emplace_back(rows.rows * rows.row_bytes());
            for (std::size_t i = 0; i < rows.rows; ++i)
                encode_row(rows, memory.back().data() + i * rows.width, bytes.data() + i * rows.row_bytes());
            writer.add(name, {bytes.data(), rows.type, t.shape});
        } else {
            writer.add(name, {memory.back().data(), dtype::f32, t.shape});
        }
    }
    REQUIRE(writer.write(path).ok());
}

std::vector<float> run(const std::filesystem::path& path) {
    const auto layer = io::open_layer(path, simd_of_any_format{});
    REQUIRE_MESSAGE(layer.ok(), (layer.ok() ? "" : layer.failure().message()));
    std::vector<float> y(tokens * layer->d_model());
    workspace memory = layer->make_workspace(tokens, 1);
    const std::vector<float> x = random_rows(tokens, layer->d_model(), 5);
    const status s = layer->try_call(x, random_ids(tokens, vocab, 7), y, memory);
    REQUIRE_MESSAGE(s.ok(), (s.ok() ? "" : s.failure().message()));
    return y;
}

status fold_file(const std::filesystem::path& from, const std::filesystem::path& to) {
    const auto file = io::safetensors_file::open(from);
    if (!file) return file.failure();
    const auto folded = io::folded_layer::from(*file);
    return folded ? folded->write(to) : status(folded.failure());
}

const block_shape sizes{.d_model = d, .d_ff = f, .vocab = vocab, .inner = {d, d / 2}};

}  // namespace

TEST_CASE("fold_layer: a memory beside a modulated block") {
    const tiffin_test::scratch_folder files;
    const std::filesystem::path trained = files / "trained", folded = files / "folded",
                                again = files / "again";
    using block = parallel<meki_training, retoken<swiglu>>;
    write_layer(trained, block{}, sizes,
                {{"block", "parallel"},
                 {"branches", "2"},
                 {"branch.0.block", "meki"},
                 {"branch.0.eps", "0.25"},
                 {"branch.1.block", "retoken"},
                 {"branch.1.norm", "rms"},
                 {"branch.1.eps", "0.5"},
                 {"branch.1.base.block", "glu"}});
    REQUIRE(fold_file(trained, folded).ok());
    // To the bit in fold_test. Here the compiler joins other products and sums where the format of a table is
    // chosen at run time: an entry of a table may be 3 roundings off, and y by those of a sum of 12 of them.
    const std::vector<float> got = run(folded), wanted = run(trained);
    float most = 0;
    for (const float v : wanted) most = std::max(most, std::fabs(v));
    for (std::size_t i = 0; i < got.size(); ++i)
        CHECK(std::fabs(got[i] - wanted[i]) <= 12 * 3 * 0x1p-24f * most);
    const auto file = io::safetensors_file::open(folded);
    REQUIRE(file.ok());
    CHECK(file->metadata().at("branch.0.folded") == "true");
    CHECK(file->metadata().at("branch.1.folded") == "true");
    for (const char* const gone : {"branch.0.alpha", "branch.0.word_embed.weight", "branch.1.scale"})
        CHECK(file->tensors().find(gone) == nullptr);
    CHECK(file->tensors().find("branch.0.memory.weight")->shape == shape{vocab, f});

    const status twice = fold_file(folded, again);
    REQUIRE_FALSE(twice.ok());
    CHECK(twice.failure().code == errc::option);
    CHECK(twice.failure().where == "branch.0.folded");
    CHECK_FALSE(std::filesystem::exists(again));
}

TEST_CASE("fold_layer: ple with its context, in every expert of a mixture") {
    const tiffin_test::scratch_folder files;
    const std::filesystem::path trained = files / "trained", folded = files / "folded",
                                again = files / "again";
    const std::map<std::string, std::string> options{{"block", "moe"},
                                                     {"num_experts", "3"},
                                                     {"top_k", "2"},
                                                     {"expert.block", "ple"},
                                                     {"expert.eps", "0.25"}};
    moe<ple_full> block;
    block.router.top_k = 2;
    const block_shape parts = {.d_model = d, .d_ff = f, .vocab = vocab, .inner = {d, d}};
    write_layer(trained, block,
                {.d_model = d, .d_ff = f, .vocab = vocab, .experts = 3, .inner = {d, d}, .parts = &parts},
                options);
    REQUIRE(fold_file(trained, folded).ok());
    const auto file = io::safetensors_file::open(folded);
    REQUIRE(file.ok());
    CHECK(file->metadata().at("expert.folded") == "true");
    for (const std::string expert : {"experts.0.", "experts.1.", "experts.2."}) {
        CHECK(file->tensors().find(expert + "memory.weight")->shape == shape{vocab, f});
        for (const char* const gone :
             {"word_embed.weight", "per_layer_model_projection.weight", "per_layer_projection_norm.weight"})
            CHECK(file->tensors().find(expert + gone) == nullptr);
    }
    const std::vector<float> got = run(folded), wanted = run(trained);
    float most = 0;
    for (const float v : wanted) most = std::max(most, std::fabs(v));
    REQUIRE(most > 0);
    // As above: an entry of a table may be 3 roundings off, y by those of a sum of 12, of two experts.
    for (std::size_t i = 0; i < got.size(); ++i)
        CHECK(std::fabs(got[i] - wanted[i]) <= 2 * 12 * 3 * 0x1p-24f * most);
    const status twice = fold_file(folded, again);
    REQUIRE_FALSE(twice.ok());
    CHECK(twice.failure().where == "expert.folded");

    // A row alone is what there is to fold to.
    write_layer(trained, ple{}, sizes, {{"block", "ple"}});
    CHECK(fold_file(trained, again).failure().code == errc::option);
    // As many experts as a lying file says are not looked for.
    auto lying = options;
    lying["num_experts"] = "1000000000000";
    write_layer(trained, block,
                {.d_model = d, .d_ff = f, .vocab = vocab, .experts = 3, .inner = {d, d}, .parts = &parts},
                lying);
    CHECK(fold_file(trained, again).failure().where == "num_experts");
}

TEST_CASE("fold_layer: tensors in blocks are folded from, and else kept as they are") {
    const tiffin_test::scratch_folder files;
    const std::filesystem::path trained = files / "trained", folded = files / "folded";
    const std::map<std::string, dtype> formats{{"modulators.weight", dtype::q8_0},
                                               {"base.gate_proj.weight", dtype::q8_0},
                                               {"base.up_proj.weight", dtype::q4_0},
                                               {"base.down_proj.weight", dtype::q4_0}};
    write_layer(trained, retoken<swiglu>{}, {.d_model = 64, .d_ff = 32, .vocab = vocab},
                {{"block", "retoken"}, {"base.block", "glu"}}, formats);
    REQUIRE(fold_file(trained, folded).ok());
    const auto before = io::safetensors_file::open(trained), after = io::safetensors_file::open(folded);
    REQUIRE(before.ok());
    REQUIRE(after.ok());
    for (const auto& each : formats) {
        const std::string& name = each.first;
        const dtype type = each.second;
        CAPTURE(name);
        const tensor_view *const from = before->tensors().find(name), *const to = after->tensors().find(name);
        REQUIRE(from != nullptr);
        REQUIRE(to != nullptr);
        CHECK(from->type == type);
        CHECK(to->shape == from->shape);
        if (name == "modulators.weight") {
            CHECK(to->type == dtype::f32);
            continue;
        }
        CHECK(to->type == type);
        CHECK(std::memcmp(to->data, from->data, bytes_of(type, from->shape.elements())) == 0);
    }
    CHECK(after->metadata() == std::map<std::string, std::string>{
                                   {"block", "retoken"}, {"base.block", "glu"}, {"folded", "true"}});
    // The same rounded modulators: an entry of the table may be 3 roundings off (see above), and y one more.
    const std::vector<float> got = run(folded), wanted = run(trained);
    float most = 0;
    for (const float v : wanted) most = std::max(most, std::fabs(v));
    REQUIRE(most > 0);
    for (std::size_t i = 0; i < got.size(); ++i) CHECK(std::fabs(got[i] - wanted[i]) <= 4 * 0x1p-24f * most);
}

TEST_CASE("fold_layer: nothing to fold") {
    const tiffin_test::scratch_folder files;
    const std::filesystem::path plain = files / "plain", folded = files / "none";
    write_layer(plain, swiglu{}, sizes, {{"block", "glu"}});
    const status s = fold_file(plain, folded);
    REQUIRE_FALSE(s.ok());
    CHECK(s.failure().where == "block");
    CHECK_FALSE(std::filesystem::exists(folded));
}

}  // namespace io_fold_layer_test
