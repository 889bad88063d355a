# Whether a library exports the functions of its headers and nothing else.
#
#   cmake -DNM=<nm> -DLIBRARY=<libtiffin.so> "-DHEADERS=<tiffin.h>;<...>" -P exported_symbols.cmake
cmake_minimum_required(VERSION 3.25)

execute_process(COMMAND ${NM} -D --defined-only ${LIBRARY} OUTPUT_VARIABLE output COMMAND_ERROR_IS_FATAL ANY)
string(REGEX MATCHALL "[^ \n]+\n" exported "${output}")
list(TRANSFORM exported STRIP)
# Declarations begin with the mark; a name may stand on the line after it.
set(declared "")
foreach(header IN LISTS HEADERS)
  file(READ ${header} text)
  string(REGEX MATCHALL "\nTIFFIN_C_API [^(]*\\(" found "${text}")
  list(APPEND declared ${found})
endforeach()
list(TRANSFORM declared REPLACE ".*[ *\n](tiffin_[a-z_]+)\\($" "\\1")
list(LENGTH declared count)
if(count LESS 20)
  message(FATAL_ERROR "${count} functions in ${HEADERS}: they are not read")
endif()
set(surplus ${exported})
list(REMOVE_ITEM surplus ${declared})
set(missing ${declared})
list(REMOVE_ITEM missing ${exported})
if(surplus OR missing)
  message(FATAL_ERROR "exported, but not in the header: ${surplus}\nin the header, but not exported: ${missing}")
endif()
message("${count} functions")
