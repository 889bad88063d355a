// Finding a checkpoint's tensors, and the numbers of its config.json.
#pragma once

#include <tiffin/bind/tensor_checks.hpp>
#include <tiffin/error.hpp>
#include <tiffin/io/checkpoint_tensors.hpp>
#include <tiffin/io/json_file.hpp>
#include <tiffin/io/memory_table.hpp>
#include <tiffin/io/weight_scales.hpp>
#include <tiffin/quoted.hpp>
#include <tiffin/table/table_location.hpp>
#include <tiffin/tensor.hpp>

#include <nlohmann/json.hpp>

#include <array>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

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

class checkpoint_parts {
public:
    // `path`: the folder, or its config.json; `file`: where its tensors are, if there is no index.
    static result<std::shared_ptr<const checkpoint_parts>> open(
        const std::filesystem::path& path, const std::string& file = "model.safetensors") {
        auto made = std::make_shared<checkpoint_parts>();
        made->label_ = path.string();
        const std::filesystem::path folder = path.filename() == "config.json" ? path.parent_path() : path;
        auto config = read_json(folder / "config.json", made->label_);
        if (!config) return config.failure();
        text_config text = text_config_of(config->value);
        made->config_ = std::move(text.config);
        made->type_ = std::move(text.type);
        if (status s = made->tensors_.open(folder, made->label_, false, file); !s) return s.failure();
        return std::shared_ptr<const checkpoint_parts>(std::move(made));
    }

    [[nodiscard]] const std::string& label() const noexcept { return label_; }
    // The model_type of the text model.
    [[nodiscard]] const std::string& type() const noexcept { return type_; }

    [[nodiscard]] bool tells(const char* key) const {
        const auto at = config_.find(key);
        return at != config_.end() && !at->is_null();
    }
    template <class T>
    [[nodiscard]] bool is(const char* key, const T& value) const {
        return tells(key) && config_[key] == value;
    }
    // A whole number up to 2^31 - 1, `least` at least; the first of a list.
    [[nodiscard]] result<std::size_t> number(const char* key, std::uint64_t least = 1) const {
        if (!tells(key)) return missing_key(key);
        const nlohmann::json& value = config_[key];
        const nlohmann::json& one = value.is_array() && !value.empty() ? value[0] : value;
        if (!one.is_number_unsigned() || one.get<std::uint64_t>() < least ||
            one.get<std::uint64_t>() > 0x7FFFFFFF)
            return wrong(key, "is no whole number from " + std::to_string(least) + " to 2^31 - 1");
        return one.get<std::size_t>();
    }
    [[nodiscard]] result<std::size_t> number_or(const char* key, std::size_t usual,
                                                std::uint64_t least = 1) const {
        return tells(key) ? number(key, least) : result<std::size_t>(usual);
    }
    // A number from 0 to 1, such as an eps.
    [[nodiscard]] result<float> fraction(const char* key, float usual) const {
        if (!tells(key)) return usual;
        if (!config_[key].is_number() ||
            !(config_[key].get<double>() >= 0 && config_[key].get<double>() <= 1))
            return wrong(key, "is no number from 0 to 1");
        return config_[key].get<float>();
    }
    [[nodiscard]] result<std::vector<std::size_t>> numbers(const char* key) const {
        if (!tells(key)) return missing_key(key);
        std::vector<std::size_t> made;
        if (!config_[key].is_array()) return wrong(key, "is no list");
        for (const nlohmann::json& one : config_[key]) {
            if (!one.is_number_unsigned() || one.get<std::uint64_t>() > 0x7FFFFFFF)
                return wrong(key, "has a number that is none from 0 to 2^31 - 1");
            made.push_back(one.get<std::size_t>());
        }
        return {std::move(made)};
    }
    [[nodiscard]] failure wrong(const char* key, const std::string& why) const {
        return failure(errc::option, label_, key, " of config.json ", why);
    }

