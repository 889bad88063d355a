# Two object files of one program, compiled for different instruction sets: the linker keeps one copy of
# each weak symbol they share, so tiffin must share none. Other libraries' are listed, not judged.
#
#   cmake -DNM=<nm> -DFIRST=<object> -DSECOND=<object> -P shared_symbols.cmake
cmake_minimum_required(VERSION 3.25)

function(weak_symbols object out)
  execute_process(COMMAND ${NM} -C --defined-only ${object} OUTPUT_VARIABLE listing RESULT_VARIABLE result)
  if(NOT result EQUAL 0)
    message(FATAL_ERROR "${NM} cannot read ${object}")
  endif()
  # A demangled name may hold the characters that CMake's lists are made of.
  string(REGEX REPLACE "[][;]" "_" listing "${listing}")
  string(REPLACE "\n" ";" lines "${listing}")
  list(FILTER lines INCLUDE REGEX "^[0-9a-f]+ [WVu] ")
  list(TRANSFORM lines REPLACE "^[0-9a-f]+ [WVu] " "")
  list(REMOVE_DUPLICATES lines)
  set(${out} "${lines}" PARENT_SCOPE)
endfunction()

weak_symbols("${FIRST}" first)
weak_symbols("${SECOND}" second)
# What both have: the first's without those that are only the first's.
set(only_first ${first})
list(REMOVE_ITEM only_first ${second})
set(shared ${first})
list(REMOVE_ITEM shared ${only_first})

set(of_tiffin ${first} ${second})
list(FILTER of_tiffin INCLUDE REGEX "tiffin::|6tiffin")
set(shared_of_tiffin ${shared})
list(FILTER shared_of_tiffin INCLUDE REGEX "tiffin::|6tiffin")
set(shared_of_eigen ${shared})
list(FILTER shared_of_eigen INCLUDE REGEX "Eigen::")
list(LENGTH of_tiffin count)
list(LENGTH shared shared_count)
list(LENGTH shared_of_tiffin shared_tiffin_count)
list(LENGTH shared_of_eigen shared_eigen_count)

message("${count} weak symbols of tiffin, ${shared_tiffin_count} of them shared; "
        "${shared_count} shared in all, ${shared_eigen_count} of them Eigen's")
if(count EQUAL 0)
  message(FATAL_ERROR "no symbol of tiffin was found: the check sees nothing")
endif()
if(shared_of_tiffin)
  list(JOIN shared_of_tiffin "\n  " text)
  message(FATAL_ERROR "shared symbols of tiffin:\n  ${text}")
endif()
