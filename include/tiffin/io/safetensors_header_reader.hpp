// What reads the header of a safetensors file (safetensors_header.hpp).
#pragma once

#include <tiffin/config.hpp>
#include <tiffin/error.hpp>
#include <tiffin/io/json_text.hpp>
#include <tiffin/io/safetensors_entry.hpp>
#include <tiffin/io/safetensors_format.hpp>
#include <tiffin/tensor.hpp>

#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

TIFFIN_BEGIN
namespace io {
namespace detail {

// A SAX handler for the header: a JSON tree would hide duplicate keys, and nesting is refused before it can grow.
class header_reader final : public nlohmann::json_sax<nlohmann::json> {
public:
    using entry = safetensors_entry;

    header_reader(std::uint64_t data_size, unread_tensors unread)
        : data_size_(data_size), lists_unread_(unread == unread_tensors::listed) {}

    std::map<std::string, std::string> metadata;
    std::vector<entry> entries;

    status read(std::string_view text) {
        if (text.empty()) return failure(errc::file, "", "the header is empty, not a JSON object");
        if (text.front() != '{')
            return failure(errc::file, "", "the header begins with ", in_quotes(text.substr(0, 1)),
                           ", not with '{'");
        // The parser takes a zero byte for the end of its input and would not read on.
        if (const auto zero = text.find('\0'); zero != std::string_view::npos)
            return failure(errc::file, "", "the header has a zero byte at its byte ", zero);
        if (!parse_json(text, *this)) return wrong_.failure();
        if (status s = check_layout(entries, data_size_); !s) return s;
        for (entry& e : entries) {
            if (!e.is_read) continue;
            if (status s = take_format(e.name, e.tensor, metadata); !s) return s;
        }
        return {};
    }

    bool null() override { return unexpected("null"); }
    bool boolean(bool value) override { return unexpected(value ? "true" : "false"); }
    bool number_integer(std::int64_t value) override {  // only with a minus sign, so -0 comes here too
        return unexpected("the number " + (value == 0 ? "-0" : std::to_string(value)));
    }
    bool number_float(double, const std::string& token) override {
        return unexpected("the number " + printable(token));
    }
    bool number_unsigned(std::uint64_t value) override {
        if (place_ != place::shape && place_ != place::data_offsets)
            return unexpected("the number " + std::to_string(value));
        if (place_ == place::data_offsets) {
            if (count_ == 0) entries.back().begin = value;
            if (count_ == 1) entries.back().end = value;
        } else {
            entries.back().unread.sizes.push_back(value);
        }
        ++count_;
        return true;
    }
    bool string(std::string& value) override {
        if (place_ == place::metadata) {
            metadata[key_] = std::move(value);
            return true;
        }
        if (place_ != place::tensor || field_ != dtype_field)
            return unexpected("the string " + in_quotes(value));
        entries.back().unread.type = value;
        for (const dtype type : {dtype::f32, dtype::f16, dtype::bf16, dtype::i32, dtype::i64, dtype::u8,
                                 dtype::f8_e4m3, dtype::f8_e5m2, dtype::f8_e8m0}) {
            if (name_of(type) != value) continue;
            entries.back().tensor.type = type;
            return true;
        }
        entries.back().is_read = false;
        if (lists_unread_) return true;
        return refuse(tensor() + " has dtype " + in_quotes(value) +
                          "; F32, F16, BF16, F8_E4M3, F8_E5M2, F8_E8M0, I32, I64 and U8 can be read",
                      errc::dtype);
    }
    bool binary(nlohmann::json::binary_t&) override { return unexpected("binary data"); }

