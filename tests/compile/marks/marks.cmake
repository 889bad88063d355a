# Flags of which a compiler may use an instruction by itself have marks of their own: names of two units that differ in
# one of them differ.
#
#   cmake -DCOMPILER=<c++> -DINCLUDE=<folder> "-DBASE=<flags of all>" "-DFLAGS=<flag;flag>" -P marks.cmake
cmake_minimum_required(VERSION 3.25)

set(known "")
foreach(flag IN ITEMS "" LISTS FLAGS)
  separate_arguments(flags UNIX_COMMAND "${BASE} ${flag}")
  execute_process(COMMAND ${COMPILER} -std=c++20 -I${INCLUDE} ${flags} -E -P ${CMAKE_CURRENT_LIST_DIR}/marks.cpp
                  RESULT_VARIABLE result OUTPUT_VARIABLE output ERROR_VARIABLE error)
  if(NOT result EQUAL 0 AND error MATCHES "unrecognized|unknown|bad value|not supported")
    message("${flag}: not known to the compiler")
    continue()
  endif()
  if(NOT output MATCHES "TIFFIN_MARK_IS (isa_[A-Za-z0-9_]+)")
    message(FATAL_ERROR "${flag}: no mark was found:\n${output}${error}")
  endif()
  set(mark ${CMAKE_MATCH_1})
  message("${flag}: ${mark}")
  if(mark IN_LIST known)
    message(FATAL_ERROR "'${BASE} ${flag}' has the mark of another set: ${mark}")
  endif()
  list(APPEND known ${mark})
endforeach()
list(LENGTH known count)
if(count LESS 2)
  message(FATAL_ERROR "the compiler knows none of ${FLAGS}")
endif()
