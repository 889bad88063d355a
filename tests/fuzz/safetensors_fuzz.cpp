// libFuzzer target of the safetensors reader and writer. Whatever the bytes, the reader either
// refuses them with one line of ASCII or gives tensors that can be touched, written and read again.
#include <tiffin/io/safetensors.hpp>
#include <tiffin/io/safetensors_writer.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <span>
#include <string>
#include <vector>

namespace {

using tiffin::io::safetensors_file;
using tiffin::io::safetensors_writer;

void require(bool holds) {
    if (!holds) std::abort();
}

std::size_t byte_size(const tiffin::tensor_view& t) {
    return bytes_of(t.type, t.shape.elements());
}

bool is_whole_blocks(const tiffin::tensor_view& t) {
    return t.shape.rank() > 0 && t.shape[t.shape.rank() - 1] % block_of(t.type) == 0;
}

void require_equal(const safetensors_file& a, const safetensors_file& b) {
    require(a.metadata() == b.metadata());
    require(a.tensors().entries().size() == b.tensors().entries().size());
    for (const auto& e : a.tensors().entries()) {
        const tiffin::tensor_view* other = b.tensors().find(e.name);
        require(other != nullptr && other->type == e.tensor.type && other->shape == e.tensor.shape);
        const std::size_t n = byte_size(e.tensor);
        require(n == 0 || std::memcmp(e.tensor.data, other->data, n) == 0);
    }
}

void check(std::span<const std::byte> bytes) {
    const auto file = safetensors_file::parse(bytes, "fuzz");
    if (!file) {
        const std::string message = file.failure().message();
        require(message.size() < 2000);
        for (const char c : message) require(c >= 0x20 && c < 0x7F);
        return;
    }
    safetensors_writer writer;
    unsigned touched = 0;
    for (const auto& e : file->tensors().entries()) {
        const auto* data = static_cast<const unsigned char*>(e.tensor.data);
        for (std::size_t i = 0; i < byte_size(e.tensor); ++i) touched += data[i];
        writer.add(e.name, e.tensor);
        // A format that was taken is in the tensor and no longer in the metadata.
        require(block_of(e.tensor.type) == 1 ||
                (is_whole_blocks(e.tensor) && !file->metadata().contains(tiffin::io::format_key(e.name))));
    }
    volatile unsigned keep = touched;
    static_cast<void>(keep);
    for (const auto& [key, value] : file->metadata()) writer.set(key, value);
    const auto written = writer.to_bytes("fuzz");
    require(written.ok());
    const auto again = safetensors_file::parse(*written, "fuzz");
    require(again.ok());
    require_equal(*file, *again);
    require_equal(*again, *file);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    const auto bytes = std::as_bytes(std::span(data, size));
    check(bytes);
    // Once more with a header length that fits: the header ends with the last brace, data follow.
    std::size_t header = size;
    while (header > 0 && data[header - 1] != '}') --header;
    std::vector<std::byte> framed(8);
    const std::uint64_t length = header;
    std::memcpy(framed.data(), &length, sizeof length);
    framed.insert(framed.end(), bytes.begin(), bytes.end());
    check(framed);
    return 0;
}
