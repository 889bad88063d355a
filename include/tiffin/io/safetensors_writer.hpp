// Writes safetensors files, completely or not at all.
#pragma once

#include <tiffin/config.hpp>
#include <tiffin/error.hpp>
#include <tiffin/io/json_text.hpp>
#include <tiffin/io/safetensors_format.hpp>
#include <tiffin/io/unfinished_file.hpp>
#include <tiffin/tensor.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <functional>
#include <limits>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

TIFFIN_BEGIN
namespace io {

// Takes the next bytes of a tensor; returns false where they cannot be written.
using byte_sink = std::function<bool(const void*, std::size_t)>;
// Passes a tensor's bytes to the sink in order, in pieces of any size. Returns early where the sink returns false, and
// with a failure where it cannot produce the rest.
using byte_source = std::function<status(const byte_sink&)>;

// Collects tensors and metadata and writes them as one safetensors file.
//
// Tensors are laid out by element size, largest first, then by name, as the official writer does:
// each is aligned to its elements without gaps, and the bytes of the file do not depend on the
// order of the calls. The tensors' memory is the caller's and is read by `write` and `to_bytes`.
//
// Tensors in blocks are stored as U8, with the metadata key `<name>.format`.
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

    // Adds a tensor whose bytes are produced while it is written, for those larger than memory.
    safetensors_writer& add(std::string name, dtype type, tiffin::shape sizes, byte_source bytes) {
        sources_.insert_or_assign(name, std::move(bytes));
        return add(std::move(name), tensor_view{nullptr, type, sizes});
    }

    // Writes the file at `path`. A regular file there (the target, where it is a link) is replaced once all is written;
    // a stream is written to (see unfinished_file).
    // Errors: errc::file where the path cannot be written, where a name or string is not UTF-8, a tensor has no data or
    //   the sizes overflow; errc::duplicate_tensor for a name given twice; errc::shape for rows that are no whole
    //   blocks of their format. No file is left behind then, and an existing one stays as it was.
    // Cost: one write of the data; no copy of it in memory. Not synced to the disk.
    status write(const std::filesystem::path& path) const;

    // Writes to an output that was begun earlier, so that a wrong path fails before the work. The caller calls its
    // finish(): several outputs can be written before any of them has its name.
    // Errors: as above.
    status write(unfinished_file& to) const;

    // Returns the bytes that `write` would write; failures carry `label` as `where`.
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

    // Passes a tensor's bytes, from memory or from its source, to a sink.
    status put(const weights::entry& e, std::string_view label, const byte_sink& sink) const;

    std::map<std::string, std::string> metadata_;
    weights tensors_;
    std::map<std::string, byte_source, std::less<>> sources_;
};

#if TIFFIN_ENGINES_DEFINITIONS
TIFFIN_ENGINES_INLINE status safetensors_writer::put(const weights::entry& e, std::string_view label,
                                                     const byte_sink& sink) const {
    const std::uint64_t bytes = bytes_of(e.tensor);
    std::uint64_t done = 0;
    bool taken = true;
    const auto count = [&](const void* data, std::size_t n) {
        done += n;
        taken = taken && done <= bytes && (n == 0 || sink(data, n));
        return taken;
    };
    const auto source = sources_.find(e.name);
    if (source == sources_.end())
        count(e.tensor.data, bytes);
    else if (status s = source->second(count); !s)
        return s;
    if (taken && done == bytes) return {};
    if (done > bytes || taken)
        return failure(errc::size, std::string(label), "tensor ", detail::in_quotes(e.name),
                       " was produced with ",
                       (taken ? std::to_string(done) : "more than " + std::to_string(bytes)),
                       " bytes; its shape takes ", bytes);
    return failure(errc::file, std::string(label), "the file cannot be written: ", detail::last_reason());
}

