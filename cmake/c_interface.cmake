# tiffin::c: the C interface (tiffin/tiffin.h) as a shared library, for one instruction set: TIFFIN_COMPILED_FLAGS.
# For those who ask for it, and for its tests, where they are built.
set(default ${TIFFIN_BUILD_TESTS})
if(CMAKE_CROSSCOMPILING OR TIFFIN_TEST_FORM MATCHES "^(threads|unsanitized|kernels|device)")
  set(default OFF)
endif()
option(TIFFIN_C "Make tiffin::c, the shared library of the C interface" ${default})
if(NOT TIFFIN_C)
  return()
endif()
if(NOT json_target)
  message(STATUS "tiffin: nlohmann/json is not installed; tiffin::c, which reads files, is left out")
  return()
endif()

find_package(Threads REQUIRED)
separate_arguments(flags UNIX_COMMAND "${TIFFIN_COMPILED_FLAGS}")
set(folder ${CMAKE_CURRENT_LIST_DIR}/compiled)
# By themselves: the examples link the backends too.
foreach(backend IN ITEMS simd eigen reference)
  add_library(tiffin_c_${backend} OBJECT ${folder}/c_${backend}.cpp)
  target_link_libraries(tiffin_c_${backend} PRIVATE tiffin_io tiffin_engines)
  target_compile_options(tiffin_c_${backend} PRIVATE ${flags} $<$<CONFIG:>:-O3 -DNDEBUG>)
  set_target_properties(tiffin_c_${backend} PROPERTIES POSITION_INDEPENDENT_CODE ON
                        CXX_VISIBILITY_PRESET hidden VISIBILITY_INLINES_HIDDEN ON)
  list(APPEND backends $<TARGET_OBJECTS:tiffin_c_${backend}>)
endforeach()
add_library(tiffin_c SHARED ${folder}/c_interface.cpp ${folder}/c_composition.cpp ${folder}/c_training.cpp
                            ${folder}/c_rows.cpp ${folder}/c_ngrams.cpp ${folder}/c_stored_table.cpp ${backends})
add_library(tiffin::c ALIAS tiffin_c)
target_link_libraries(tiffin_c PRIVATE $<BUILD_INTERFACE:tiffin_io> $<BUILD_INTERFACE:tiffin_engines>
                                       $<BUILD_INTERFACE:Threads::Threads>)
target_sources(tiffin_c PUBLIC FILE_SET HEADERS BASE_DIRS include FILES include/tiffin/tiffin.h
                                                                 include/tiffin/tiffin_training.h include/tiffin/tiffin_rows.h)
# A version of 0.x promises nothing to the next minor one.
set_target_properties(tiffin_c PROPERTIES
                      OUTPUT_NAME tiffin EXPORT_NAME c VERSION ${PROJECT_VERSION}
                      SOVERSION ${PROJECT_VERSION_MAJOR}.${PROJECT_VERSION_MINOR}
                      CXX_VISIBILITY_PRESET hidden VISIBILITY_INLINES_HIDDEN ON
                      UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE 0  # what they share is more than half of what they take
                      LINK_DEPENDS ${folder}/c_interface.map)
target_compile_options(tiffin_c PRIVATE ${flags} $<$<CONFIG:>:-O3 -DNDEBUG>)
target_link_options(tiffin_c PRIVATE LINKER:--version-script=${folder}/c_interface.map)
# Nobody times these two, and they take less to compile when optimised less.
set_source_files_properties(${folder}/c_eigen.cpp ${folder}/c_reference.cpp PROPERTIES
                            COMPILE_OPTIONS "$<$<AND:$<CONFIG:Release>,$<CXX_COMPILER_ID:GNU>>:-O1>")

if(TIFFIN_PYTHON_PACKAGE)
  target_link_options(tiffin_c PRIVATE -static-libstdc++ -static-libgcc LINKER:--strip-all)
endif()