    [[nodiscard]] bool has(const std::string& name) const { return tensors_.by_name().contains(name); }
    // Before which of these does a tensor of this name stand? Empty where none has it.
    [[nodiscard]] std::string root_of(const std::string& name) const {
        for (const char* const root : {"model.", "model.language_model.", "language_model.model.", ""})
            if (has(root + name)) return root;
        return "";
    }
    // With the scales of its codes. Errors: errc::missing_tensor, and why the file's tensor cannot be read.
    [[nodiscard]] result<tensor_view> find(const std::string& name) const {
        const auto at = tensors_.by_name().find(name);
        if (at == tensors_.by_name().end()) return failure(errc::missing_tensor, name, "missing in ", label_);
        if (!at->second.wrong) return at->second.wrong.failure();
        tensor_view found = *at->second.tensor;
        const tensor_view* const scales = scales_of(name);
        if (scales == nullptr) return found;
        if (!is_f8(found.type))
            return failure(errc::unused_tensor, name, "is ", name_of(found.type),
                           ", and there are scales beside it, whose meaning is not known");
        if (status s = add_scales(found, *scales, name); !s) return s.failure();
        return found;
    }
    // The whole numbers of a tensor.
    [[nodiscard]] result<std::vector<std::int64_t>> integers(const std::string& name) const {
        const auto found = find(name);
        if (!found) return found.failure();
        if (found->type != dtype::i64 && found->type != dtype::i32)
            return failure(errc::dtype, name, "is ", name_of(found->type), "; it must be I64 or I32");
        std::vector<std::int64_t> made(found->shape.elements());
        for (std::size_t i = 0; i < made.size(); ++i) made[i] = tiffin::detail::load_integer(*found, i);
        return {std::move(made)};
    }
    // The place of a table: `name`.weight, or `name`.shard_0.weight and so on, with the scales of its rows, or one for all.
    [[nodiscard]] result<memory_table> table(const std::string& name) const {
        memory_table made;
        const std::string first = name + ".shard_0.weight";
        const bool is_sharded = has(first);
        for (std::size_t i = 0;; ++i) {
            const std::string part =
                is_sharded ? name + ".shard_" + std::to_string(i) + ".weight" : name + ".weight";
            if (i > 0 && (!is_sharded || !has(part))) break;
            if (status s = add_part(made, part, name); !s) return s.failure();
        }
        return {std::move(made)};
    }

private:
    [[nodiscard]] failure missing_key(const char* key) const {
        return failure(errc::option, label_, "config.json has no ", key);
    }
    [[nodiscard]] const tensor_view* scales_of(const std::string& weight) const {
        const std::string stem = weight.substr(0, weight.rfind('.') + 1);
        for (const std::string_view end : scale_names)
            if (const auto at = tensors_.by_name().find(stem + std::string(end));
                at != tensors_.by_name().end())
                return at->second.tensor;
        return nullptr;
    }
    status add_part(memory_table& to, const std::string& part, const std::string& whole) const {
        const auto at = tensors_.by_name().find(part);
        if (at == tensors_.by_name().end()) return failure(errc::missing_tensor, part, "missing in ", label_);
        if (!at->second.wrong) return at->second.wrong;
        const tensor_view& t = *at->second.tensor;
        if (t.shape.rank() != 2 || is_integer(t.type))
            return failure(errc::shape, part, "is ", name_of(t.type), " of shape ", to_string(t.shape),
                           "; a table is (rows, width)");
        to.shards.push_back(tensors_.place_of(t));
        const tensor_view* scales = scales_of(part);
        if (scales == nullptr) scales = scales_of(whole + ".weight");
        if (scales == nullptr) return {};
        if (is_integer(scales->type))
            return failure(errc::dtype, part, "has scales that are ", name_of(scales->type));
        if (scales->shape.elements() == 1) {
            const float one = load_as_f32(*scales, 0);
            if (to.scale.value_or(one) != one)
                return failure(errc::option, part, "has another scale than the shards before it");
            to.scale = one;
            return {};
        }
        if (scales->shape.rank() != 2 || scales->shape[0] != t.shape[0])
            return failure(errc::shape, part, "has scales of shape ", to_string(scales->shape),
                           "; there are ", t.shape[0], " rows");
        to.scales.push_back(tensors_.place_of(*scales));
        return {};
    }

    std::string label_, type_;
    nlohmann::json config_;
    checkpoint_tensors tensors_;
};

}  // namespace io::detail
TIFFIN_END
