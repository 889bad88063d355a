// Runs a suite's checks at every rank of MPI_COMM_WORLD.
#define DOCTEST_CONFIG_IMPLEMENT
#include "support/doctest.hpp"

#include <iostream>
#include <sstream>

#include <mpi.h>

// The first rank tells of its checks, another only if some of its own failed. All decide the exit status.
int main(int argc, char** argv) {
    int granted = 0, rank = 0;
    MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &granted);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    std::ostringstream told;
    doctest::Context context(argc, argv);
    if (rank != 0) context.setCout(&told);
    int failed = context.run();
    if (rank != 0 && failed != 0) std::cerr << "rank " << rank << ":\n" << told.str();
    PMPI_Allreduce(MPI_IN_PLACE, &failed, 1, MPI_INT, MPI_MAX, MPI_COMM_WORLD);
    MPI_Finalize();
    return failed;
}
