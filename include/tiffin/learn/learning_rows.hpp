// Trained table rows: their gradients by id, and access to their values and moments.
#pragma once

#include <tiffin/error.hpp>
#include <tiffin/train/trainable_layer.hpp>

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

TIFFIN_BEGIN

// Gradients of table rows, ids ascending: a layer's, or received from other ranks. A pool has a row per expert and id.
template <class Number>
class row_gradients {
public:
    virtual ~row_gradients() = default;
    [[nodiscard]] virtual std::size_t experts() const = 0;
    [[nodiscard]] virtual std::size_t width() const = 0;
    // The most ids.
    [[nodiscard]] virtual std::size_t capacity() const = 0;
    [[nodiscard]] virtual std::size_t size() const = 0;
    [[nodiscard]] virtual std::int32_t id(std::size_t n) const = 0;
    // Null where no token has read this expert's row of the n-th id.
    [[nodiscard]] virtual const Number* row(std::size_t n, std::size_t expert) const = 0;
};

// Pointers to a table row, its moments, and the count of steps that updated it.
template <class Number>
struct learning_row {
    Number *values, *first_moment, *second_moment;
    std::int32_t* steps;
};

// Access to table rows: in memory, or fetched from a store per step. Several threads call at(), for different rows.
template <class Number>
class learning_rows {
public:
    virtual ~learning_rows() = default;
    [[nodiscard]] virtual std::size_t experts() const = 0;
    [[nodiscard]] virtual std::size_t width() const = 0;
    // Whether at() may be called with this id.
    [[nodiscard]] virtual bool has(std::int32_t id) const = 0;
    [[nodiscard]] virtual learning_row<Number> at(std::size_t expert, std::int32_t id) = 0;
};

// The gradients of the rows of one table or pool that a layer's calls have read.
// Lifetime: the layer must outlive it and stay where it is.
template <class Number>
class layer_row_gradients final : public row_gradients<Number> {
public:
    // Errors: errc::missing_tensor where the layer trains no table or pool of this name.
    static result<layer_row_gradients> of(const trainable_layer<Number>& layer, std::string_view name) {
        for (const auto& g : layer.gradients())
            if (g.name == name && g.rows != nullptr) return layer_row_gradients(layer, *g.rows);
        return failure(errc::missing_tensor, std::string(name), "is no table or pool that the layer trains");
    }
    layer_row_gradients(const trainable_layer<Number>& layer, const train_detail::parameter<Number>& rows)
        : layer_(&layer), rows_(&rows) {}
    [[nodiscard]] std::size_t experts() const override { return rows_->experts(); }
    [[nodiscard]] std::size_t width() const override { return rows_->width(); }
    [[nodiscard]] std::size_t capacity() const override { return rows_->slot_count; }
    [[nodiscard]] std::size_t size() const override { return layer_->ids().size(); }
    [[nodiscard]] std::int32_t id(std::size_t n) const override { return layer_->ids().id(n); }
    [[nodiscard]] const Number* row(std::size_t n, std::size_t expert) const override {
        const std::size_t slot = layer_->ids().slot(n);
        return rows_->read[expert * rows_->slot_count + slot] != 0 ? rows_->row_gradient(expert, slot)
                                                                   : nullptr;
    }

private:
    const trainable_layer<Number>* layer_;
    const train_detail::parameter<Number>* rows_;
};

// Gradients of a pool's rows as those of one table whose row e vocab + id is E_e[id], as chosen_pool_rows reads it.
// Lifetime: the pool's gradients must outlive it. Cost: a pointer per row that was read.
template <class Number>
class pool_as_table final : public row_gradients<Number> {
public:
    pool_as_table(const row_gradients<Number>& pool, std::size_t vocab) : pool_(&pool), vocab_(vocab) {
        refresh();
    }
    // To be called after backward, before the gradients are used.
    void refresh() {
        rows_.clear();
        for (std::size_t e = 0; e < pool_->experts(); ++e)
            for (std::size_t n = 0; n < pool_->size(); ++n)
                if (const Number* const row = pool_->row(n, e); row != nullptr)
                    rows_.emplace_back(static_cast<std::int32_t>(e * vocab_) + pool_->id(n), row);
    }
    [[nodiscard]] std::size_t experts() const override { return 1; }
    [[nodiscard]] std::size_t width() const override { return pool_->width(); }
    [[nodiscard]] std::size_t capacity() const override { return pool_->capacity() * pool_->experts(); }
    [[nodiscard]] std::size_t size() const override { return rows_.size(); }
    [[nodiscard]] std::int32_t id(std::size_t n) const override { return rows_[n].first; }
    [[nodiscard]] const Number* row(std::size_t n, std::size_t) const override { return rows_[n].second; }

private:
    const row_gradients<Number>* pool_;
    std::size_t vocab_;
    std::vector<std::pair<std::int32_t, const Number*>> rows_;
};

// Rows of a table or a pool in memory, values (experts, vocab, width), with moments and step counts of their own: of a whole
// table, or of the block that a rank has of one, whose ids and experts count from the block's first.
// Lifetime: the values must outlive it. Cost: two numbers per value, four bytes per row.
template <class Number>
class rows_in_memory final : public learning_rows<Number> {
public:
    rows_in_memory(Number* values, std::size_t experts, std::size_t vocab, std::size_t width)
        : values_(values),
          experts_(experts),
          vocab_(vocab),
          width_(width),
          first(experts * vocab * width),
          second(experts * vocab * width),
          steps(experts * vocab) {}
    [[nodiscard]] std::size_t experts() const override { return experts_; }
    [[nodiscard]] std::size_t width() const override { return width_; }
    [[nodiscard]] bool has(std::int32_t id) const override {
        return id >= 0 && static_cast<std::size_t>(id) < vocab_;
    }
    [[nodiscard]] learning_row<Number> at(std::size_t expert, std::int32_t id) override {
        const std::size_t row = expert * vocab_ + static_cast<std::size_t>(id), begin = row * width_;
        return {values_ + begin, first.data() + begin, second.data() + begin, steps.data() + row};
    }
    // Multiplies part `part` of `parts` of all values.
    void scale(Number factor, std::size_t part, std::size_t parts) noexcept {
        const std::size_t n = first.size();
        for (std::size_t i = n * part / parts; i < n * (part + 1) / parts; ++i) values_[i] *= factor;
    }

private:
    Number* values_;
    std::size_t experts_, vocab_, width_;

public:
    std::vector<Number> first, second;
    std::vector<std::int32_t> steps;
};

TIFFIN_END
