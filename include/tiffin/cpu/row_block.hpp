// Rows of tables at some features of a token, decoded and mixed before a formula reads them.
#pragma once

#include <tiffin/cpu/product_sums.hpp>
#include <tiffin/engine/view.hpp>
#include <tiffin/format/number_format.hpp>
#include <tiffin/grammar/slots.hpp>

#include <algorithm>
#include <array>
#include <cstddef>

TIFFIN_BEGIN

namespace cpu_detail {

// The rows of a view's tensors. Those of tables in f32 are read where they lie. Other formats are decoded, and the
// rows that a token chose are summed with their weights, in memory of the task that has this.
template <class Machine, class View>
class row_block {
    using source_type = decltype(View::source);
    static constexpr std::size_t count = View::row_sources + View::chosen_tables;

public:
    // At features [first, first + features) of token t, no more than finished_at_once of them.
    void read(const View& view, std::size_t t, std::size_t first, std::size_t features) noexcept {
        first_ = first;
        if constexpr (count > 0)
            for (std::size_t i = 0; i < slot_count<source_type>(); ++i)
                if (is_row_value(detail::slot_kinds<source_type>[i]))
                    read(view, view.tensor_slots[i], detail::slot_kinds<source_type>[i], t, features);
    }
    // Where they begin, by the number of the row.
    [[nodiscard]] const float* const* begins() const noexcept { return rows_.data(); }

    // Asks the cache for the rows of token t.
    static void ask(const View& view, std::size_t t, std::size_t first, std::size_t features) noexcept {
        if constexpr (count > 0)
            for (std::size_t i = 0; i < slot_count<source_type>(); ++i) {
                const engine_detail::slot& s = view.tensor_slots[i];
                for_rows(view, s, detail::slot_kinds<source_type>[i], t,
                         [&](const std::byte* row, float) noexcept {
                             const std::size_t end = s.format.bytes(first + features);
                             for (std::size_t at = s.format.bytes(first); at < end; at += 64)
                                 __builtin_prefetch(row + at);
                             // g++ 12 drops calls of a function that does nothing but prefetch.
                             __asm__ volatile("" : : "r"(row));
                         });
            }
    }

private:
    // Calls visit(row, weight) for the rows of token t.
    template <class Visit>
    static void for_rows(const View& view, const engine_detail::slot& s, tensor_kind kind, std::size_t t,
                         const Visit& visit) noexcept {
        if (!is_row_value(kind)) return;
        if (kind == tensor_kind::table) return visit(view.rows[s.table].of_token[t], 1.0f);
        const auto* const chosen = reinterpret_cast<const choice<float>*>(view.state_of(t) + s.state);
        const std::byte* first = static_cast<const std::byte*>(s.numbers);
        if (kind == tensor_kind::pool) first = view.rows[s.table].of_token[t];
        for (std::size_t i = 0; i < s.choices && chosen[i].expert >= 0; ++i)
            visit(s.gathered != 0 ? view.call.of->gathered_row(s.gathered, t, s.choices, i)
                                  : first + s.format.bytes(s.offset_of(chosen[i])),
                  chosen[i].weight);
    }
    void read(const View& view, const engine_detail::slot& s, tensor_kind kind, std::size_t t,
              std::size_t features) noexcept {
        using reg = typename Machine::reg;
        float* const room = rooms_[s.table].data();
        if (kind == tensor_kind::table) {
            rows_[s.table] = numbers_of(view.rows[s.table].of_token[t], s.format, features, room);
            return;
        }
        rows_[s.table] = room;
        std::fill_n(room, features, 0.0f);
        for_rows(view, s, kind, t, [&](const std::byte* row, float weight) noexcept {
            const float* const from = numbers_of(row, s.format, features, one_.data());
            for (std::size_t j = 0; j < features; j += Machine::lane_count) {
                const std::size_t n = std::min(Machine::lane_count, features - j);
                Machine::store(Machine::multiply_add(reg(weight), Machine::load_row(from + j, n),
                                                     Machine::load(room + j, n)),
                               room + j, n);
            }
        });
    }
    [[nodiscard]] const float* numbers_of(const std::byte* row, const row_format& format,
                                          std::size_t features, float* room) const noexcept {
        if (format.decode == nullptr) return reinterpret_cast<const float*>(row) + first_;
        format.decode(row, first_, features, room);
        return room;
    }

    using numbers = std::array<float, finished_at_once>;
    std::size_t first_ = 0;
    std::array<const float*, count + 1> rows_{};
    alignas(64) std::array<numbers, count + 1> rooms_;
    alignas(64) numbers one_;
};

}  // namespace cpu_detail

TIFFIN_END
