// expect: tiffin/executor/openmp.hpp needs OpenMP: compile with -fopenmp
// mend flags: openmp
#include <tiffin/executor/openmp.hpp>
