# ggml as its own project builds it, beside what loads it or links it: the target `ggml`, of the source tree of llama.cpp
# in TIFFIN_LLAMA_CPP. Nothing of it is built unless something needs it.
include_guard(GLOBAL)
set(BUILD_SHARED_LIBS ON)
set(GGML_CCACHE OFF)
set(GGML_LLAMAFILE_DEFAULT ON)  # its matrix products of llamafile, which llama.cpp turns on
add_subdirectory("${TIFFIN_LLAMA_CPP}/ggml" "${PROJECT_BINARY_DIR}/ggml" EXCLUDE_FROM_ALL)
unset(BUILD_SHARED_LIBS)
unset(GGML_CCACHE)
unset(GGML_LLAMAFILE_DEFAULT)
