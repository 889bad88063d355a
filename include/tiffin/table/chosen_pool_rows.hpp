// The rows of a pool that the tokens of a call choose, in the form in which a layer gathers a pool.
#pragma once

#include <tiffin/call/chosen_experts.hpp>
#include <tiffin/call/gathered_rows.hpp>
#include <tiffin/table/distinct_ids.hpp>
#include <tiffin/table/row_store.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

TIFFIN_BEGIN

// Reads only those rows of a pool that a router has chosen, each once per call, from a store whose row e vocab + id is
// E_e[id], as a tensor (experts, vocab, width) lies in a file.
//
//     auto rows = chosen_pool_rows::of(store, 4).or_throw();                           // 4 experts
//     gathered_rows now = rows.lay_out(ids).or_throw();                                // reads nothing
//     const std::function read = [&](const chosen_experts<float>& chosen) { return rows.read(chosen); };
//     layer.forward(x, {.token_ids = ids, .gathered = {&now, 1}, .on_chosen = &read}, y);   // of a trainable_layer
//
// Shapes: ids (T), gathered rows of experts width values. Rows that were not read hold what an earlier call left there.
// Errors: errc::size for a store that is not `experts` tables of rows, or that has more rows than 31 bits number, and for
//   choices of other tokens than those laid out; errc::dtype for rows with scales; errc::token_id, errc::option for an
//   expert outside the pool; those of the store.
// Threads: one call at a time. Every read() reads the store once, also for no rows: it may be collective.
// Cost: memory for all experts' rows of the call's distinct ids; top_k rows read per token, equal ones once.
// Source: MoRT Sec. 3.3.2.
class chosen_pool_rows {
public:
    // The store must outlive this.
    static result<chosen_pool_rows> of(row_store_ref store, std::size_t experts) {
        const table_shape shape = store.shape();
        if (experts == 0 || shape.rows % experts != 0)
            return failure(errc::size, "store", "has ", shape.rows, " rows for ", experts, " experts");
        if (shape.rows > std::numeric_limits<std::int32_t>::max())
            return failure(errc::size, "store", "has ", shape.rows, " rows; a row's number has 31 bits");
        if (shape.scales.any())
            return failure(errc::dtype, "store", "has ", shape.scales.text(),
                           "; rows that are mixed have none");
        return chosen_pool_rows(store, experts);
    }

    // Room for the rows of a call's ids. Valid until the next lay_out().
    result<gathered_rows> lay_out(std::span<const std::int32_t> ids) {
        const table_shape shape = store_.shape();
        const std::size_t vocab = shape.rows / experts_, row = shape.row_bytes();
        for (std::size_t t = 0; t < ids.size(); ++t)
            if (ids[t] < 0 || static_cast<std::size_t>(ids[t]) >= vocab)
                return failure(errc::token_id, "ids", "ids[", t, "] is ", ids[t], ", outside [0, ", vocab,
                               ")");
        distinct_.assign(ids);
        const std::size_t places = distinct_.ids().size() * experts_;
        if (memory_.size() < places * row) memory_.resize(places * row);
        is_read_.assign(places, false);
        return gathered_rows{.data = memory_.data(),
                             .count = distinct_.ids().size(),
                             .stride = experts_ * row,
                             .width = experts_ * shape.width,
                             .type = shape.type,
                             .index = distinct_.index()};
    }
    // Reads what some tokens have chosen, unless it has been read since lay_out().
    template <class Number>
    status read(const chosen_experts<Number>& chosen) {
        wanted_.clear();
        for (std::size_t i = 0; i < chosen.choices.size(); ++i) {
            const std::int32_t e = chosen.choices[i].expert;
            if (e < 0) continue;
            const std::size_t t = i / chosen.top_k;
            const std::size_t position = chosen.positions != nullptr ? chosen.positions[t] : t;
            if (position >= distinct_.index().size())
                return failure(errc::size, "choices", "are of token ", position, " of ",
                               distinct_.index().size());
            if (static_cast<std::size_t>(e) >= experts_)
                return failure(errc::option, "choices", "expert ", e, " lies outside [0, ", experts_, ")");
            want(static_cast<std::size_t>(distinct_.index()[position]), static_cast<std::size_t>(e));
        }
        return read_wanted();
    }
    // Reads the rows of all experts.
    status read_all() {
        wanted_.clear();
        for (std::size_t n = 0; n < distinct_.ids().size(); ++n)
            for (std::size_t e = 0; e < experts_; ++e) want(n, e);
        return read_wanted();
    }
    // Since this was made.
    [[nodiscard]] std::uint64_t rows_read() const noexcept { return rows_read_; }

private:
    chosen_pool_rows(row_store_ref store, std::size_t experts) : store_(store), experts_(experts) {}

    void want(std::size_t n, std::size_t e) {
        const std::size_t place = n * experts_ + e;
        if (is_read_[place]) return;
        is_read_[place] = true;
        wanted_.push_back(place);
    }
    status read_wanted() {
        const std::size_t vocab = store_.shape().rows / experts_, row = store_.shape().row_bytes();
        numbers_.clear();
        for (const std::size_t place : wanted_)
            numbers_.push_back(static_cast<std::int32_t>(place % experts_ * vocab) +
                               distinct_.ids()[place / experts_]);
        rows_.resize(wanted_.size() * row);
        if (status s = store_.read(numbers_, rows_.data()); !s) {
            for (const std::size_t place : wanted_) is_read_[place] = false;
            return s;
        }
        for (std::size_t i = 0; i < wanted_.size(); ++i)
            std::copy_n(rows_.data() + i * row, row, memory_.data() + wanted_[i] * row);
        rows_read_ += wanted_.size();
        return {};
    }

    row_store_ref store_;
    std::size_t experts_;
    distinct_ids distinct_;
    std::vector<std::byte> memory_, rows_;
    std::vector<bool> is_read_;
    std::vector<std::size_t> wanted_;  // number of the distinct id times experts + expert
    std::vector<std::int32_t> numbers_;
    std::uint64_t rows_read_ = 0;
};

TIFFIN_END
