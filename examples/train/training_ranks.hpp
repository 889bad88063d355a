// Training over ranks, as the model and its run see it: a rank has a part of each batch and a block of each table's rows, and
// all that is dense. A run on one machine has none of this; mpi_ranks.hpp has it by MPI.
#pragma once

#include <tiffin/call/gathered_rows.hpp>
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

// This rank's rows of a table (vocab, width) or of a pool (experts, vocab, width): all experts', of a range of ids. Calls
// that send or receive are collective, and throw on all ranks what goes wrong on one.
class table_block {
public:
    table_block(std::string tensor, const tiffin::shape& of_all, const tiffin::shard_range& own)
        : name(std::move(tensor)),
          whole(of_all),
          rows(own),
          values(experts() * own.count * whole.last()),
          learning(values.data(), experts(), own.count, whole.last()) {}
    virtual ~table_block() = default;
    table_block(const table_block&) = delete;
    table_block& operator=(const table_block&) = delete;

    [[nodiscard]] std::size_t experts() const { return whole.elements() / (vocab() * whole.last()); }
    [[nodiscard]] std::size_t vocab() const { return whole[whole.rank() - 2]; }

    // The rows of this rank's ids, from their owners; valid until the next fetch.
    virtual tiffin::gathered_rows fetch(std::span<const std::int32_t> ids) = 0;
    // Sends a layer's gradients of its table `tensor` to the owners of the rows.
    virtual void send_gradients(const tiffin::trainable_layer<float>& layer, const std::string& tensor) = 0;
    // What the last has brought to this rank.
    [[nodiscard]] virtual const tiffin::row_gradients<float>& gradients() const = 0;

    const std::string name;
    const tiffin::shape whole;
    const tiffin::shard_range rows;
    std::vector<float> values;  // (experts, rows.count, width)
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
