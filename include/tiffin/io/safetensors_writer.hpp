// Writing safetensors files: complete or not at all.
#pragma once

#include <tiffin/config.hpp>
#include <tiffin/error.hpp>
#include <tiffin/io/safetensors_format.hpp>
#include <tiffin/tensor.hpp>

#include <nlohmann/json.hpp>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <limits>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

TIFFIN_BEGIN
namespace io {

namespace detail {

// A file under construction; removed again unless it has been given its final name.
struct unfinished_file {
    std::filesystem::path path;
    stream_handle stream;

    unfinished_file() = default;
    unfinished_file(const unfinished_file&) = delete;
    unfinished_file& operator=(const unfinished_file&) = delete;
    ~unfinished_file() {
        std::error_code ignored;
        stream.reset();
        if (!path.empty()) std::filesystem::remove(path, ignored);
    }
};

// The JSON string of `text`, or nothing where it is not UTF-8.
inline std::optional<std::string> json_string(const std::string& text) {
    using policy = nlohmann::json::error_handler_t;
    const nlohmann::json value(text);
    // Only the throwing policy reports bad bytes; the results of the others differ by them.
    std::string replaced = value.dump(-1, ' ', false, policy::replace);
    if (replaced != value.dump(-1, ' ', false, policy::ignore)) return std::nullopt;
    return replaced;
}

}  // namespace detail

// Collects tensors and metadata and writes them as one safetensors file.
//
// Tensors are laid out by element size, largest first, then by name, as the official writer does:
// each is aligned to its elements without gaps, and the bytes of the file do not depend on the
// order of the calls. The tensors' memory is the caller's and is read by `write` and `to_bytes`.
class safetensors_writer {
public:
    // Sets a string of `__metadata__`; a later value of the same key replaces an earlier one.
    safetensors_writer& set(std::string key, std::string value) {
        metadata_.insert_or_assign(std::move(key), std::move(value));
        return *this;
    }

    // Adds a tensor. A name that cannot be written is reported by `write` and `to_bytes`.
    safetensors_writer& add(std::string name, tensor_view tensor) {
        tensors_.add(std::move(name), tensor);
        return *this;
    }

    // Writes the file at `path`, replacing a regular file there (the target, where it is a link).
    // Takes the path; the bytes go to a new file `path`.part<n> that is then renamed.
    // Errors: errc::file where the path cannot be written or is not a regular file, where a name or
    // string is not UTF-8, a tensor has no data or the sizes overflow; errc::duplicate_tensor for a
    // name given twice. No file is left behind then, and an existing one stays as it was.
    // Cost: one write of the data; no copy of it in memory. Not synced to the disk.
    status write(const std::filesystem::path& path) const;

    // Gives the bytes that `write` would write.
    // Takes the name under which failures report them.
    // Errors: as for `write`, without those of the file system.
    // Cost: one copy of the data.
    [[nodiscard]] result<std::vector<std::byte>> to_bytes(std::string_view label) const;

private:
    struct layout {
        std::string head;  // length, JSON and padding: all that precedes the data
        std::vector<const weights::entry*> order;
        std::uint64_t data_size = 0;
    };

    result<layout> arrange(std::string_view label) const;

    static std::uint64_t bytes_of(const tensor_view& tensor) noexcept {
        return detail::byte_count(tensor.type, tensor.shape).value_or(0);
    }

