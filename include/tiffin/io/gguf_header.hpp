// The header of a GGUF file (all before the tensors' bytes), read with every value checked.
#pragma once

#include <tiffin/io/gguf_value.hpp>
#include <tiffin/quoted.hpp>
#include <tiffin/tensor.hpp>

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

TIFFIN_BEGIN
namespace io::detail {

static_assert(std::endian::native == std::endian::little,
              "tiffin: GGUF files are read on little-endian machines");

// Reads metadata and tensor entries. Allocates at most a small multiple of the bytes, whatever they are.
class gguf_header {
public:
    struct entry {
        std::string_view name;
        tensor_view tensor;
        std::uint32_t type;   // ggml's number
        std::uint64_t begin;  // from the first byte of the data
        bool is_read;         // false: the format is none of dtype
    };
    std::uint32_t version = 0;
    std::map<std::string_view, gguf_value, std::less<>> metadata;
    std::vector<entry> entries;
    std::size_t data_begin = 0;

    status read(std::span<const std::byte> bytes) {
        byte_reader from(bytes);
        const auto magic = from.take(4);
        if (!magic || std::memcmp(magic->data(), "GGUF", 4) != 0)
            return refuse("the file does not begin with 'GGUF'");
        const auto told_version = from.number<std::uint32_t>();
        if (!told_version) return ends("version", from);
        version = *told_version;
        if (version != 0 && (version & 0xFFFFu) == 0)
            return refuse("the file is big-endian; little-endian files are read");
        if (version != 2 && version != 3)
            return refuse("the file has version ", version, "; versions 2 and 3 are read");
        const auto tensors = from.number<std::uint64_t>(), pairs = from.number<std::uint64_t>();
        if (!tensors || !pairs) return ends("counts of tensors and metadata", from);
        for (std::uint64_t i = 0; i < *pairs; ++i)
            if (status s = read_pair(from, i, *pairs); !s) return s;
        if (status s = read_alignment(); !s) return s;
        for (std::uint64_t i = 0; i < *tensors; ++i)
            if (status s = read_tensor(from, i, *tensors); !s) return s;
        data_begin = from.at() + (alignment_ - from.at() % alignment_) % alignment_;
        return check_places(bytes.size());
    }

private:
    template <class... Pieces>
    static failure refuse(const Pieces&... pieces) {
        return failure(errc::file, "", pieces...);
    }
    static failure ends(std::string_view inside, const byte_reader& from) {
        return refuse("the file ends inside its ", inside, ", after byte ", from.at());
    }

    status read_pair(byte_reader& from, std::uint64_t i, std::uint64_t pairs) {
        const auto key = from.text();
        const auto type = from.number<gguf_type>();
        if (!key || !type)
            return refuse("the file ends inside key ", i, " of its ", pairs, ", after byte ", from.at());
        gguf_value value;
        if (status s = read_value(from, *type, *key, value); !s) return s;
        if (!metadata.emplace(*key, value).second)
            return refuse("the metadata has the key ", tiffin::detail::in_quotes(*key), " twice");
        return {};
    }
    static status read_value(byte_reader& from, gguf_type type, std::string_view key, gguf_value& to) {
        const auto cut = [&] {
            return refuse("the file ends inside the value of ", tiffin::detail::in_quotes(key),
                          ", after byte ", from.at());
        };
        const auto number = [&]<class Stored, class Kept>(Stored, Kept) -> status {
            const auto n = from.number<Stored>();
            if (!n) return cut();
            to = static_cast<Kept>(*n);
            return {};
        };
        switch (type) {
            case gguf_type::u8: return number(std::uint8_t{}, std::uint64_t{});
            case gguf_type::i8: return number(std::int8_t{}, std::int64_t{});
            case gguf_type::u16: return number(std::uint16_t{}, std::uint64_t{});
            case gguf_type::i16: return number(std::int16_t{}, std::int64_t{});
            case gguf_type::u32: return number(std::uint32_t{}, std::uint64_t{});
            case gguf_type::i32: return number(std::int32_t{}, std::int64_t{});
            case gguf_type::f32: return number(float{}, double{});
            case gguf_type::boolean: return number(std::uint8_t{}, bool{});
            case gguf_type::u64: return number(std::uint64_t{}, std::uint64_t{});
            case gguf_type::i64: return number(std::int64_t{}, std::int64_t{});
            case gguf_type::f64: return number(double{}, double{});
            case gguf_type::string: {
                const auto text = from.text();
                if (!text) return cut();
                to = *text;
                return {};
            }
            case gguf_type::array: {
                gguf_array all;
                if (status s = read_array(from, key, all); !s) return s;
                to = all;
                return {};
            }
        }
        return refuse("the value of ", tiffin::detail::in_quotes(key), " has type ",
                      static_cast<std::uint32_t>(type), "; types go up to 12");
    }
    static status read_array(byte_reader& from, std::string_view key, gguf_array& to) {
        const auto cut = [&] {
            return refuse("the file ends inside the array of ", tiffin::detail::in_quotes(key),
                          ", after byte ", from.at());
        };
        const auto type = from.number<gguf_type>();
        const auto size = from.number<std::uint64_t>();
        if (!type || !size) return cut();
        byte_reader ahead = from;
        if (*type == gguf_type::string) {
            for (std::uint64_t i = 0; i < *size; ++i)
                if (!ahead.text()) return cut();
        } else if (const std::size_t each = gguf_size_of(*type); each != 0) {
            if (*size > ahead.left() / each) return cut();
            static_cast<void>(ahead.take(*size * each));
        } else {
            return refuse("the array of ", tiffin::detail::in_quotes(key), " has elements of type ",
                          static_cast<std::uint32_t>(*type), "; numbers, truths and texts are read");
        }
        to = {*type, static_cast<std::size_t>(*size), *from.take(ahead.at() - from.at())};
        return {};
    }

