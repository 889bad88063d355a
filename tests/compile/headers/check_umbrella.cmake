# The umbrella brings no dependency but xsimd: Eigen, JSON, OpenMP, MPI and CUDA are for those who ask.
#
#   cmake -DCOMPILER=<c++> -DINCLUDES=<a;b> -DSOURCE=<file> -P check_umbrella.cmake
cmake_minimum_required(VERSION 3.25)

set(include_flags "")
foreach(folder IN LISTS INCLUDES)
  list(APPEND include_flags "-I${folder}")
endforeach()
execute_process(COMMAND ${COMPILER} -std=c++20 -M ${include_flags} ${SOURCE}
                RESULT_VARIABLE result OUTPUT_VARIABLE read)
if(NOT result EQUAL 0)
  message(FATAL_ERROR "${SOURCE} does not compile")
endif()
foreach(needed IN ITEMS tiffin/tiffin.hpp xsimd/xsimd.hpp)
  if(NOT read MATCHES "/${needed}[ \n]")
    message(FATAL_ERROR "the list of what ${SOURCE} includes lacks ${needed}; it cannot be trusted")
  endif()
endforeach()
foreach(unwanted IN ITEMS "/Eigen/" "nlohmann/" "/omp\\.h" "/mpi\\.h" "/cuda[a-z_0-9]*\\.h" "tiffin/io/" "tiffin/cuda")
  if(read MATCHES "[^ \n]*${unwanted}[^ \n]*")
    message(FATAL_ERROR "tiffin.hpp includes ${CMAKE_MATCH_0}")
  endif()
endforeach()
