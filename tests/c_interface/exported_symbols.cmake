# Whether a library exports the functions of a header and nothing else.
#
#   cmake -DNM=<nm> -DLIBRARY=<libtiffin.so> -DHEADER=<tiffin.h> -P exported_symbols.cmake
cmake_minimum_required(VERSION 3.25)

execute_process(COMMAND ${NM} -D --defined-only ${LIBRARY} OUTPUT_VARIABLE output COMMAND_ERROR_IS_FATAL ANY)
string(REGEX MATCHALL "[^ \n]+\n" exported "${output}")
list(TRANSFORM exported STRIP)
# Declarations begin with the mark; a name may stand on the line after it.
file(READ ${HEADER} text)
string(REGEX MATCHALL "\nTIFFIN_C_API [^(]*\\(" declared "${text}")
list(TRANSFORM declared REPLACE ".*[ *\n](tiffin_[a-z_]+)\\($" "\\1")
list(LENGTH declared count)
if(count LESS 20)
  message(FATAL_ERROR "${count} functions in ${HEADER}: they are not read")
endif()
set(surplus ${exported})
list(REMOVE_ITEM surplus ${declared})
set(missing ${declared})
list(REMOVE_ITEM missing ${exported})
if(surplus OR missing)
  message(FATAL_ERROR "exported, but not in the header: ${surplus}\nin the header, but not exported: ${missing}")
endif()
message("${count} functions")
