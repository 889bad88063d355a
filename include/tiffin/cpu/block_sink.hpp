// Sinks: the destinations of blocks of computed values.
#pragma once

#include <tiffin/call/call_arguments.hpp>
#include <tiffin/cpu/output.hpp>
#include <tiffin/cpu/product_sums.hpp>
#include <tiffin/tensor.hpp>

#include <algorithm>
#include <cstddef>

TIFFIN_BEGIN

namespace cpu_detail {

// Values of some tokens and features; those of one token are contiguous.
struct value_block {
    std::size_t token, tokens;
    std::size_t feature, features;
    const float* data;
    std::size_t step;  // floats from one token to the next
};

// Receives every block of a result exactly once, on any thread.
class block_sink {
public:
    virtual void put(const value_block& values) const noexcept = 0;
    // Memory for the values from this token and feature on, written directly in whole registers; null: none.
    [[nodiscard]] virtual float* place(std::size_t /*token*/, std::size_t /*feature*/,
                                       std::size_t /*features*/, std::size_t& /*step*/) const noexcept {
        return nullptr;
    }
    // Most features of a block that may be put.
    [[nodiscard]] virtual std::size_t features_at_once() const noexcept { return finished_at_once; }
    // Prefetches what put() will read for these tokens, which are next.
    virtual void prefetch(std::size_t /*token*/, std::size_t /*tokens*/, std::size_t /*feature*/,
                          std::size_t /*features*/) const noexcept {}

protected:
    ~block_sink() = default;
};

// Writes one token's values to contiguous memory.
class memory_sink final : public block_sink {
public:
    explicit memory_sink(float* to) noexcept : to_(to) {}
    void put(const value_block&) const noexcept override {}
    [[nodiscard]] float* place(std::size_t, std::size_t, std::size_t, std::size_t&) const noexcept override {
        return to_;
    }

private:
    float* to_;
};

// Writes rows of f32: of y, of a partial sum, of the workspace.
template <class Machine>
class row_sink final : public block_sink {
public:
    explicit row_sink(const output_rows& to) noexcept : to_(to) {}
    void put(const value_block& v) const noexcept override {
        for (std::size_t t = 0; t < v.tokens; ++t)
            for (std::size_t j = 0; j < v.features; j += Machine::lane_count) {
                const std::size_t n = std::min(Machine::lane_count, v.features - j);
                cpu_detail::put<Machine>(to_, v.token + t, v.feature + j,
                                         Machine::load(v.data + t * v.step + j, n), n);
            }
    }
    [[nodiscard]] float* place(std::size_t token, std::size_t feature, std::size_t features,
                               std::size_t& step) const noexcept override {
        if (!to_.is_plain() || to_.rows != nullptr || features % Machine::lane_count != 0) return nullptr;
        step = to_.y.stride;
        return to_.row(token) + feature;
    }
    [[nodiscard]] std::size_t features_at_once() const noexcept override { return block_numbers; }

private:
    output_rows to_;
};

// Writes activations that products read.
template <class Machine>
class buffer_sink final : public block_sink {
public:
    explicit buffer_sink(const typename Machine::buffer& to) noexcept : to_(to) {}
    void put(const value_block& v) const noexcept override { Machine::put_rounded(v, to_); }
    [[nodiscard]] float* place(std::size_t token, std::size_t feature, std::size_t /*features*/,
                               std::size_t& step) const noexcept override {
        return Machine::place(to_, token, feature, step);
    }

private:
    typename Machine::buffer to_;
};

}  // namespace cpu_detail

TIFFIN_END
