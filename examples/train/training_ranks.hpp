// Training over ranks, as the model and its run see it: a rank has a part of each batch and a block of each table's rows, and
// all that is dense. A run on one machine has none of this; mpi_ranks.hpp has it by MPI.
#pragma once

#include <tiffin/call/chosen_experts.hpp>
#include <tiffin/call/gathered_rows.hpp>
#include <tiffin/error.hpp>
#include <tiffin/learn/learning_rows.hpp>
#include <tiffin/mpi/shard_grid.hpp>
#include <tiffin/tensor.hpp>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

// This rank's rows of a table (vocab, width), or of a pool (experts, vocab, width) as the table of experts vocab rows that it
// is in memory. Calls that send or receive are collective, and fail on all ranks where one fails.
class table_block {
public:
    table_block(std::string tensor, const tiffin::shape& of_all, const tiffin::shard_range& own)
        : name(std::move(tensor)),
          whole(of_all),
          rows(own),
          values(own.count * width()),
          learning(values.data(), 1, own.count, width()) {}
    virtual ~table_block() = default;
    table_block(const table_block&) = delete;
    table_block& operator=(const table_block&) = delete;

    [[nodiscard]] std::size_t width() const { return whole.last(); }
    [[nodiscard]] std::size_t vocab() const { return whole[whole.rank() - 2]; }
    [[nodiscard]] std::size_t experts() const { return whole.elements() / (vocab() * width()); }
    // Of a pool: whether a layer asks for its experts' rows once they are chosen. In a mixture it does not on a rank that
    // has no tokens for the pool's expert, and so all experts' rows are fetched.
    [[nodiscard]] bool is_chosen_from() const {
        return experts() > 1 && name.find("experts.") == std::string::npos;
    }

    // The rows of this rank's ids, from their owners; where is_chosen_from(), the room for them. Until the next call.
    virtual tiffin::gathered_rows fetch(std::span<const std::int32_t> ids) = 0;
    // Those that tokens have chosen, of the ids of the last fetch.
    virtual tiffin::status fetch(const tiffin::chosen_experts<float>& chosen) = 0;
    // Sends a layer's gradients of its table `tensor` to the owners of the rows.
    virtual void send_gradients(const tiffin::trainable_layer<float>& layer, const std::string& tensor) = 0;
    // What the last has brought to this rank.
    [[nodiscard]] virtual const tiffin::row_gradients<float>& gradients() const = 0;
    [[nodiscard]] virtual std::uint64_t rows_fetched() const = 0;

    const std::string name;
    const tiffin::shape whole;
    const tiffin::shard_range rows;
    std::vector<float> values;  // (rows.count, width)
    tiffin::rows_in_memory<float> learning;
};

class training_ranks {
public:
    virtual ~training_ranks() = default;
    [[nodiscard]] virtual int rank() const = 0;
    [[nodiscard]] virtual int count() const = 0;
    // This rank's part of n things.
    [[nodiscard]] tiffin::shard_range part_of(std::size_t n) const {
        return tiffin::shard_grid{static_cast<std::size_t>(count()), 1}.rows_at(rank(), n);
    }

    // All calls from here on are collective. `most_ids`: of all ranks together in a step.
    virtual std::unique_ptr<table_block> block(const std::string& name, const tiffin::shape& whole,
                                               std::size_t most_ids) = 0;
    // Numbers are replaced by their sums over the ranks: the same bits on all.
    virtual void add_up(std::span<double> numbers) = 0;
    virtual void add_up(std::span<float> numbers) = 0;
    // The same for a layer's dense gradients.
    virtual void add_up(const tiffin::trainable_layer<float>& layer) = 0;
    // Throws where a rank's text is not the first's, naming the line.
    virtual void check_same(const std::string& text) = 0;

    // Reads bytes `first` on of memory[piece] of a rank.
    using reads =
        std::function<void(int rank, std::size_t piece, std::size_t first, std::span<std::byte> to)>;
    // The first rank runs task(read); until it has returned, the others send what it reads. Throws on all ranks what it
    // throws.
    virtual void at_first(std::span<const std::span<const std::byte>> memory,
                          const std::function<void(const reads&)>& task) = 0;
};
