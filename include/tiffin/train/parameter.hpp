// A trained tensor: its values and the memory in which its gradient accumulates.
#pragma once

#include <tiffin/aligned_buffer.hpp>
#include <tiffin/format/given_format.hpp>
#include <tiffin/grammar/tensor_kinds.hpp>
#include <tiffin/tensor.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <deque>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

TIFFIN_BEGIN

namespace train_detail {

// The distinct token ids since the gradients were cleared. Each has a slot: its row in every table's gradient.
class touched_ids {
public:
    touched_ids() = default;
    // `tokens`: the most per call.
    touched_ids(std::size_t capacity, std::size_t tokens) : capacity_(capacity) {
        entries_.reserve(capacity + tokens);
    }

    [[nodiscard]] std::size_t capacity() const noexcept { return capacity_; }
    [[nodiscard]] std::size_t size() const noexcept { return entries_.size(); }
    // In ascending order.
    [[nodiscard]] std::int32_t id(std::size_t i) const noexcept { return entries_[i].id; }
    [[nodiscard]] std::size_t slot(std::size_t i) const noexcept { return entries_[i].slot; }
    void clear() noexcept { entries_.clear(); }

    // Inserts `ids` and writes the slot of each to `token_slots`. False, and nothing changed, where there is no room.
    // New ids get slots in ascending order of id, so that the gradient rows of one call are in id order.
    // Cost: a sort of the new ids and of all; no allocation for up to `tokens` ids.
    [[nodiscard]] bool take(std::span<const std::int32_t> ids, std::uint32_t* token_slots) {
        const auto by_id = [](const entry& a, const entry& b) { return a.id < b.id; };
        const std::size_t before = entries_.size();
        for (const std::int32_t id : ids)
            if (find(id, before) == nullptr) entries_.push_back({id, 0});
        const auto fresh = entries_.begin() + static_cast<std::ptrdiff_t>(before);
        std::sort(fresh, entries_.end(), by_id);
        entries_.erase(
            std::unique(fresh, entries_.end(), [](const entry& a, const entry& b) { return a.id == b.id; }),
            entries_.end());
        if (entries_.size() > capacity_) {
            entries_.resize(before);
            return false;
        }
        for (std::size_t i = before; i < entries_.size(); ++i)
            entries_[i].slot = static_cast<std::uint32_t>(i);
        std::sort(entries_.begin(), entries_.end(), by_id);
        for (std::size_t t = 0; t < ids.size(); ++t) token_slots[t] = find(ids[t], entries_.size())->slot;
        return true;
    }

private:
    struct entry {
        std::int32_t id;
        std::uint32_t slot = 0;
    };
    [[nodiscard]] const entry* find(std::int32_t id, std::size_t among) const {
        const entry* const end = entries_.data() + among;
        const entry* const at = std::lower_bound(entries_.data(), end, id,
                                                 [](const entry& e, std::int32_t i) { return e.id < i; });
        return at != end && at->id == id ? at : nullptr;
    }
    std::size_t capacity_ = 0;
    std::vector<entry> entries_;
};

// Whether a tensor of this kind has a row per token id: a table, or a pool (a table per expert).
constexpr bool has_rows_of_ids(tensor_kind kind) noexcept {
    return kind == tensor_kind::table || kind == tensor_kind::pool;
}

template <class Number>
struct parameter {
    std::string name;
    tensor_kind kind{};
    tensor_view given;
    // Dense: in the shape of the tensor. Table or pool: (experts, slot_count, width). Null: not trained.
    Number* gradient = nullptr;
    std::size_t slot_count = 0;  // table, pool: gradient rows per expert
    // (experts, slot_count): 1 where a token has read the row. A slot exists also for experts that no route led to.
    mutable std::vector<std::uint8_t> read;
    aligned_buffer widened;  // a copy as Number, where `given` has another dtype or is misaligned

    [[nodiscard]] static constexpr dtype own_type() noexcept {
        return std::is_same_v<Number, double> ? dtype::f64 : dtype::f32;
    }
    [[nodiscard]] bool is_given() const noexcept { return given.is_given(); }
    [[nodiscard]] std::size_t width() const noexcept { return given.shape[given.shape.rank() - 1]; }
    [[nodiscard]] std::size_t experts() const noexcept {
        return kind == tensor_kind::pool ? given.shape[0] : 1;
    }
    [[nodiscard]] bool is_in_place() const noexcept {
        return std::is_floating_point_v<Number> && given.type == own_type() && !given.scales.any() &&
               reinterpret_cast<std::uintptr_t>(given.data) % sizeof(Number) == 0;
    }
    [[nodiscard]] const Number* values() const noexcept {
        return is_in_place() ? static_cast<const Number*>(given.data) : widened.as<Number>();
    }
    // Row `id` of expert e (0 for a table).
    [[nodiscard]] const Number* row(std::size_t e, std::int32_t id) const noexcept {
        const std::size_t vocab = given.shape[given.shape.rank() - 2];
        return values() + (e * vocab + static_cast<std::size_t>(id)) * width();
    }
    [[nodiscard]] Number* row_gradient(std::size_t e, std::size_t slot) const noexcept {
        return gradient + (e * slot_count + slot) * width();
    }
    // Whether the values are copied to `widened`: of another dtype than Number, or misaligned.
    [[nodiscard]] bool is_copied() const noexcept {
        return given.data != nullptr && !is_in_place() && !is_integer(given.type);
    }
    // Copies the current values of `given`.
    void refresh() noexcept {
        if (!is_copied()) return;
        const std::size_t n = given.shape.elements();
        if (std::is_floating_point_v<Number> && given.type == own_type()) {
            std::memcpy(widened.data(), given.data, n * sizeof(Number));
        } else {
            for (std::size_t i = 0; i < n; ++i)
                widened.as<Number>()[i] = static_cast<Number>(load_as_f32(given.data, given.type, i));
        }
    }
    // Elements of the gradient.
    [[nodiscard]] std::size_t gradient_numbers() const noexcept {
        return has_rows_of_ids(kind) ? experts() * slot_count * width() : given.shape.elements();
    }
};

// A layer's parameters, and the memory of the gradients that the layer holds itself.
template <class Number>
struct owned_parameters : std::deque<parameter<Number>> {
    std::deque<aligned_buffer> memory;
    parameter<Number> absent;
};

}  // namespace train_detail

TIFFIN_END
