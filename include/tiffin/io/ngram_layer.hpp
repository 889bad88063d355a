// Layer files that say which rows the last token ids address, and have these rows. Needs nothing but the library.
#pragma once

#include <tiffin/error.hpp>
#include <tiffin/io/described_layer.hpp>
#include <tiffin/io/layer_options.hpp>
#include <tiffin/quoted.hpp>
#include <tiffin/table/engram_hash.hpp>
#include <tiffin/table/longcat_hash.hpp>
#include <tiffin/table/ngram_addresses.hpp>
#include <tiffin/table/ngram_history.hpp>
#include <tiffin/tensor.hpp>

#include <charconv>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <set>
#include <string>
#include <system_error>
#include <utility>
#include <variant>
#include <vector>

TIFFIN_BEGIN
namespace io {

// How rows are addressed, and the table that has them.
struct ngram_layer {
    std::variant<ngram_addresses<engram_hash>, ngram_addresses<longcat_hash>> address;
    tensor_view table{};                 // (rows of all tables, one after the other; width); or no data
    std::shared_ptr<const void> keep{};  // owns the table's memory

    // The first row of each table, and behind the last.
    [[nodiscard]] std::vector<std::size_t> first_rows() const {
        return std::visit(
            [](const auto& of) {
                std::vector<std::size_t> made{0};
                for (std::size_t i = 0; i < of.tables(); ++i) made.push_back(made.back() + of.rows(i));
                return made;
            },
            address);
    }
};

namespace detail {

// The numbers of a tensor of I32 or I64, each in [least, most].
inline result<std::vector<std::int64_t>> integers_of(const tensor_view& t, const std::string& name,
                                                     std::int64_t least, std::int64_t most) {
    if (t.type != dtype::i32 && t.type != dtype::i64)
        return failure(errc::dtype, name, "has dtype ", name_of(t.type), "; it must be I64 or I32");
    std::vector<std::int64_t> made(t.shape.elements());
    for (std::size_t i = 0; i < made.size(); ++i) {
        made[i] = tiffin::detail::load_integer(t, i);
        if (made[i] < least || made[i] > most)
            return failure(errc::option, name, name, "[", i, "] = ", made[i], " lies outside [", least, ", ",
                           most, "]");
    }
    return made;
}

// Reads an ngram_layer, and notes what nobody asked for.
class ngram_layer_reader {
public:
    explicit ngram_layer_reader(const described_layer& from) : from_(from), options_(from.options) {}

    result<ngram_layer> read() {
        const std::string* const block = options_.find("block");
        if (block != nullptr && *block == "engram_addresses") {
            engram_hash hash;
            const status s = read_engram(hash);
            return s ? read(std::move(hash), *block) : s.failure();
        }
        if (block != nullptr && *block == "longcat_addresses") {
            longcat_hash hash;
            const status s = read_longcat(hash);
            return s ? read(hash, *block) : s.failure();
        }
        return failure(errc::option, "block", block ? "is " + in_quotes(*block) : std::string("missing"),
                       "; known are engram_addresses and longcat_addresses");
    }

private:
    template <class Hash>
    result<ngram_layer> read(Hash hash, const std::string& block) {
        std::int32_t end = ngram_history::none;
        if (status s = read_id("end_of_sequence", end); !s) return s.failure();
        auto address = ngram_addresses<Hash>::of(std::move(hash), end);
        if (!address) return address.failure();
        if (status s = options_.check_all_known(block); !s) return s.failure();
        ngram_layer made{*std::move(address), {}, from_.keep};
        if (status s = read_table(made); !s) return s.failure();
        for (const weights::entry& e : from_.tensors.entries())
            if (!asked_.contains(e.name)) return failure(errc::unused_tensor, e.name, "not read");
        return made;
    }
    status read_engram(engram_hash& to) {
        constexpr std::int64_t least = std::numeric_limits<std::int64_t>::min(),
                               most = std::numeric_limits<std::int64_t>::max(),
                               most_id = std::numeric_limits<std::int32_t>::max();
        const auto compressed = integers("compressed", 0, most_id);
        if (!compressed) return compressed.failure();
        to.compressed.assign(compressed->begin(), compressed->end());
        auto multipliers = integers("multipliers", least, most);
        if (!multipliers) return multipliers.failure();
        to.multipliers = *std::move(multipliers);
        for (std::size_t n = 2; n <= to.multipliers.size(); ++n) {
            auto primes = integers("primes." + std::to_string(n), 1, most_id);
            if (!primes) return primes.failure();
            to.primes.push_back(*std::move(primes));
        }
        if (status s = read_id("pad", to.pad); !s) return s;
        if (status s = options_.read("unsigned_remainder", to.unsigned_remainder); !s) return s;
        if (status s = options_.read("oldest_first", to.oldest_first); !s) return s;
        return options_.read("may_wrap", to.may_wrap);
    }
    status read_longcat(longcat_hash& to) {
        for (const auto& [key, number] :
             {std::pair{"vocab", &to.ids}, std::pair{"ratio", &to.ratio}, std::pair{"longest", &to.longest},
              std::pair{"per_length", &to.per_length}}) {
            if (options_.find(key) == nullptr)
                return failure(errc::option, key, "missing; a whole number from 1 up");
            if (status s = options_.read(key, *number); !s) return s;
        }
        return {};
    }
    status read_table(ngram_layer& to) {
        const tensor_view* const table = find("weight");
        if (table == nullptr) return {};
        const std::size_t rows = to.first_rows().back();
        if (table->shape.rank() != 2 || table->shape[0] != rows || table->shape[1] == 0)
            return failure(errc::shape, "weight", "has shape ", to_string(table->shape), "; it must be (",
                           rows, ", width), the rows of all tables");
        to.table = *table;
        return {};
    }

    const tensor_view* find(const std::string& name) {
        asked_.insert(name);
        return from_.tensors.find(name);
    }
    result<std::vector<std::int64_t>> integers(const std::string& name, std::int64_t least,
                                               std::int64_t most) {
        const tensor_view* const t = find(name);
        if (t == nullptr) return failure(errc::missing_tensor, name, "missing; it has shape (n)");
        if (t->shape.rank() != 1)
            return failure(errc::shape, name, "has shape ", to_string(t->shape), "; it must be (n)");
        if (t->shape.elements() == 0)
            return failure(errc::shape, name, "has shape ", to_string(t->shape), "; no axis may be 0");
        return integers_of(*t, name, least, most);
    }
    // An id, from 0 up; as it is where it is not given.
    status read_id(const std::string& key, std::int32_t& to) {
        const std::string* const text = options_.find(key);
        if (text == nullptr) return {};
        std::int32_t value = 0;
        const char* const end = text->data() + text->size();
        const auto [rest, bad] = std::from_chars(text->data(), end, value);
        if (bad != std::errc() || rest != end || text->starts_with('-'))
            return failure(errc::option, key, "is ", in_quotes(*text),
                           "; it must be an id, from 0 to 2^31 - 1");
        to = value;
        return {};
    }

    const described_layer& from_;
    layer_options options_;
    std::set<std::string> asked_;
};

}  // namespace detail

// Reads a layer of block engram_addresses or longcat_addresses, with the table of its rows, `weight`, or without.
// Errors: errc::option, missing_tensor, unused_tensor, dtype, shape, size; `where` is the option or the tensor.
// Source: docs/layer_files.md#engram_addresses.
inline result<ngram_layer> read_ngram_layer(const described_layer& from) {
    return detail::ngram_layer_reader(from).read();
}

}  // namespace io
TIFFIN_END
