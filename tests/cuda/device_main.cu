// doctest's main for tests on a device: where there is none they are skipped, which is told, and not passed.
#define DOCTEST_CONFIG_IMPLEMENT
#include "support/doctest.hpp"

#include <cuda_runtime.h>

#include <cstdio>

int main(int count, char** arguments) {
    int devices = 0;
    const cudaError_t code = cudaGetDeviceCount(&devices);
    if (code != cudaSuccess || devices == 0) {
        std::printf("skipped: no CUDA device (%s)\n", cudaGetErrorString(code));
        return 77;
    }
    return doctest::Context(count, arguments).run();
}
