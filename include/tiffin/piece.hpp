// A piece of a message: text or an integer.
#pragma once

#include <tiffin/config.hpp>

#include <concepts>
#include <cstddef>
#include <string>
#include <string_view>

TIFFIN_BEGIN
namespace detail {

// Text as it is, or an integer in decimal digits. Valid only within the expression that creates it.
class piece {
public:
    piece(const char* text) noexcept : text_(text) {}
    piece(std::string_view text) noexcept : text_(text.data()), number_(text.size()), kind_(kind::view) {}
    piece(const std::string& text) noexcept : piece(std::string_view(text)) {}
    template <std::integral N>
    piece(N number) noexcept
        : number_(static_cast<unsigned long long>(number)),
          kind_(number < N{} ? kind::negative : kind::number) {}

    void append_to(std::string& all) const {
        if (kind_ == kind::text) {
            all += text_;
        } else if (kind_ == kind::view) {
            all.append(text_, number_);
        } else {
            all += kind_ == kind::number ? std::to_string(number_)
                                         : std::to_string(static_cast<long long>(number_));
        }
    }

private:
    enum class kind : unsigned char { text, view, number, negative };
    const char* text_ = nullptr;
    unsigned long long number_ = 0;  // the number, or the length of a view
    kind kind_ = kind::text;
};

}  // namespace detail
TIFFIN_END
