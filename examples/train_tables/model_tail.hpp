// The last layers of a model in a file, with tables by token id beside their blocks, which alone learn.
#pragma once

#include <tiffin/io/model.hpp>

#include "../decoder/model_file.hpp"
#include "../train/language_model.hpp"

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

// A kind of table, as the command line names it; the block of examples/train that it is, around the model's own; and
// what the model's own tensors are called in that.
struct table_kind {
    std::string_view name, block, own;
};
const std::vector<table_kind>& table_kinds();

struct tail_options {
    std::string kind = "retoken";
    std::size_t layers = 4;                // the last ones of the model
    std::size_t experts = 4;               // of a pool; 2 are chosen
    std::size_t d_mem = 64;                // of a memory
    std::size_t context = 256, batch = 4;  // tokens per sequence, sequences of a step
    std::uint64_t seed = 1;
};

class model_tail {
public:
    // At the start the tables change nothing: what multiplies their rows is 0.
    // Throws, naming the file, where the model is none of Llama's with SwiGLU and 1e-5 in its norms, or has fewer layers.
    model_tail(model_file& file, const tiffin::io::model& ffns, const tail_options& options,
               tiffin::executor_ref execute);

    // The first of the layers, counted in the model.
    [[nodiscard]] std::size_t first() const { return first_; }
    [[nodiscard]] language_model& layers() { return layers_; }
    // Numbers that learn.
    [[nodiscard]] std::size_t learning() const;
    // FLOPs of matrix products that the tables add, per token.
    [[nodiscard]] double added_flops() const;
    // A side file (docs/models.md#side-files) of what has been learnt. Throws where it cannot be written.
    void write(const std::filesystem::path& path) const;

private:
    struct parts {
        table_kind kind;
        std::size_t first;
        model_sizes sizes;
    };
    model_tail(const parts& made, const tail_options& options, tiffin::executor_ref execute);
    static parts parts_of(const model_file& file, const tiffin::io::model& ffns, const tail_options& options);
    void read(model_file& file, const tiffin::io::model& ffns);

    table_kind kind_;
    std::size_t first_;
    language_model layers_;
};
