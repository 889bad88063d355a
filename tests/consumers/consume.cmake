# Configures, builds and runs the project beside this script with tiffin consumed in one WAY.
#
#   cmake -DWAY=<way> -DTIFFIN=<sources> -DBUILD=<folder> -DCOMPILER=<c++> ... -P consume.cmake
cmake_minimum_required(VERSION 3.25)

function(run)
  execute_process(COMMAND ${ARGN} RESULT_VARIABLE result OUTPUT_VARIABLE output ERROR_VARIABLE output)
  if(NOT result EQUAL 0)
    list(JOIN ARGN " " command)
    message(FATAL_ERROR "${command}\n${output}")
  endif()
endfunction()

set(project ${CMAKE_CURRENT_LIST_DIR}/project)
file(REMOVE_RECURSE ${BUILD})
file(MAKE_DIRECTORY ${BUILD})

if(WAY STREQUAL "include_flags")
  list(TRANSFORM INCLUDES PREPEND "-I")
  separate_arguments(FLAGS UNIX_COMMAND "${FLAGS}")
  run(${COMPILER} -std=c++20 ${FLAGS} ${INCLUDES} ${project}/main.cpp -o ${BUILD}/consumer)
  run(${BUILD}/consumer)
  return()
endif()

# Nothing may be fetched: what is not found on this machine has to be an error.
set(common -G "${GENERATOR}" -DCMAKE_CXX_COMPILER=${COMPILER} "-DCMAKE_CXX_FLAGS=${FLAGS}"
    "-DCMAKE_PREFIX_PATH=${PREFIXES}" -DEigen3_DIR=${Eigen3_DIR} -Dxsimd_DIR=${xsimd_DIR}
    -DFETCHCONTENT_FULLY_DISCONNECTED=ON)
if(WAY MATCHES "^(.*)_without_json$")
  set(WAY ${CMAKE_MATCH_1})
  list(APPEND common -DCMAKE_DISABLE_FIND_PACKAGE_nlohmann_json=ON)
else()
  list(APPEND common -Dnlohmann_json_DIR=${nlohmann_json_DIR})
endif()

set(given -DWAY=${WAY} -DTIFFIN=${TIFFIN})
if(WAY STREQUAL "find_package")
  run(${CMAKE_COMMAND} -S ${TIFFIN} -B ${BUILD}/tiffin ${common} -DTIFFIN_BUILD_TESTS=OFF
      -DTIFFIN_BUILD_EXAMPLES=OFF -DTIFFIN_BUILD_BENCHMARKS=OFF)
  run(${CMAKE_COMMAND} --install ${BUILD}/tiffin --prefix ${BUILD}/prefix)
  list(APPEND given -Dtiffin_ROOT=${BUILD}/prefix -DVERSION=${VERSION})
endif()
run(${CMAKE_COMMAND} -S ${project} -B ${BUILD}/consumer ${common} ${given})
run(${CMAKE_COMMAND} --build ${BUILD}/consumer)
run(${CMAKE_CTEST_COMMAND} --test-dir ${BUILD}/consumer --output-on-failure --no-tests=error)
