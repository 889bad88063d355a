// One program, two instruction sets: both halves must compute what they were asked for.
#include "layer.hpp"

#include <cstdio>

int main() {
    const int baseline = run_baseline(), native = run_native();
    std::printf("baseline: %s, %s, %d wrong values\n", registers_of_baseline().c_str(),
                tiffin_of_baseline().c_str(), baseline);
    std::printf("native:   %s, %s, %d wrong values\n", registers_of_native().c_str(),
                tiffin_of_native().c_str(), native);
    // Equal, the halves would prove nothing.
    const bool differ =
        registers_of_baseline() != registers_of_native() && tiffin_of_baseline() != tiffin_of_native();
    if (!differ) std::printf("the two halves are one\n");
    return baseline == 0 && native == 0 && differ ? 0 : 1;
}
