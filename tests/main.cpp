#define DOCTEST_CONFIG_IMPLEMENT
#include <doctest/doctest.h>

#include <tiffin/cpu/simd/amx_permission.hpp>

int main(int argc, char** argv) {
    tiffin::permit_amx();  // where there are tile registers they are what is tested
    return doctest::Context(argc, argv).run();
}
