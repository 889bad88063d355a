// The C interface: row numbers by the last token ids (tiffin/tiffin_rows.h).
#include <tiffin/io/ngram_memory.hpp>
#include <tiffin/table/ngram_addresses.hpp>

#include "c_common.hpp"
#include "c_rows.hpp"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <variant>
#include <vector>

struct tiffin_ngrams {
    std::variant<tiffin::ngram_addresses<tiffin::engram_hash>, tiffin::ngram_addresses<tiffin::longcat_hash>>
        held;
    std::size_t vocab;
};
struct tiffin_histories {
    std::vector<tiffin::ngram_history> held;
};

namespace {

using namespace tiffin::c_detail;
using tiffin::errc;
using tiffin::failure;
using tiffin::result;
using tiffin::status;

template <class Hash>
result<std::unique_ptr<tiffin_ngrams>> make(Hash hash, std::int32_t end) {
    const std::size_t vocab = hash.vocab();
    auto made = tiffin::ngram_addresses<Hash>::of(std::move(hash), end);
    if (!made) return made.failure();
    return std::make_unique<tiffin_ngrams>(tiffin_ngrams{*std::move(made), vocab});
}

tiffin_error* give(result<std::unique_ptr<tiffin_ngrams>> made, tiffin_ngrams** to) {
    if (!made) return error_of(because(made.failure()));
    *to = (*made).release();
    return nullptr;
}

// Runs work(the sequence `i`), which returns a status.
template <class Work>
tiffin_error* on_sequence(tiffin_histories* all, const char* name, std::size_t i, const Work& work) {
    return guarded([&]() -> tiffin_error* {
        if (all == nullptr) return error_of(is_null("histories"));
        if (i >= all->held.size())
            return error_of(
                because(failure(errc::size, name, "is ", i, "; there are ", all->held.size(), " sequences")));
        const status s = work(all->held[i]);
        return s ? nullptr : error_of(because(s.failure()));
    });
}

}  // namespace

tiffin_error* tiffin_ngrams_engram(const tiffin_engram_hash* hash, int32_t end, tiffin_ngrams** ngrams) {
    return guarded([&]() -> tiffin_error* {
        if (ngrams == nullptr) return error_of(is_null("ngrams"));
        if (const auto wrong = unknown_size(hash, "hash")) return error_of(*wrong);
        const tiffin_engram_hash& h = *hash;
        if (h.order < 2)
            return error_of(because(failure(errc::size, "order", "is ", h.order, "; it is 2 or more")));
        for (const auto& [name, given] : {std::pair<const char*, const void*>{"multipliers", h.multipliers},
                                          {"heads", h.heads},
                                          {"primes", h.primes}})
            if (given == nullptr) return error_of(is_null(name));
        tiffin::engram_hash made{.multipliers = {h.multipliers, h.multipliers + h.order},
                                 .pad = h.pad,
                                 .unsigned_remainder = h.unsigned_remainder != 0,
                                 .may_wrap = h.may_wrap != 0,
                                 .oldest_first = h.oldest_first != 0,
                                 .ids = h.vocab};
        const std::int64_t* prime = h.primes;
        for (std::size_t n = 0; n + 1 < h.order; ++n, prime += h.heads[n - 1])
            made.primes.emplace_back(prime, prime + h.heads[n]);
        if (h.compressed != nullptr) made.compressed.assign(h.compressed, h.compressed + h.vocab);
        if (h.offsets != nullptr) made.offsets.assign(h.offsets, h.offsets + made.tables());
        return give(make(std::move(made), end), ngrams);
    });
}
tiffin_error* tiffin_ngrams_longcat(const tiffin_longcat_hash* hash, int32_t end, tiffin_ngrams** ngrams) {
    return guarded([&]() -> tiffin_error* {
        if (ngrams == nullptr) return error_of(is_null("ngrams"));
        if (const auto wrong = unknown_size(hash, "hash")) return error_of(*wrong);
        return give(
            make(tiffin::longcat_hash{hash->vocab, hash->ratio, hash->longest, hash->per_length}, end),
            ngrams);
    });
}
tiffin_error* tiffin_ngrams_open(const char* path, int64_t layer, const char* constants,
                                 const tiffin_rows_options* options, tiffin_ngrams** ngrams,
                                 tiffin_rows** rows) {
    return guarded([&]() -> tiffin_error* {
        if (path == nullptr || ngrams == nullptr)
            return error_of(is_null(path == nullptr ? "path" : "ngrams"));
        tiffin_rows_options how{};
        if (const auto wrong = take(options, how)) return error_of(*wrong);
        tiffin::io::ngram_memory_options which;
        if (layer >= 0) which.layer = static_cast<std::size_t>(layer);
        if (constants != nullptr) which.constants = constants;
        const auto found = tiffin::io::find_ngram_memory(path, which);
        if (!found) return error_of(because(found.failure()));
        auto made = make(found->hash, found->end);
        if (!made) return error_of(because(made.failure()));
        if (rows != nullptr) {
            auto opened = std::make_unique<tiffin_rows>();
            if (const status s = open_rows(found->table, how, *opened); !s)
                return error_of(because(s.failure()));
            *rows = opened.release();
        }
        *ngrams = (*made).release();
        return nullptr;
    });
}
void tiffin_ngrams_free(tiffin_ngrams* ngrams) {
    delete ngrams;
}
tiffin_error* tiffin_ngrams_describe(const tiffin_ngrams* ngrams, tiffin_ngrams_shape* shape) {
    return guarded([&]() -> tiffin_error* {
        if (ngrams == nullptr) return error_of(is_null("ngrams"));
        if (const auto wrong = unknown_size(shape, "shape")) return error_of(*wrong);
        std::visit(
            [&](const auto& a) {
                *shape = {sizeof(tiffin_ngrams_shape), a.order(), a.tables(), ngrams->vocab};
            },
            ngrams->held);
        return nullptr;
    });
}
int64_t tiffin_ngrams_rows(const tiffin_ngrams* ngrams, size_t table) {
    if (ngrams == nullptr) return 0;
    return std::visit(
        [&](const auto& a) { return table < a.tables() ? static_cast<std::int64_t>(a.rows(table)) : 0; },
        ngrams->held);
}

