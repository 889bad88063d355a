// libFuzzer target of compositions as text. Whatever the bytes, it either refuses them with one line of ASCII or gives a
// tree whose text is read as the same tree. What composes has a text that composes to itself.
#include <tiffin/all_policies.hpp>
#include <tiffin/plan/text.hpp>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    const auto read = tiffin::parse_text(std::string(data, data + size));
    const auto composed = tiffin::compose(std::string(data, data + size), tiffin::all_policies);
    if (!composed.ok()) {
        for (const char c : composed.failure().message())
            if (c < 0x20 || c > 0x7E) std::abort();
    } else {
        const auto again = tiffin::compose(composed->text(), tiffin::all_policies);
        if (!again.ok() || again->text() != composed->text()) std::abort();
    }
    if (!read.ok()) return 0;
    const auto again = tiffin::parse_text(tiffin::print_text(*read));
    if (!again.ok() || !(*again == *read)) std::abort();
    return 0;
}