    bool start_object(std::size_t) override {
        if (place_ == place::start) {
            place_ = place::top;
        } else if (place_ == place::top) {
            place_ = key_ == metadata_key ? place::metadata : place::tensor;
            if (place_ == place::tensor) entries.emplace_back().name = key_;
            seen_.fill(false);
        } else {
            return unexpected("an object");
        }
        return true;
    }
    bool key(std::string& name) override {
        if (place_ == place::top) {
            if (!names_.insert(name).second)
                return name == metadata_key ? refuse("the header has __metadata__ twice")
                                            : refuse("tensor " + in_quotes(name) + " is in the header twice",
                                                     errc::duplicate_tensor);
            key_ = std::move(name);
        } else if (place_ == place::metadata) {
            if (metadata.contains(name)) return refuse("__metadata__ has " + in_quotes(name) + " twice");
            key_ = std::move(name);
        } else {
            const auto found = std::find(field_names.begin(), field_names.end(), name);
            if (found == field_names.end())
                return refuse(tensor() + " has the unknown field " + in_quotes(name));
            field_ = static_cast<std::size_t>(found - field_names.begin());
            if (seen_[field_]) return refuse(tensor() + " has " + name + " twice");
            seen_[field_] = true;
        }
        return true;
    }
    bool end_object() override {
        if (place_ == place::tensor && !check_tensor()) return false;
        place_ = place::top;
        return true;
    }
    bool start_array(std::size_t) override {
        if (place_ != place::tensor || field_ == dtype_field) return unexpected("an array");
        place_ = field_ == shape_field ? place::shape : place::data_offsets;
        count_ = 0;
        return true;
    }
    bool end_array() override {
        if (place_ == place::shape && !take_shape()) return false;
        if (place_ == place::data_offsets && count_ != 2)
            return refuse(tensor() + " has " + std::to_string(count_) +
                          " data_offsets, not a begin and an end");
        place_ = place::tensor;
        return true;
    }
    bool parse_error(std::size_t position, const std::string& token,
                     const nlohmann::json::exception&) override {
        return refuse("the header cannot be read as UTF-8 JSON at its byte " + std::to_string(position) +
                      ", near " + in_quotes(token));
    }

private:
    enum class place : std::uint8_t { start, top, metadata, tensor, shape, data_offsets };
    static constexpr std::array<std::string_view, 3> field_names{{"dtype", "shape", "data_offsets"}};
    static constexpr std::size_t dtype_field = 0;
    static constexpr std::size_t shape_field = 1;

    [[nodiscard]] std::string tensor() const { return "tensor " + in_quotes(entries.back().name); }

    bool refuse(std::string what, errc code = errc::file) {
        // The cast: nvcc takes the assignment for an ignored [[nodiscard]] value.
        static_cast<void>(wrong_ = failure(code, "", what));
        return false;
    }

    bool unexpected(const std::string& found) {
        switch (place_) {
            case place::start: return refuse("the header is " + found + ", not an object");
            case place::top:
                return refuse((key_ == metadata_key ? key_ : "tensor " + in_quotes(key_)) + " is " + found +
                              ", not an object");
            case place::metadata:
                return refuse("__metadata__ has " + found + " for " + in_quotes(key_) + ", not a string");
            case place::tensor:
                return refuse(tensor() + " has " + found + " as its " + std::string(field_names[field_]) +
                              ", not " + (field_ == dtype_field ? "a string" : "an array"));
            default:
                return refuse(tensor() + " has " + found + " in its " + std::string(field_names[field_]) +
                              ", not a whole number below 2^64");
        }
    }

    bool take_shape() {
        entry& e = entries.back();
        if (count_ <= tiffin::shape::max_rank) {
            for (const std::uint64_t size : e.unread.sizes) e.tensor.shape.push_back(size);
            return true;
        }
        e.is_read = false;
        return lists_unread_ || refuse(tensor() + " has " + std::to_string(count_) + " axes; at most " +
                                       std::to_string(tiffin::shape::max_rank) + " can be read");
    }

    bool check_tensor() {
        entry& e = entries.back();
        for (std::size_t i = 0; i < field_names.size(); ++i)
            if (!seen_[i]) return refuse(tensor() + " has no " + std::string(field_names[i]));
        const auto offsets = [&] {
            return tensor() + " has data_offsets [" + std::to_string(e.begin) + ", " + std::to_string(e.end) +
                   "]";
        };
        // For an unknown format only the offsets can be checked.
        const auto bits = e.is_read ? std::nullopt : bits_of(e.unread.type);
        const bool known = e.is_read || bits;
        const auto bytes = e.is_read ? byte_count(e.tensor.type, e.tensor.shape)
                           : bits    ? byte_count(*bits, e.unread.sizes)
                                     : std::nullopt;
        const auto format = [&] { return e.unread.type + " of shape " + sizes_text(e.unread.sizes); };
        if (known && !bytes)
            return refuse(tensor() + " is " + format() + ": its bytes overflow 64 bits" +
                          (e.is_read ? "" : ", or are no whole ones"));
        if (e.begin > e.end) return refuse(offsets() + ", which end before they begin");
        if (e.end > data_size_)
            return refuse(offsets() + ", outside the " + std::to_string(data_size_) +
                          " data bytes of the file");
        if (known && e.end - e.begin != *bytes)
            return refuse(offsets() + ", which is " + std::to_string(e.end - e.begin) + " bytes, but " +
                          format() + " takes " + std::to_string(*bytes));
        if (e.is_read)
            e.unread = {};
        else
            e.unread.name = e.name;
        return true;
    }

    std::uint64_t data_size_;
    bool lists_unread_;
    place place_ = place::start;
    std::string key_;
    std::size_t field_ = 0;
    std::array<bool, field_names.size()> seen_{};
    std::size_t count_ = 0;
    std::set<std::string> names_;
    status wrong_;
};

}  // namespace detail
}  // namespace io
TIFFIN_END