tiffin_error* tiffin_histories_make(const tiffin_ngrams* ngrams, size_t count, size_t undoable,
                                    tiffin_histories** histories) {
    return guarded([&]() -> tiffin_error* {
        if (ngrams == nullptr || histories == nullptr)
            return error_of(is_null(ngrams == nullptr ? "ngrams" : "histories"));
        constexpr std::size_t most = std::size_t{1} << 31;
        if (undoable > most)
            return error_of(because(failure(errc::size, "undoable", "is ", undoable, "; at most ", most)));
        const std::size_t order = std::visit([](const auto& a) { return a.order(); }, ngrams->held);
        *histories = new tiffin_histories{std::vector(count, tiffin::ngram_history(order, undoable))};
        return nullptr;
    });
}
void tiffin_histories_free(tiffin_histories* histories) {
    delete histories;
}
tiffin_error* tiffin_histories_undo(tiffin_histories* histories, size_t sequence, size_t tokens) {
    return on_sequence(histories, "sequence", sequence, [&](auto& one) { return one.undo(tokens); });
}
tiffin_error* tiffin_histories_reset(tiffin_histories* histories, size_t sequence) {
    return on_sequence(histories, "sequence", sequence, [](auto& one) {
        one.reset();
        return status();
    });
}
tiffin_error* tiffin_histories_copy(tiffin_histories* histories, size_t from, size_t to) {
    if (histories != nullptr && from >= histories->held.size())
        return on_sequence(histories, "from", from, [](auto&) { return status(); });
    return on_sequence(histories, "to", to, [&](auto& one) {
        one = histories->held[from];
        return status();
    });
}

tiffin_error* tiffin_ngrams_address(const tiffin_ngrams* ngrams, const int32_t* ids,
                                    const uint32_t* sequences, size_t count, tiffin_histories* histories,
                                    int32_t* rows) {
    return guarded([&]() -> tiffin_error* {
        if (ngrams == nullptr || histories == nullptr)
            return error_of(is_null(ngrams == nullptr ? "ngrams" : "histories"));
        if (count > 0 && (ids == nullptr || rows == nullptr))
            return error_of(is_null(ids == nullptr ? "ids" : "rows"));
        std::vector<std::uint32_t> first;
        if (sequences == nullptr) first.resize(count);
        const std::span<const std::uint32_t> of{sequences != nullptr ? sequences : first.data(), count};
        const status s = std::visit(
            [&](const auto& a) {
                return a(std::span(ids, count), of, std::span(histories->held),
                         std::span(rows, count * a.tables()));
            },
            ngrams->held);
        return s ? nullptr : error_of(because(s.failure()));
    });
}