    std::map<std::string, std::string> metadata_;
    weights tensors_;
};

inline result<safetensors_writer::layout> safetensors_writer::arrange(std::string_view label) const {
    const auto refuse = [&](std::string what, errc code = errc::file) {
        return detail::file_failure(code, label, std::move(what));
    };
    layout plan;
    for (const weights::entry& e : tensors_.entries()) plan.order.push_back(&e);
    std::sort(plan.order.begin(), plan.order.end(), [](const weights::entry* a, const weights::entry* b) {
        const std::size_t left = size_of(a->tensor.type);
        const std::size_t right = size_of(b->tensor.type);
        return left != right ? left > right : a->name < b->name;
    });

    std::string json = "{";
    for (const auto& [key, value] : metadata_) {
        const auto left = detail::json_string(key);
        const auto right = detail::json_string(value);
        if (!left || !right)
            return refuse("metadata " + detail::in_quotes(key) + " = " + detail::in_quotes(value) +
                          " is not UTF-8");
        json += json.size() == 1 ? "\"__metadata__\":{" : ",";
        json += *left + ":" + *right;
    }
    if (!metadata_.empty()) json += "}";
    std::set<std::string_view> names;
    for (const weights::entry* e : plan.order) {
        const std::string tensor = "tensor " + detail::in_quotes(e->name);
        const auto name = detail::json_string(e->name);
        if (!name) return refuse(tensor + " has a name that is not UTF-8");
        if (e->name == detail::metadata_key)
            return refuse(tensor + " has the name that the format keeps for metadata");
        if (!names.insert(e->name).second) return refuse(tensor + " was added twice", errc::duplicate_tensor);
        if (block_of(e->tensor.type) != 1)
            return refuse(tensor + " is " + std::string(name_of(e->tensor.type)) +
                              ", which safetensors files do not have",
                          errc::dtype);
        const auto bytes = detail::byte_count(e->tensor.type, e->tensor.shape);
        if (!bytes || *bytes > std::numeric_limits<std::uint64_t>::max() - plan.data_size)
            return refuse(tensor + " is " + std::string(name_of(e->tensor.type)) + " of shape " +
                          to_string(e->tensor.shape) + ": the file's bytes overflow 64 bits");
        if (e->tensor.data == nullptr && *bytes != 0)
            return refuse(tensor + " has no data, but its shape " + to_string(e->tensor.shape) + " takes " +
                          std::to_string(*bytes) + " bytes");
        if (json.size() != 1) json += ",";
        json += *name + ":{\"dtype\":\"" + std::string(name_of(e->tensor.type)) + "\",\"shape\":[";
        for (std::size_t axis = 0; axis < e->tensor.shape.rank(); ++axis)
            json += (axis ? "," : "") + std::to_string(e->tensor.shape[axis]);
        json += "],\"data_offsets\":[" + std::to_string(plan.data_size) + ",";
        plan.data_size += *bytes;
        json += std::to_string(plan.data_size) + "]}";
    }
    json += "}";
    json.append((8 - json.size() % 8) % 8, ' ');
    if (json.size() > detail::header_limit)
        return refuse("the header would take " + std::to_string(json.size()) + " bytes, above the limit of " +
                      std::to_string(detail::header_limit));
    const std::uint64_t length = json.size();
    plan.head.resize(sizeof length);
    std::memcpy(plan.head.data(), &length, sizeof length);
    plan.head += json;
    return plan;
}

inline result<std::vector<std::byte>> safetensors_writer::to_bytes(std::string_view label) const {
    const result<layout> plan = arrange(label);
    if (!plan) return plan.failure();
    std::vector<std::byte> bytes;
    bytes.reserve(plan->head.size() + plan->data_size);
    const auto append = [&](const void* data, std::uint64_t n) {
        const auto* first = static_cast<const std::byte*>(data);
        if (n != 0) bytes.insert(bytes.end(), first, first + n);
    };
    append(plan->head.data(), plan->head.size());
    for (const weights::entry* e : plan->order) append(e->tensor.data, bytes_of(e->tensor));
    return bytes;
}

inline status safetensors_writer::write(const std::filesystem::path& path) const {
    const std::string label = path.string();
    const auto refuse = [&](std::string what) {
        return detail::file_failure(errc::file, label, std::move(what));
    };
    const result<layout> plan = arrange(label);
    if (!plan) return plan.failure();

    using kinds = std::filesystem::file_type;
    std::error_code error;
    std::filesystem::path target = path;
    const kinds kind = std::filesystem::status(path, error).type();
    if (kind == kinds::none) return refuse("the file cannot be reached: " + detail::reason(error));
    if (kind == kinds::directory) return refuse("this is a directory; it cannot be written");
    // Renaming over a device such as /dev/null would replace the device itself.
    if (kind != kinds::not_found && kind != kinds::regular)
        return refuse("this is not a regular file; it is not replaced");
    if (kind == kinds::regular) target = std::filesystem::canonical(path, error);
    if (error && kind == kinds::regular)
        return refuse("the file cannot be reached: " + detail::reason(error));

    detail::unfinished_file part;
    for (int n = 0; n < 1000 && !part.stream; ++n) {
        std::filesystem::path candidate = target;
        candidate += ".part" + std::to_string(n);
        // x: an existing file is never taken over, so two writers cannot share one.
        part.stream.reset(std::fopen(candidate.string().c_str(), "wbx"));
        if (part.stream)
            part.path = std::move(candidate);
        else if (errno != EEXIST)
            return refuse("the file cannot be written: " + detail::last_reason());
    }
    if (!part.stream)
        return refuse("the file cannot be written: 1000 unfinished ones, .part0 on, lie beside it");

    const auto put = [&](const void* data, std::uint64_t n) {
        return n == 0 || std::fwrite(data, 1, n, part.stream.get()) == n;
    };
    bool written = put(plan->head.data(), plan->head.size());
    for (const weights::entry* e : plan->order) written = written && put(e->tensor.data, bytes_of(e->tensor));
    // Closing writes what is still buffered and so can fail like any write.
    written = written && std::fflush(part.stream.get()) == 0;
    if (!written) return refuse("the file cannot be written: " + detail::last_reason());
    if (std::fclose(part.stream.release()) != 0)
        return refuse("the file cannot be written: " + detail::last_reason());
    std::filesystem::rename(part.path, target, error);
    if (error) return refuse("the file cannot be renamed: " + detail::reason(error));
    part.path.clear();
    return {};
}

}  // namespace io
TIFFIN_END