    status read_alignment() {
        const auto given = metadata.find("general.alignment");
        if (given == metadata.end()) return {};
        const auto* const n = std::get_if<std::uint64_t>(&given->second);
        if (n == nullptr || *n == 0 || *n > (1u << 20) || !std::has_single_bit(*n))
            return refuse("general.alignment is not a power of two up to 2^20");
        alignment_ = static_cast<std::size_t>(*n);
        return {};
    }

    status read_tensor(byte_reader& from, std::uint64_t i, std::uint64_t tensors) {
        const auto cut = [&] {
            return refuse("the file ends inside the description of tensor ", i, " of its ", tensors,
                          ", after byte ", from.at());
        };
        entry e{};
        const auto name = from.text();
        const auto axes = from.number<std::uint32_t>();
        if (!name || !axes) return cut();
        e.name = *name;
        const std::string tensor = "tensor " + tiffin::detail::in_quotes(e.name);
        if (*axes > shape::max_rank)
            return failure(errc::shape, "", tensor, " has ", *axes, " axes; there are at most ",
                           shape::max_rank);
        std::array<std::uint64_t, shape::max_rank> sizes{};
        std::uint64_t numbers = 1;
        for (std::uint32_t a = 0; a < *axes; ++a) {
            const auto size = from.number<std::uint64_t>();
            if (!size) return cut();
            sizes[a] = *size;
            if (__builtin_mul_overflow(numbers, *size, &numbers) || numbers > (std::uint64_t{1} << 56))
                return failure(errc::shape, "", tensor, " has a shape whose numbers overflow");
        }
        for (std::uint32_t a = *axes; a > 0; --a)
            e.tensor.shape.push_back(static_cast<std::size_t>(sizes[a - 1]));
        const auto type = from.number<std::uint32_t>();
        const auto begin = from.number<std::uint64_t>();
        if (!type || !begin) return cut();
        e.type = *type;
        e.begin = *begin;
        const auto known = gguf_dtype(*type);
        e.is_read = known.has_value();
        if (known) {
            e.tensor.type = *known;
            const std::uint64_t row = *axes == 0 ? 1 : sizes[0];
            if (row % block_of(*known) != 0)
                return failure(errc::shape, "", tensor, " is ", name_of(*known), " of shape ",
                               to_string(e.tensor.shape), "; rows are no whole blocks of ", block_of(*known));
        }
        if (!names_.insert(e.name).second)
            return failure(errc::duplicate_tensor, "", tensor, " is given twice");
        entries.push_back(e);
        return {};
    }

    // The bytes of a tensor; 0 for an unknown type, whose bytes may end anywhere before the next tensor.
    static std::uint64_t bytes_of_entry(const entry& e) noexcept {
        const std::uint64_t numbers = e.tensor.shape.elements();
        if (e.is_read) return bytes_of(e.tensor.type, static_cast<std::size_t>(numbers));
        const gguf_unread_type* const known = find_gguf_unread_type(e.type);
        return known != nullptr ? numbers / known->block * known->bytes : 0;
    }

    // Checks that all tensors lie inside the file, and that none overlaps another.
    [[nodiscard]] status check_places(std::size_t file_bytes) const {
        const std::uint64_t has = file_bytes > data_begin ? file_bytes - data_begin : 0;
        std::vector<const entry*> order;
        for (const entry& e : entries) {
            const std::uint64_t bytes = bytes_of_entry(e);
            if (e.begin % alignment_ != 0)
                return refuse("tensor ", tiffin::detail::in_quotes(e.name), " begins at byte ", e.begin,
                              " of the data, no multiple of ", alignment_);
            if (e.begin > has || bytes > has - e.begin)
                return refuse("tensor ", tiffin::detail::in_quotes(e.name), " takes ", bytes,
                              " bytes from byte ", e.begin, " of the data on; the file has ", has,
                              " bytes of data");
            if (bytes > 0) order.push_back(&e);
        }
        std::sort(order.begin(), order.end(),
                  [](const entry* a, const entry* b) { return a->begin < b->begin; });
        for (std::size_t i = 1; i < order.size(); ++i)
            if (const entry& before = *order[i - 1], &e = *order[i];
                e.begin - before.begin < bytes_of_entry(before))
                return refuse("tensor ", tiffin::detail::in_quotes(e.name), " begins at byte ", e.begin,
                              " of the data, inside tensor ", tiffin::detail::in_quotes(before.name));
        return {};
    }

    std::size_t alignment_ = 32;
    std::set<std::string_view> names_;
};

}  // namespace io::detail
TIFFIN_END
