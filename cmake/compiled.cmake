# tiffin::compiled: the kernels and the named layers, compiled once. It is built where something links it.
set(TIFFIN_COMPILED_FLAGS "-march=native" CACHE STRING "The instruction set of tiffin::compiled, as compiler flags")
separate_arguments(flags UNIX_COMMAND "${TIFFIN_COMPILED_FLAGS}")

# The kernels by themselves, for what composes layers of its own.
add_library(tiffin_kernels STATIC EXCLUDE_FROM_ALL ${CMAKE_CURRENT_LIST_DIR}/compiled/kernels.cpp)
target_link_libraries(tiffin_kernels PUBLIC tiffin)
target_compile_definitions(tiffin_kernels PUBLIC TIFFIN_COMPILED)
# Without a build type nothing would be optimised; the kernels are never useful so.
target_compile_options(tiffin_kernels PUBLIC ${flags} PRIVATE $<$<CONFIG:>:-O3 -DNDEBUG>)
# For the shared library of the C interface too.
set_target_properties(tiffin_kernels PROPERTIES POSITION_INDEPENDENT_CODE ON
                      CXX_VISIBILITY_PRESET hidden VISIBILITY_INLINES_HIDDEN ON)

# The engines of the other backends, and of training, for programs that run many compositions on them; what reads and writes files.
set(sources "")
foreach(header IN ITEMS cpu/simd/simd.hpp cpu/eigen/eigen.hpp reference/reference.hpp train/simd.hpp train/reference.hpp)
  string(MAKE_C_IDENTIFIER ${header} name)
  configure_file(${CMAKE_CURRENT_LIST_DIR}/compiled/engines.cpp.in compiled/${name}.cpp @ONLY)
  list(APPEND sources ${CMAKE_CURRENT_BINARY_DIR}/compiled/${name}.cpp)
endforeach()
if(json_target)
  list(APPEND sources ${CMAKE_CURRENT_LIST_DIR}/compiled/files.cpp)
endif()
add_library(tiffin_engines STATIC EXCLUDE_FROM_ALL ${sources})
add_library(tiffin::engines ALIAS tiffin_engines)
target_link_libraries(tiffin_engines PUBLIC tiffin_kernels PRIVATE ${json_target})
target_compile_definitions(tiffin_engines PUBLIC TIFFIN_COMPILED_ENGINES)
target_compile_options(tiffin_engines PRIVATE $<$<CONFIG:>:-O3 -DNDEBUG>)
set_target_properties(tiffin_engines PROPERTIES POSITION_INDEPENDENT_CODE ON
                      CXX_VISIBILITY_PRESET hidden VISIBILITY_INLINES_HIDDEN ON)

set(sources "")
foreach(group IN ITEMS DENSE STEM ROUTED MEMORY MODULATED)
  configure_file(${CMAKE_CURRENT_LIST_DIR}/compiled/layers.cpp.in compiled/${group}.cpp @ONLY)
  list(APPEND sources ${CMAKE_CURRENT_BINARY_DIR}/compiled/${group}.cpp)
endforeach()
add_library(tiffin_compiled STATIC EXCLUDE_FROM_ALL ${sources})
add_library(tiffin::compiled ALIAS tiffin_compiled)
target_link_libraries(tiffin_compiled PUBLIC tiffin_kernels)
target_compile_options(tiffin_compiled PRIVATE $<$<CONFIG:>:-O3 -DNDEBUG>)
