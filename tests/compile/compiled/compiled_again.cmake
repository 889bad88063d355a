# An object that uses tiffin::compiled must not have what the library has: neither kernels nor a named layer.
#
#   cmake -DNM=<nm> -DOBJECT=<file> -P compiled_again.cmake
cmake_minimum_required(VERSION 3.25)
execute_process(COMMAND ${NM} -C --defined-only ${OBJECT} RESULT_VARIABLE result OUTPUT_VARIABLE symbols)
if(NOT result EQUAL 0)
  message(FATAL_ERROR "${NM} cannot read ${OBJECT}")
endif()
if(NOT symbols MATCHES "tiffin::isa_")
  message(FATAL_ERROR "${OBJECT} has nothing of tiffin; what ${NM} says of it cannot be trusted")
endif()
foreach(known IN ITEMS "simd_detail::multiply_tile<" "simd_detail::kernels<" "layer_of_any_block::run\\("
                       "prepare_here<[^\n]*gate<[^\n]*silu>[^\n]*simd<")
  if(symbols MATCHES "[^\n]*${known}[^\n]*")
    message(FATAL_ERROR "${OBJECT} compiles again what tiffin::compiled has: ${CMAKE_MATCH_0}")
  endif()
endforeach()
