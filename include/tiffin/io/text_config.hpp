// The configuration of a checkpoint's text model.
#pragma once

#include <tiffin/config.hpp>

#include <nlohmann/json.hpp>

#include <array>
#include <string>

TIFFIN_BEGIN
namespace io::detail {

// The configuration of the text model, which may be all of config.json, and its model_type.
struct text_config {
    nlohmann::json config;
    std::string type;
};
inline text_config text_config_of(const nlohmann::json& whole) {
    const auto text = whole.find("text_config");
    text_config made{text != whole.end() && text->is_object() ? *text : whole, ""};
    const std::array<const nlohmann::json*, 2> both{&whole, &made.config};
    for (const nlohmann::json* const one : both)
        if (const auto type = one->find("model_type"); type != one->end() && type->is_string())
            made.type = type->get<std::string>();
    return made;
}

}  // namespace io::detail
TIFFIN_END
