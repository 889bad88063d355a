// libFuzzer target of compositions as text. Whatever the bytes, it either refuses them with one line of ASCII or gives a
// tree whose text is read as the same tree.
#include <tiffin/plan/text.hpp>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    const auto read = tiffin::parse_text(std::string(data, data + size));
    if (!read.ok()) {
        for (const char c : read.failure().message())
            if (c < 0x20 || c > 0x7E) std::abort();
        return 0;
    }
    const auto again = tiffin::parse_text(tiffin::print_text(*read));
    if (!again.ok() || !(*again == *read)) std::abort();
    return 0;
}
