// Finding a checkpoint's tensors, and the numbers of its config.json.
#pragma once

#include <tiffin/bind/tensor_checks.hpp>
#include <tiffin/error.hpp>
#include <tiffin/io/checkpoint_tensors.hpp>
#include <tiffin/io/json_file.hpp>
#include <tiffin/io/memory_table.hpp>
#include <tiffin/io/quantised_parts.hpp>
#include <tiffin/io/text_config.hpp>
#include <tiffin/io/used_tensors.hpp>
#include <tiffin/io/weight_scales.hpp>
#include <tiffin/table/table_location.hpp>
#include <tiffin/tensor.hpp>

#include <nlohmann/json.hpp>

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

TIFFIN_BEGIN
namespace io::detail {

// Not for several threads: it notes what is found.
class checkpoint_parts {
public:
    // `path`: the folder, or its config.json; `file`: where its tensors are, if there is no index.
    static result<std::shared_ptr<checkpoint_parts>> open(const std::filesystem::path& path,
                                                          const std::string& file = "model.safetensors") {
        auto made = std::make_shared<checkpoint_parts>();
        made->label_ = path.string();
        const std::filesystem::path folder = path.filename() == "config.json" ? path.parent_path() : path;
        auto config = read_json(folder / "config.json", made->label_);
        if (!config) return config.failure();
        text_config text = text_config_of(config->value);
        made->config_ = std::move(text.config);
        made->type_ = std::move(text.type);
        if (status s = made->tensors_.open(folder, made->label_, false, file); !s) return s.failure();
        if (!made->type_.empty()) made->used_ = used_tensors("the memory of '" + made->type_ + "'");
        return {std::move(made)};
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
    // After which of these do names of tensors begin so? Empty where none do.
    [[nodiscard]] std::string root_of(const std::string& prefix) const {
        for (const char* const root : {"model.", "model.language_model.", "language_model.model.", ""})
            if (const auto at = tensors_.by_name().lower_bound(root + prefix);
                at != tensors_.by_name().end() && at->first.starts_with(root + prefix))
                return root;
        return "";
    }
    // With the scales of its codes. Errors: errc::missing_tensor, and why the file's tensor cannot be read.
    [[nodiscard]] result<tensor_view> find(const std::string& name) {
        const auto found = use(name);
        if (!found) return found.failure();
        tensor_view made = **found;
        if (!is_f8(made.type) || !name.ends_with(".weight"))
            return made;  // the meaning of scales beside it would not be known
        const auto scales = scales_of(name);
        if (!scales) return scales.failure();
        if (*scales == nullptr) return made;
        if (status s = add_scales(made, **scales, name); !s) return s.failure();
        return made;
    }
    // The whole numbers of a tensor.
    [[nodiscard]] result<std::vector<std::int64_t>> integers(const std::string& name) {
        const auto found = find(name);
        if (!found) return found.failure();
        if (found->type != dtype::i64 && found->type != dtype::i32)
            return failure(errc::dtype, name, "is ", name_of(found->type), "; it must be I64 or I32");
        std::vector<std::int64_t> made(found->shape.elements());
        for (std::size_t i = 0; i < made.size(); ++i) made[i] = tiffin::detail::load_integer(*found, i);
        return {std::move(made)};
    }
    // The place of a table: `name`.weight, or `name`.shard_0.weight and so on, with the scales of its rows, or one for all.
    // `rows`: that are addressed. Errors: errc::missing_tensor for a shard that is not there where a later one is, or rows of it
    // are addressed.
    [[nodiscard]] result<memory_table> table(const std::string& name, std::int64_t rows = 0) {
        used_.own(name + ".");
        memory_table made;
        const std::size_t count = shards_of(name);
        if (count == 0)
            if (status s = add_part(made, name + ".weight", name); !s) return s.failure();
        for (std::size_t i = 0; i < count; ++i)
            if (status s = add_part(made, shard(name, i), name); !s) return s.failure();
        if (const std::size_t there = made.shape().rows; count > 0 && static_cast<std::int64_t>(there) < rows)
            return failure(errc::missing_tensor, shard(name, count), "missing in ", label_, ": the ", count,
                           " shards before it have ", there, " rows; ", rows, " are addressed");
        return {std::move(made)};
    }
    // Of all tensors whose names begin so, check_rest() looks for those that have not been found.
    void own(std::string prefix) { used_.own(std::move(prefix)); }
    // Errors: errc::unused_tensor for one that is left, there or beside a tensor that has been found.
    [[nodiscard]] status check_rest() const {
        for (const auto& [name, entry] : tensors_.by_name()) {
            status left = used_.check(name);
            if (left) continue;
            return !entry.wrong && entry.wrong.failure().code != errc::dtype ? entry.wrong : left;
        }
        return {};
    }

private:
    [[nodiscard]] failure missing_key(const char* key) const {
        return failure(errc::option, label_, "config.json has no ", key);
    }
    // A weight that another tool has quantised has tensors of other names, and may not be there itself.
    [[nodiscard]] result<const tensor_view*> use(const std::string& name) {
        used_.add(name);
        std::string beside;
        const std::string stem = name.substr(0, name.rfind('.') + 1);
        if (name.ends_with(".weight"))
            for (auto one = tensors_.by_name().lower_bound(stem);
                 beside.empty() && one != tensors_.by_name().end() && one->first.starts_with(stem); ++one)
                if (!quantised_part(one->first).empty()) beside = one->first;
        const auto at = tensors_.by_name().find(name);
        const bool is_there = at != tensors_.by_name().end();
        if (is_there && at->second.wrong) return at->second.tensor;
        failure why = is_there ? at->second.wrong.failure()
                               : failure(errc::missing_tensor, name, "missing in ", label_);
        if (!beside.empty()) why.what += "; " + used_.unused(beside).message();
        return why;
    }
    // The scales beside a weight, which are then used; null where there are none.
    [[nodiscard]] result<const tensor_view*> scales_of(const std::string& weight) {
        const std::string stem = weight.substr(0, weight.rfind('.') + 1);
        for (const std::string_view end : scale_names)
            if (const std::string name = stem + std::string(end); has(name)) return use(name);
        return nullptr;
    }
    static std::string shard(const std::string& name, std::size_t i) {
        return name + ".shard_" + std::to_string(i) + ".weight";
    }
    // One more than the largest number of a shard; 0 where there is none.
    [[nodiscard]] std::size_t shards_of(const std::string& name) const {
        const std::string before = name + ".shard_";
        std::size_t count = 0;
        for (auto at = tensors_.by_name().lower_bound(before);
             at != tensors_.by_name().end() && at->first.starts_with(before); ++at) {
            const std::string_view rest = std::string_view(at->first).substr(before.size());
            std::uint32_t number = 0;
            const auto [end, bad] = std::from_chars(rest.data(), rest.data() + rest.size(), number);
            if (bad == std::errc() && std::string_view(end) == ".weight")
                count = std::max(count, std::size_t{number} + 1);
        }
        return count;
    }
    status add_part(memory_table& to, const std::string& part, const std::string& whole) {
        const auto found = use(part);
        if (!found) return found.failure();
        const tensor_view& t = **found;
        if (t.shape.rank() != 2 || is_integer(t.type))
            return failure(errc::shape, part, "is ", name_of(t.type), " of shape ", to_string(t.shape),
                           "; a table is (rows, width)");
        to.shards.push_back(tensors_.place_of(t));
        const table_shape &rows = to.shards.back().shape, &first = to.shards[0].shape;
        if (rows.width != first.width || rows.type != first.type)
            return failure(errc::shape, part, "has rows of ", rows.width, " values in ", name_of(rows.type),
                           ", the first shard of ", first.width, " in ", name_of(first.type));
        auto beside = scales_of(part);
        if (beside && *beside == nullptr) beside = scales_of(whole + ".weight");
        if (!beside) return beside.failure();
        const tensor_view* const scales = *beside;
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
    used_tensors used_{"the memory"};
};

}  // namespace io::detail
TIFFIN_END
