// The CUDA backend: the whole grammar on an NVIDIA device. tiffin.hpp does not include it.
#pragma once

#if !defined(__CUDACC__) && !defined(TIFFIN_CUDA_ON_HOST)
#    error \
        "tiffin/cuda.hpp needs a CUDA compiler: build this file with nvcc 12 or newer (CMake: LANGUAGE CUDA, CUDA_STANDARD 20, tiffin::cuda)"
#elif defined(__CUDACC_VER_MAJOR__) && __CUDACC_VER_MAJOR__ < 12
#    error "tiffin/cuda.hpp needs nvcc 12 or newer; older ones do not compile C++20"
#else
#    include <tiffin/cuda/backend.hpp>
#    include <tiffin/cuda/from_host.hpp>
#    include <tiffin/cuda/table/offloaded_pool.hpp>
#    include <tiffin/cuda/table/offloaded_rows.hpp>
#endif
