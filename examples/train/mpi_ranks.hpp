// The ranks of mpirun.
#pragma once

#include "training_ranks.hpp"

#include <memory>

// Begins MPI, and ends it when destroyed. Throws std::runtime_error where this program was built without it.
std::unique_ptr<training_ranks> ranks_of_mpi(int& argc, char**& argv);
// Ends all ranks, of which some may wait for this one.
[[noreturn]] void end_all_ranks();
