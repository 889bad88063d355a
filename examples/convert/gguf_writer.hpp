// Writing GGUF files: complete or not at all.
#pragma once

#include "gguf_value_bytes.hpp"

#include <tiffin/error.hpp>
#include <tiffin/io/gguf_header.hpp>
#include <tiffin/io/unfinished_file.hpp>
#include <tiffin/tensor.hpp>

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <functional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace gguf_files {

using namespace tiffin;
using namespace tiffin::io;

// Collects metadata and tensors, or takes those of a file, and writes them as one GGUF file of version 3.
//
// Keys and tensors have the order in which they came. Each tensor begins at a multiple of general.alignment (32
// where that is not set), and the file ends at one. The tensors' memory is the caller's and is read by `write`.
// A file that ggml or Python's `gguf` wrote is the same, byte for byte, when it is taken and written again.
// Source: the GGUF specification, https://github.com/ggml-org/ggml/blob/master/docs/gguf.md.
class gguf_writer {
public:
    // Takes all that a file has, tensors in formats that are not read too. The bytes must outlive the writer.
    // Errors: those of gguf_file::read.
    static result<gguf_writer> from(std::span<const std::byte> file, const std::string& label) {
        gguf_writer made;
        const status s = made.take(file);
        if (s) return {std::move(made)};
        return failure(s.failure().code, label, s.failure().message());
    }

    // Sets a key to a number, a truth, a text, or a range of those: an array. The type in the file is that of the
    // value; readers expect std::uint32_t for most whole numbers. A later value of a key takes the earlier one's place.
    template <class Value>
    gguf_writer& set(std::string key, const Value& value) {
        const auto at = find(pairs_, key);
        if (at == pairs_.end())
            pairs_.push_back({std::move(key), gguf_value_bytes(value)});
        else
            at->value = gguf_value_bytes(value);
        return *this;
    }

    // Adds a tensor, its shape with the outermost axis first.
    // Precondition: a name of up to 63 bytes, which is what ggml reads.
    // Errors: errc::duplicate_tensor; errc::dtype for a format that ggml has not; errc::shape where rows are no whole
    //   blocks.
    status add(std::string name, const tensor_view& given) {
        if (find(tensors_, name) != tensors_.end())
            return failure(errc::duplicate_tensor, name, "was added already");
        if (status s = check_gguf_tensor(name, given); !s) return s;
        tensors_.push_back({std::move(name), given.shape, 0, {}});
        set_data(tensors_.back(), {&given, 1});
        return {};
    }

    // Puts numbers in the place of a tensor's: one part, or several of one format and shape, one after the other along
    // the outermost axis, as the experts' matrices (rows, columns) are in (experts, rows, columns).
    // Errors: those of `add`; errc::missing_tensor; errc::shape, with both shapes.
    status replace(std::string_view name, std::span<const tensor_view> parts) {
        const auto at = find(tensors_, name);
        if (at == tensors_.end()) return failure(errc::missing_tensor, name, "missing from the GGUF file");
        tiffin::shape given;
        const tiffin::shape part = parts.empty() ? tiffin::shape() : parts[0].shape;
        const bool slices = at->sizes.rank() == part.rank() + 1;
        if (slices) given.push_back(parts.size());
        for (std::size_t axis = 0; axis < part.rank(); ++axis)
            given.push_back(part[axis] * (axis == 0 && !slices ? parts.size() : 1));
        for (const tensor_view& p : parts) {
            if (p.type != parts[0].type || p.shape != part)
                return failure(errc::shape, name, "is given in parts: ", name_of(parts[0].type), " ",
                               to_string(part), " and ", name_of(p.type), " ", to_string(p.shape));
            if (status s = check_gguf_tensor(name, p); !s) return s;
        }
        if (parts.empty() || given != at->sizes)
            return failure(errc::shape, name, "has shape ", to_string(at->sizes),
                           " in the GGUF file; what is to take its place has ", to_string(given));
        set_data(*at, parts);
        return {};
    }

    using write_progress = std::function<void(std::size_t done, std::size_t bytes)>;
    // Writes the file at `path`, as safetensors_writer does; `progress` is told after each tensor.
    // Errors: errc::file, as there; errc::option for an alignment that is no power of two up to 2^20. Cost: as there.
    [[nodiscard]] status write(const std::filesystem::path& path, const write_progress& progress = {}) const {
        auto file = unfinished_file::begin(path);
        if (!file) return file.failure();
        if (status s = write(*file, progress); !s) return s;
        return file->finish();
    }
    // To an output begun before, which is left to be finished.
    [[nodiscard]] status write(unfinished_file& to, const write_progress& progress = {}) const {
        const auto plan = arrange(to.label());
        if (!plan) return plan.failure();
        std::size_t done = 0;
        const auto to_file = [&](const void* data, std::size_t n) {
            done += n;
            if (n != 0 && progress) progress(done, plan->head.size() + plan->data_size);
            return n == 0 || to.write(data, n);
        };
        if (!put_all(*plan, to_file)) return to.cannot_write();
        return to.flush();
    }
    // Gives the bytes that `write` would write; `label` is what failures call them.
    // Errors: errc::option, as for `write`. Cost: one copy of the data.
    [[nodiscard]] result<std::vector<std::byte>> to_bytes(const std::string& label) const {
        const auto plan = arrange(label);
        if (!plan) return plan.failure();
        std::vector<std::byte> all;
        put_all(*plan, [&](const void* data, std::size_t n) {
            const auto* const first = static_cast<const std::byte*>(data);
            all.insert(all.end(), first, first + n);
            return true;
        });
        return all;
    }

private:
    struct pair {
        std::string name;
        std::vector<std::byte> value;  // its type, then what the file has for it
    };
    struct tensor {
        std::string name;
        tiffin::shape sizes;
        std::uint32_t type;  // as numbered in files
        std::vector<std::span<const std::byte>> parts;
    };
    struct layout {
        std::vector<std::byte> head;  // all that precedes the data
        std::size_t alignment;
        std::uint64_t data_size = 0;
    };

    template <class All>
    static auto find(All& all, std::string_view name) -> decltype(all.begin()) {
        return std::find_if(all.begin(), all.end(), [&](const auto& one) { return one.name == name; });
    }
    static std::size_t padding(std::uint64_t at, std::size_t alignment) noexcept {
        return static_cast<std::size_t>((alignment - at % alignment) % alignment);
    }
    static std::uint64_t size_of_data(const tensor& t) noexcept {
        std::uint64_t sum = 0;
        for (const auto& part : t.parts) sum += part.size();
        return sum;
    }
    static void set_data(tensor& to, std::span<const tensor_view> parts) {
        to.parts.clear();
        for (const tensor_view& p : parts) {
            to.type = *gguf_number_of(p.type);
            to.parts.emplace_back(static_cast<const std::byte*>(p.data),
                                  bytes_of(p.type, p.shape.elements()));
        }
    }

    status take(std::span<const std::byte> file) {
        io::detail::gguf_header header;
        if (status s = header.read(file); !s) return s;
        // Every length has been checked: what is left is to tell the pairs' bytes apart.
        io::detail::byte_reader from(file);
        static_cast<void>(from.take(16));
        for (std::uint64_t left = *from.number<std::uint64_t>(); left > 0; --left) {
            const std::string name(*from.text());
            io::detail::byte_reader ahead = from;
            auto type = *ahead.number<gguf_type>();
            std::uint64_t count = 1;
            if (type == gguf_type::array) {
                type = *ahead.number<gguf_type>();
                count = *ahead.number<std::uint64_t>();
            }
            if (type != gguf_type::string)
                static_cast<void>(ahead.take(count * io::detail::gguf_size_of(type)));
            else
                while (count-- > 0) static_cast<void>(ahead.text());
            const auto value = *from.take(ahead.at() - from.at());
            pairs_.push_back({name, {value.begin(), value.end()}});
        }
        const auto data = file.subspan(std::min(header.data_begin, file.size()));
        // Of a format that is not read only the beginning is known: it ends where the next tensor begins.
        std::set<std::uint64_t> ends{data.size()};
        for (const auto& e : header.entries) ends.insert(std::min<std::uint64_t>(e.begin, data.size()));
        for (const auto& e : header.entries) {
            if (!e.is_read && e.begin >= data.size())
                return failure(errc::file, e.name, "begins at byte ", e.begin, " of the data; the file has ",
                               data.size());
            const std::uint64_t bytes = e.is_read ? bytes_of(e.tensor.type, e.tensor.shape.elements())
                                                  : *ends.upper_bound(e.begin) - e.begin;
            tensors_.push_back({std::string(e.name), e.tensor.shape, e.type, {data.subspan(e.begin, bytes)}});
        }
        return {};
    }

    [[nodiscard]] result<layout> arrange(const std::string& label) const {
        layout plan{{}, 32};
        if (const auto at = find(pairs_, "general.alignment"); at != pairs_.end()) {
            std::uint32_t told[2] = {};
            std::memcpy(told, at->value.data(), std::min(sizeof told, at->value.size()));
            if (gguf_type{told[0]} != gguf_type::u32 || !std::has_single_bit(told[1]) || told[1] > (1u << 20))
                return failure(errc::option, label,
                               "general.alignment is no power of two up to 2^20 in 32 bits");
            plan.alignment = told[1];
        }
        for (const char c : {'G', 'G', 'U', 'F', '\3', '\0', '\0', '\0'}) append(plan.head, c);
        for (const std::size_t count : {tensors_.size(), pairs_.size()}) append(plan.head, count);
        for (const pair& p : pairs_) {
            append(plan.head, p.name);
            plan.head.insert(plan.head.end(), p.value.begin(), p.value.end());
        }
        for (const tensor& t : tensors_) {
            append(plan.head, t.name);
            append(plan.head, static_cast<std::uint32_t>(t.sizes.rank()));
            for (std::size_t axis = t.sizes.rank(); axis > 0; --axis)
                append(plan.head, std::uint64_t{t.sizes[axis - 1]});
            append(plan.head, t.type);
            append(plan.head, plan.data_size);
            plan.data_size += size_of_data(t) + padding(size_of_data(t), plan.alignment);
        }
        plan.head.resize(plan.head.size() + padding(plan.head.size(), plan.alignment));
        return plan;
    }

    template <class Sink>
    bool put_all(const layout& plan, const Sink& sink) const {
        const std::vector<std::byte> zeros(plan.alignment);
        bool taken = sink(plan.head.data(), plan.head.size());
        for (const tensor& t : tensors_) {
            for (const auto& part : t.parts) taken = taken && sink(part.data(), part.size());
            taken = taken && sink(zeros.data(), padding(size_of_data(t), plan.alignment));
        }
        return taken;
    }

    std::vector<pair> pairs_;
    std::vector<tensor> tensors_;
};

}  // namespace gguf_files
