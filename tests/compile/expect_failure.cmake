# Compiles a case of tests/compile/fail twice: with TIFFIN_EXPECT_PASS it has to compile, which proves that
# nothing but the fault claimed stands in its way; without, it has to fail with the error it names.
#
#   cmake -DCASE=<file> -DCOMPILER=<c++> -DINCLUDES=<a;b> -DOPENMP=<flags> -DPRECOMPILED=<header> -P expect_failure.cmake
#
# PRECOMPILED is read before cases that have neither flags nor macros of their own.
# A case begins with lines of comment:
#   // expect: <regular expression, found within one line of the compiler's errors>
#   // flags: <for both>        // fault flags: <...>        // mend flags: <...>
# `openmp` among the flags stands for what the compiler calls OpenMP.
cmake_minimum_required(VERSION 3.25)

file(READ "${CASE}" text)

function(value_of key out)
  set(value "")
  if(text MATCHES "(^|\n)// ${key}: ([^\n]*)")
    set(value "${CMAKE_MATCH_2}")
  endif()
  set(${out} "${value}" PARENT_SCOPE)
endfunction()

function(compile flags out_result out_output)
  string(REPLACE "openmp" "${OPENMP}" flags "${flags}")
  separate_arguments(flags UNIX_COMMAND "${flags}")
  set(include_flags "")
  if(NOT text MATCHES "flags:|#define")
    list(APPEND include_flags -include ${PRECOMPILED})
  endif()
  foreach(folder IN LISTS INCLUDES)
    list(APPEND include_flags "-I${folder}")
  endforeach()
  execute_process(COMMAND ${COMPILER} -std=c++20 -fsyntax-only ${include_flags} ${flags} ${CASE}
                  RESULT_VARIABLE result OUTPUT_VARIABLE output ERROR_VARIABLE output)
  set(${out_result} "${result}" PARENT_SCOPE)
  set(${out_output} "${output}" PARENT_SCOPE)
endfunction()

set(ENV{LC_ALL} C)
value_of("expect" expected)
value_of("flags" flags)
value_of("fault flags" fault_flags)
value_of("mend flags" mend_flags)
if(expected STREQUAL "")
  message(FATAL_ERROR "${CASE} does not begin with '// expect: <regular expression>'")
endif()

compile("${flags} ${mend_flags} -DTIFFIN_EXPECT_PASS" result output)
if(NOT result EQUAL 0)
  message(FATAL_ERROR "${CASE} does not compile when mended:\n${output}")
endif()
compile("${flags} ${fault_flags}" result output)
if(result EQUAL 0)
  message(FATAL_ERROR "${CASE} compiles; expected was: ${expected}")
endif()
if(NOT output MATCHES "error: [^\n]*(${expected})")
  message(FATAL_ERROR "${CASE} fails without the message expected: ${expected}\n${output}")
endif()
