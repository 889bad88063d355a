// JSON text, read and written. With tiffin::engines it is compiled once: in each file that reads a header, the parser
// would bring nlohmann's readers of four binary formats.
#pragma once

#include <tiffin/config.hpp>

#include <nlohmann/json.hpp>

#include <optional>
#include <string>
#include <string_view>

TIFFIN_BEGIN
namespace io::detail {

// Reads `text` into the callbacks of `to`. Returns false where it is no JSON, or a callback returns false.
TIFFIN_ENGINES_INLINE bool parse_json(std::string_view text, nlohmann::json_sax<nlohmann::json>& to);

// The tree of `text`, which is JSON.
TIFFIN_ENGINES_INLINE nlohmann::json json_tree(std::string_view text);

// The JSON string of `text`, or nothing where it is not UTF-8.
TIFFIN_ENGINES_INLINE std::optional<std::string> json_string(const std::string& text);

#if TIFFIN_ENGINES_DEFINITIONS
TIFFIN_ENGINES_INLINE bool parse_json(std::string_view text, nlohmann::json_sax<nlohmann::json>& to) {
    return nlohmann::json::sax_parse(text.data(), text.data() + text.size(), &to);
}

TIFFIN_ENGINES_INLINE nlohmann::json json_tree(std::string_view text) {
    return nlohmann::json::parse(text.data(), text.data() + text.size(), nullptr, false);
}

TIFFIN_ENGINES_INLINE std::optional<std::string> json_string(const std::string& text) {
    using policy = nlohmann::json::error_handler_t;
    const nlohmann::json value(text);
    // Only the throwing policy reports invalid bytes; the results of the other two differ where there are any.
    std::string replaced = value.dump(-1, ' ', false, policy::replace);
    if (replaced != value.dump(-1, ' ', false, policy::ignore)) return std::nullopt;
    return replaced;
}
#endif

}  // namespace io::detail
TIFFIN_END
