#include "mpi_ranks.hpp"

#include <cstdlib>
#include <stdexcept>

#ifdef TIFFIN_EXAMPLE_MPI

#    include <tiffin/mpi/sharded_gradients.hpp>
#    include <tiffin/mpi/sharded_rows.hpp>
#    include <tiffin/table/chosen_pool_rows.hpp>
#    include <tiffin/table/row_store.hpp>

#    include <algorithm>
#    include <sstream>

#    include <mpi.h>

namespace {

class mpi_block final : public table_block {
public:
    mpi_block(const std::string& tensor, const tiffin::shape& of_all, const tiffin::shard_grid& grid,
              const tiffin::shard_range& own, std::size_t most_ids)
        : table_block(tensor, of_all, own),
          own_(
              tiffin::in_memory::view({values.data(), tiffin::dtype::f32, {rows.count, width()}}).or_throw()),
          sharded_(tiffin::sharded_rows::of(MPI_COMM_WORLD, own_, grid, experts() * vocab()).or_throw()),
          fetched_(tiffin::chosen_pool_rows::of(sharded_, experts()).or_throw()),
          gradients_(tiffin::sharded_gradients::of(MPI_COMM_WORLD, grid, {experts() * vocab(), width(), 1},
                                                   most_ids * experts())
                         .or_throw()) {}
    tiffin::gathered_rows fetch(std::span<const std::int32_t> ids) override {
        const tiffin::gathered_rows made = fetched_.lay_out(ids).or_throw();
        if (!is_chosen_from()) fetched_.read_all().or_throw();
        return made;
    }
    tiffin::status fetch(const tiffin::chosen_experts<float>& chosen) override {
        return fetched_.read(chosen);
    }
    void send_gradients(const tiffin::trainable_layer<float>& layer, const std::string& tensor) override {
        const auto own = tiffin::layer_row_gradients<float>::of(layer, tensor).or_throw();
        gradients_->gather(tiffin::pool_as_table<float>(own, vocab())).or_throw();
    }
    [[nodiscard]] const tiffin::row_gradients<float>& gradients() const override { return *gradients_; }
    [[nodiscard]] std::uint64_t rows_fetched() const override { return fetched_.rows_read(); }

private:
    tiffin::in_memory own_;
    tiffin::sharded_rows sharded_;
    tiffin::chosen_pool_rows fetched_;
    std::unique_ptr<tiffin::sharded_gradients> gradients_;
};

class mpi_ranks final : public training_ranks {
public:
    mpi_ranks(int& argc, char**& argv) {
        MPI_Init(&argc, &argv);
        MPI_Comm_rank(MPI_COMM_WORLD, &rank_);
        MPI_Comm_size(MPI_COMM_WORLD, &count_);
    }
    ~mpi_ranks() override { MPI_Finalize(); }
    [[nodiscard]] int rank() const override { return rank_; }
    [[nodiscard]] int count() const override { return count_; }

    std::unique_ptr<table_block> block(const std::string& name, const tiffin::shape& whole,
                                       std::size_t most_ids) override {
        const std::size_t rows = whole.elements() / whole.last();
        return std::make_unique<mpi_block>(
            name, whole, tiffin::shard_grid{static_cast<std::size_t>(count_), 1}, part_of(rows), most_ids);
    }
    void add_up(std::span<double> numbers) override {
        tiffin::detail::of_mpi(MPI_Allreduce(MPI_IN_PLACE, numbers.data(), static_cast<int>(numbers.size()),
                                             MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD),
                               "MPI_Allreduce")
            .or_throw();
    }
    void add_up(std::span<float> numbers) override {
        tiffin::add_over_ranks(MPI_COMM_WORLD, numbers).or_throw();
    }
    void add_up(const tiffin::trainable_layer<float>& layer) override {
        tiffin::add_over_ranks(MPI_COMM_WORLD, layer).or_throw();
    }

    void check_same(const std::string& text) override {
        std::string first = text;
        std::uint64_t length = first.size();
        MPI_Bcast(&length, 1, MPI_UINT64_T, 0, MPI_COMM_WORLD);
        first.resize(length);
        MPI_Bcast(first.data(), static_cast<int>(length), MPI_CHAR, 0, MPI_COMM_WORLD);
        std::string wrong;
        std::istringstream here(text), there(first);
        for (std::string a, b; wrong.empty() && text != first;) {
            std::getline(here, a);
            std::getline(there, b);
            if (a != b || (!here && !there))
                wrong = "rank " + std::to_string(rank_) + " has " + a + ", rank 0 has " + b;
        }
        if (any(!wrong.empty())) throw std::runtime_error(wrong.empty() ? "another rank differs" : wrong);
    }

    void at_first(std::span<const std::span<const std::byte>> memory,
                  const std::function<void(const reads&)>& task) override {
        constexpr std::uint64_t none = ~std::uint64_t{0};
        std::string wrong;
        if (rank_ == 0) {
            try {
                task([&](int from, std::size_t piece, std::size_t first, std::span<std::byte> to) {
                    if (from == 0) {
                        std::copy_n(memory[piece].data() + first, to.size(), to.data());
                        return;
                    }
                    const request ask{piece, first, to.size()};
                    MPI_Send(&ask, sizeof ask, MPI_BYTE, from, 0, MPI_COMM_WORLD);
                    MPI_Recv(to.data(), static_cast<int>(to.size()), MPI_BYTE, from, 1, MPI_COMM_WORLD,
                             MPI_STATUS_IGNORE);
                });
            } catch (const std::exception& e) {
                wrong = e.what();
            }
            const request end{none, 0, 0};
            for (int r = 1; r < count_; ++r) MPI_Send(&end, sizeof end, MPI_BYTE, r, 0, MPI_COMM_WORLD);
        } else {
            for (request ask;;) {
                MPI_Recv(&ask, sizeof ask, MPI_BYTE, 0, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
                if (ask.piece == none) break;
                MPI_Send(memory[ask.piece].data() + ask.first, static_cast<int>(ask.bytes), MPI_BYTE, 0, 1,
                         MPI_COMM_WORLD);
            }
        }
        if (any(!wrong.empty())) throw std::runtime_error(wrong.empty() ? "rank 0 has failed" : wrong);
    }

private:
    struct request {
        std::uint64_t piece, first, bytes;
    };
    [[nodiscard]] static bool any(bool here) {
        int some = here ? 1 : 0;
        MPI_Allreduce(MPI_IN_PLACE, &some, 1, MPI_INT, MPI_MAX, MPI_COMM_WORLD);
        return some != 0;
    }

    int rank_ = 0, count_ = 1;
};

}  // namespace

std::unique_ptr<training_ranks> ranks_of_mpi(int& argc, char**& argv) {
    return std::make_unique<mpi_ranks>(argc, argv);
}
void end_all_ranks() {
    MPI_Abort(MPI_COMM_WORLD, 1);
    std::abort();
}

#else

std::unique_ptr<training_ranks> ranks_of_mpi(int&, char**&) {
    throw std::runtime_error("this program was built without MPI (Debian: libopenmpi-dev)");
}
void end_all_ranks() {
    std::exit(1);
}

#endif
