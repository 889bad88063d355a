# The library of the Python package (pyproject.toml), beside whose modules it lies.
option(TIFFIN_PYTHON_PACKAGE "Install tiffin::c as part of the Python package" OFF)
set(TIFFIN_PYTHON_LEVELS "" CACHE STRING
    "The instruction sets of the Python package: all, or some of those of python/tiffin/_levels.py; empty: TIFFIN_COMPILED_FLAGS alone")
if(NOT TIFFIN_PYTHON_PACKAGE)
  return()
endif()
set(levels ${TIFFIN_PYTHON_LEVELS})
if(levels STREQUAL "all")
  set(levels x86-64-v3 x86-64-v4 avx512-bf16 amx)
endif()
set(flags_x86-64-v3 -march=x86-64-v3)
set(flags_x86-64-v4 -march=x86-64-v4)
set(flags_avx512-bf16 "${flags_x86-64-v4} -mavx512vnni -mavx512bf16")
set(flags_amx "${flags_avx512-bf16} -mamx-tile -mamx-int8 -mamx-bf16")

if(NOT levels)
  add_custom_target(tiffin_python ALL DEPENDS tiffin_c)
  install(FILES $<TARGET_FILE:tiffin_c> DESTINATION tiffin RENAME libtiffin.so COMPONENT python)
  return()
endif()
# One after the other: each uses all cores.
include(ExternalProject)
add_custom_target(tiffin_python ALL)
set(before "")
foreach(level IN LISTS levels)
  if(NOT DEFINED flags_${level})
    message(FATAL_ERROR "tiffin: TIFFIN_PYTHON_LEVELS: ${level} is none: there are x86-64-v3, x86-64-v4, avx512-bf16 and amx")
  endif()
  set(tree ${CMAKE_CURRENT_BINARY_DIR}/levels/${level})
  ExternalProject_Add(tiffin_python_${level}
    SOURCE_DIR ${PROJECT_SOURCE_DIR}
    BINARY_DIR ${tree}
    PREFIX ${tree}/steps
    DEPENDS ${before}
    CMAKE_ARGS -DCMAKE_BUILD_TYPE=${CMAKE_BUILD_TYPE} -DCMAKE_CXX_COMPILER=${CMAKE_CXX_COMPILER} -DTIFFIN_C=ON
               -DTIFFIN_PYTHON_PACKAGE=ON "-DTIFFIN_COMPILED_FLAGS=${flags_${level}}" -DTIFFIN_MPI=OFF -DTIFFIN_INSTALL=OFF
               -DTIFFIN_BUILD_TESTS=OFF -DTIFFIN_BUILD_EXAMPLES=OFF -DTIFFIN_BUILD_BENCHMARKS=OFF
    BUILD_COMMAND ${CMAKE_COMMAND} --build ${tree} --target tiffin_c --parallel
    BUILD_ALWAYS ON
    USES_TERMINAL_BUILD ON
    INSTALL_COMMAND "")
  set(before tiffin_python_${level})
  add_dependencies(tiffin_python tiffin_python_${level})
  install(FILES ${tree}/libtiffin.so.${PROJECT_VERSION} DESTINATION tiffin RENAME libtiffin-${level}.so COMPONENT python)
endforeach()
