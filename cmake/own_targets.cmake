# What tiffin's own executables are compiled with; consumers get none of it.
find_package(OpenMP REQUIRED COMPONENTS CXX)
find_package(Threads REQUIRED)

# What our own code is held to, by every compiler and for every instruction set.
add_library(tiffin_own_warnings INTERFACE)
target_compile_options(tiffin_own_warnings INTERFACE -Wall -Wextra -Wpedantic -Wshadow -Wconversion
                                                     -Wsign-conversion -Wold-style-cast -Werror)
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
  # g++ 12 reports its own AVX-512 intrinsics as reading uninitialised registers (GCC bug 105593) and its
  # own std::string as copying onto itself (105651).
  target_compile_options(tiffin_own_warnings INTERFACE -Wno-maybe-uninitialized -Wno-uninitialized -Wno-restrict)
endif()

# tiffin_own_baseline runs on every machine of its kind, tiffin_own on the one that it is built on.
add_library(tiffin_own_baseline INTERFACE)
target_link_libraries(tiffin_own_baseline INTERFACE tiffin::tiffin tiffin_own_warnings Threads::Threads)
# g++ looks for memory to free from 128 MB on; with 1 GB the tests' files take a tenth less time. std::move and its like
# are functions to it where nothing is optimised.
target_compile_options(tiffin_own_baseline INTERFACE
                       "$<$<COMPILE_LANG_AND_ID:CXX,GNU>:--param=ggc-min-heapsize=1048576;-ffold-simple-inlines>")
add_library(tiffin_own INTERFACE)
target_link_libraries(tiffin_own INTERFACE tiffin_own_baseline)
if(TIFFIN_NATIVE)
  target_compile_options(tiffin_own INTERFACE -march=native)
endif()
# tiffin_own_kernels has the kernels compiled once, where everything is built.
add_library(tiffin_own_kernels INTERFACE)
target_link_libraries(tiffin_own_kernels INTERFACE tiffin_own)
if(TIFFIN_BUILD_TESTS AND TIFFIN_NATIVE AND TIFFIN_COMPILED_FLAGS STREQUAL "-march=native")
  target_link_libraries(tiffin_own_kernels INTERFACE tiffin_engines)
endif()
if(NOT CMAKE_BUILD_TYPE AND NOT CMAKE_CONFIGURATION_TYPES)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "" FORCE)
endif()
