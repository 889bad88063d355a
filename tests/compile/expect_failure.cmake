# Compiles cases of tests/compile/fail. With TIFFIN_EXPECT_PASS they have to compile, which proves that nothing but the
# fault claimed stands in their way; without, each has to fail with the error that it names.
#
#   cmake -DMENDED=<files> -DJOINED=<file to write> <settings> -P expect_failure.cmake    all that can be joined, mended, as one file
#   cmake -DCASE=<file> <settings> -P expect_failure.cmake                                one, and mended if it is not among those
#
# Settings: -DCOMPILER=<c++> -DINCLUDES=<a;b> -DOPENMP=<flags> -DPRECOMPILED=<header>. What has flags, macros or a
# namespace of its own cannot be joined; PRECOMPILED is read before what has neither flags nor macros.
# A case begins with lines of comment:
#   // expect: <regular expression, found within one line of the compiler's errors>
#   // flags: <for both>        // fault flags: <...>        // mend flags: <...>
# `openmp` among the flags stands for what the compiler calls OpenMP.
cmake_minimum_required(VERSION 3.25)

function(value_of key out)
  set(value "")
  if(text MATCHES "(^|\n)// ${key}: ([^\n]*)")
    set(value "${CMAKE_MATCH_2}")
  endif()
  set(${out} "${value}" PARENT_SCOPE)
endfunction()

# compile(source flags result output): of what the variable `text` holds.
function(compile source flags out_result out_output)
  string(REPLACE "openmp" "${OPENMP}" flags "${flags}")
  separate_arguments(flags UNIX_COMMAND "${flags}")
  set(include_flags "")
  if(NOT text MATCHES "flags:|#define")
    list(APPEND include_flags -include ${PRECOMPILED})
  endif()
  foreach(folder IN LISTS INCLUDES)
    list(APPEND include_flags "-I${folder}")
  endforeach()
  execute_process(COMMAND ${COMPILER} -std=c++20 -fsyntax-only ${include_flags} ${flags} ${source}
                  RESULT_VARIABLE result OUTPUT_VARIABLE output ERROR_VARIABLE output)
  set(${out_result} "${result}" PARENT_SCOPE)
  set(${out_output} "${output}" PARENT_SCOPE)
endfunction()

set(ENV{LC_ALL} C)
set(not_joined "flags:|#define|namespace tiffin|TIFFIN_BEGIN")

if(DEFINED MENDED)
  set(headers "")
  set(bodies "")
  foreach(case IN LISTS MENDED)
    file(READ "${case}" text)
    if(NOT text MATCHES "${not_joined}")
      file(STRINGS "${case}" includes REGEX "^#include")
      list(APPEND headers ${includes})
      cmake_path(GET case STEM name)
      string(APPEND bodies "namespace case_${name} {\n#include \"${case}\"\n}\n")
    endif()
  endforeach()
  list(REMOVE_DUPLICATES headers)
  list(JOIN headers "\n" headers)
  file(WRITE "${JOINED}" "${headers}\n${bodies}")
  list(GET MENDED 0 first)
  cmake_path(GET first PARENT_PATH folder)
  set(text "")
  compile("${JOINED}" "-I${folder} -DTIFFIN_EXPECT_PASS" result output)
  if(bodies STREQUAL "" OR NOT result EQUAL 0)
    message(FATAL_ERROR "does not compile when mended:\n${output}")
  endif()
  return()
endif()

file(READ "${CASE}" text)
value_of("expect" expected)
value_of("flags" flags)
value_of("fault flags" fault_flags)
value_of("mend flags" mend_flags)
if(expected STREQUAL "")
  message(FATAL_ERROR "${CASE} does not begin with '// expect: <regular expression>'")
endif()

if(text MATCHES "${not_joined}")
  compile("${CASE}" "${flags} ${mend_flags} -DTIFFIN_EXPECT_PASS" result output)
  if(NOT result EQUAL 0)
    message(FATAL_ERROR "${CASE} does not compile when mended:\n${output}")
  endif()
endif()
compile("${CASE}" "${flags} ${fault_flags}" result output)
if(result EQUAL 0)
  message(FATAL_ERROR "${CASE} compiles; expected was: ${expected}")
endif()
if(NOT output MATCHES "error: [^\n]*(${expected})")
  message(FATAL_ERROR "${CASE} fails without the message expected: ${expected}\n${output}")
endif()
