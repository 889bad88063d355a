// All-to-all exchange of records between MPI ranks, and failures that all ranks share.
#pragma once

#include <tiffin/error.hpp>

#include <algorithm>
#include <cstddef>
#include <numeric>
#include <string>
#include <vector>

#include <mpi.h>

TIFFIN_BEGIN

namespace detail {

// The status of an MPI call's return code. With MPI's default error handler, only success returns.
inline status of_mpi(int code, const char* call) {
    if (code == MPI_SUCCESS) return {};
    char text[MPI_MAX_ERROR_STRING]{};
    int length = 0;
    MPI_Error_string(code, text, &length);
    return failure(errc::file, call, text);
}

// The same status on all ranks: the failure of the lowest rank that has one, with its rank. Where none has, a failure
// unless all ranks pass the same `top_k` and `experts`, that is, make the same call.
// Collective. Cost: one reduction of five ints; a broadcast more when there is a failure.
inline status agreed(MPI_Comm comm, const status& own, std::size_t top_k = 0, std::size_t experts = 0) {
    int rank = 0;
    int ranks = 0;
    MPI_Comm_rank(comm, &rank);
    MPI_Comm_size(comm, &ranks);
    const int k = static_cast<int>(top_k);
    const int e = static_cast<int>(experts);
    int least[]{own.ok() ? ranks : rank, k, -k, e, -e};
    if (status s = of_mpi(MPI_Allreduce(MPI_IN_PLACE, least, 5, MPI_INT, MPI_MIN, comm), "MPI_Allreduce"); !s)
        return s;
    if (least[0] == ranks) {
        if (least[1] == -least[2] && least[3] == -least[4]) return {};
        return failure(errc::option, "ranks", "make different calls: they mix from ", least[1], " to ",
                       -least[2], " of from ", least[3], " to ", -least[4], " experts (0: rows as they are)");
    }
    struct {
        int code;
        char where[128], what[384];  // longer texts are cut off
    } told{};
    if (!own.ok() && rank == least[0]) {
        told.code = static_cast<int>(own.failure().code);
        own.failure().where.copy(told.where, sizeof told.where - 1);
        own.failure().what.copy(told.what, sizeof told.what - 1);
    }
    if (status s = of_mpi(MPI_Bcast(&told, sizeof told, MPI_BYTE, least[0], comm), "MPI_Bcast"); !s) return s;
    std::string where = "rank " + std::to_string(least[0]);
    if (told.where[0] != '\0') where.append(", ").append(told.where);
    return failure(static_cast<errc>(told.code), where, told.what);
}

// A duplicate of a communicator, whose messages cannot be mixed up with the caller's.
class own_communicator {
public:
    own_communicator() = default;
    own_communicator(const own_communicator&) = delete;
    own_communicator& operator=(const own_communicator&) = delete;
    ~own_communicator() {
        int ended = 0;
        MPI_Finalized(&ended);
        if (comm_ != MPI_COMM_NULL && ended == 0) MPI_Comm_free(&comm_);
    }
    // Collective. Precondition: not called before.
    status copy(MPI_Comm comm) { return of_mpi(MPI_Comm_dup(comm, &comm_), "MPI_Comm_dup"); }
    [[nodiscard]] MPI_Comm get() const noexcept { return comm_; }

private:
    MPI_Comm comm_ = MPI_COMM_NULL;
};

// Per rank, the number of records sent to or received from it, and the index of the first; they lie in rank order.
struct rank_counts {
    std::vector<int> count;
    std::vector<int> start;

    explicit rank_counts(std::size_t ranks) : count(ranks), start(ranks) {}
    void clear() noexcept { std::fill(count.begin(), count.end(), 0); }
    // Computes the starts and returns the total. Precondition: an int holds the total.
    std::size_t add_up() noexcept {
        std::exclusive_scan(count.begin(), count.end(), start.begin(), 0);
        return static_cast<std::size_t>(start.back()) + static_cast<std::size_t>(count.back());
    }
};

// Sends each rank the number of records it will receive, and receives theirs. Collective.
inline status exchange_counts(MPI_Comm comm, const rank_counts& sent, rank_counts& received) {
    return of_mpi(MPI_Alltoall(sent.count.data(), 1, MPI_INT, received.count.data(), 1, MPI_INT, comm),
                  "MPI_Alltoall");
}

// Sends records of `bytes` bytes to all ranks and receives theirs. MPI counts records, so that an int is
// enough for more than 2 GiB. Collective. Precondition: an int holds `bytes`.
inline status send_records(MPI_Comm comm, std::size_t bytes, const std::byte* from, const rank_counts& sent,
                           std::byte* to, const rank_counts& received) {
    MPI_Datatype record = MPI_DATATYPE_NULL;
    if (status s =
            of_mpi(MPI_Type_contiguous(static_cast<int>(bytes), MPI_BYTE, &record), "MPI_Type_contiguous");
        !s)
        return s;
    status s = of_mpi(MPI_Type_commit(&record), "MPI_Type_commit");
    if (s.ok())
        s = of_mpi(MPI_Alltoallv(from, sent.count.data(), sent.start.data(), record, to,
                                 received.count.data(), received.start.data(), record, comm),
                   "MPI_Alltoallv");
    MPI_Type_free(&record);
    return s;
}

}  // namespace detail

TIFFIN_END
