// What reads and writes files, compiled once (see tiffin/config.hpp).
#define TIFFIN_COMPILED_ENGINES_HERE_
#include <tiffin/io/model.hpp>
#include <tiffin/io/safetensors_writer.hpp>
