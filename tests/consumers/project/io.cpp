// A consumer of layer files: tiffin::io, and the JSON library it brings along.
#include <tiffin/io/safetensors.hpp>

int main() {
    const auto file = tiffin::io::safetensors_file::open("no/such/file");
    return !file && file.failure().code == tiffin::errc::file ? 0 : 1;
}