TIFFIN_ENGINES_INLINE result<safetensors_writer::layout> safetensors_writer::arrange(
    std::string_view label) const {
    const auto refuse = [&](std::string what, errc code = errc::file) {
        return failure(code, std::string(label), std::move(what));
    };
    layout plan;
    for (const weights::entry& e : tensors_.entries()) plan.order.push_back(&e);
    std::sort(plan.order.begin(), plan.order.end(), [](const weights::entry* a, const weights::entry* b) {
        const std::size_t left = size_of(detail::stored_type(a->tensor.type));
        const std::size_t right = size_of(detail::stored_type(b->tensor.type));
        return left != right ? left > right : a->name < b->name;
    });

    std::map<std::string, std::string> metadata = metadata_;
    std::set<std::string_view> names;
    std::string tensors;
    for (const weights::entry* e : plan.order) {
        const auto& [data, type, sizes, gathered, scales] = e->tensor;
        const std::string tensor = "tensor " + detail::in_quotes(e->name);
        const auto name = detail::json_string(e->name);
        if (!name) return refuse(tensor + " has a name that is not UTF-8");
        if (e->name == detail::metadata_key)
            return refuse(tensor + " has the name that the format keeps for metadata");
        if (!names.insert(e->name).second) return refuse(tensor + " was added twice", errc::duplicate_tensor);
        if (scales.any())
            return refuse(tensor + " has scales with it; its codes and its scales are two tensors of a file",
                          errc::dtype);
        const std::string format =
            tensor + " is " + std::string(name_of(type)) + " of shape " + to_string(sizes);
        if (!detail::is_whole_blocks(type, sizes))
            return refuse(format + ": rows are no whole blocks of " + std::to_string(block_of(type)),
                          errc::shape);
        const auto bytes = detail::byte_count(type, sizes);
        if (!bytes || *bytes > std::numeric_limits<std::uint64_t>::max() - plan.data_size)
            return refuse(format + ": the file's bytes overflow 64 bits");
        if (data == nullptr && *bytes != 0 && !sources_.contains(e->name))
            return refuse(tensor + " has no data, but its shape " + to_string(sizes) + " takes " +
                          std::to_string(*bytes) + " bytes");
        if (block_of(type) != 1)
            metadata.insert_or_assign(format_key(e->name), std::string(detail::format_name(type)));
        const tiffin::shape stored = detail::stored_shape(type, sizes);
        tensors += "," + *name + ":{\"dtype\":\"" + std::string(name_of(detail::stored_type(type))) +
                   "\",\"shape\":[";
        for (std::size_t axis = 0; axis < stored.rank(); ++axis)
            tensors += (axis ? "," : "") + std::to_string(stored[axis]);
        tensors += "],\"data_offsets\":[" + std::to_string(plan.data_size) + ",";
        plan.data_size += *bytes;
        tensors += std::to_string(plan.data_size) + "]}";
    }
    std::string json = "{";
    for (const auto& [key, value] : metadata) {
        const auto left = detail::json_string(key);
        const auto right = detail::json_string(value);
        if (!left || !right)
            return refuse("metadata " + detail::in_quotes(key) + " = " + detail::in_quotes(value) +
                          " is not UTF-8");
        json += json.size() == 1 ? "\"__metadata__\":{" : ",";
        json += *left + ":" + *right;
    }
    if (!metadata.empty())
        json += "}";
    else if (!tensors.empty())
        tensors.erase(0, 1);  // the comma
    json += tensors + "}";
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

TIFFIN_ENGINES_INLINE result<std::vector<std::byte>> safetensors_writer::to_bytes(
    std::string_view label) const {
    const result<layout> plan = arrange(label);
    if (!plan) return plan.failure();
    std::vector<std::byte> bytes;
    bytes.reserve(plan->head.size() + plan->data_size);
    const auto append = [&](const void* data, std::size_t n) {
        const auto* first = static_cast<const std::byte*>(data);
        bytes.insert(bytes.end(), first, first + n);
        return true;
    };
    append(plan->head.data(), plan->head.size());
    for (const weights::entry* e : plan->order)
        if (status s = put(*e, label, append); !s) return s.failure();
    return bytes;
}

TIFFIN_ENGINES_INLINE status safetensors_writer::write(const std::filesystem::path& path) const {
    auto file = unfinished_file::begin(path);
    if (!file) return file.failure();
    if (status s = write(*file); !s) return s;
    return file->finish();
}

TIFFIN_ENGINES_INLINE status safetensors_writer::write(unfinished_file& to) const {
    const result<layout> plan = arrange(to.label());
    if (!plan) return plan.failure();
    const auto to_file = [&](const void* data, std::size_t n) { return to.write(data, n); };
    if (!to_file(plan->head.data(), plan->head.size())) return to.cannot_write();
    for (const weights::entry* e : plan->order)
        if (status s = put(*e, to.label(), to_file); !s) return s;
    return to.flush();
}
#endif

}  // namespace io
TIFFIN_END
