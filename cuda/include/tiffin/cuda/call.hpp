// The arguments of a device call, and what its kernels read of them.
#pragma once

#include <tiffin/call/call_arguments.hpp>
#include <tiffin/call/gathered_rows.hpp>
#include <tiffin/cuda/kernels.hpp>
#include <tiffin/cuda/numbers.hpp>
#include <tiffin/cuda/runtime.hpp>
#include <tiffin/format/concepts.hpp>
#include <tiffin/view.hpp>

#include <cstddef>
#include <cstdint>
#include <span>

TIFFIN_BEGIN

// The arguments of a device call beside x: token_inputs, with all memory on the device and rows in the layer's number
// format. The rows of `carried` are on the device too (see carried_residuals).
template <codec Format>
struct device_inputs {
    using storage = typename Format::storage;

    std::span<const std::int32_t> token_ids{};
    matrix_view<const storage> residual{};
    matrix_view<const storage> per_layer_input{};
    std::span<choice<float>> routes{};
    carried_residuals* carried = nullptr;
    std::span<const gathered_rows> gathered{};
};

namespace cuda_detail {

// Areas aligned as by cudaMalloc, and as cuBLASLt prefers.
using device_arena = detail::arena<256>;

// The first id outside its table, of a call or of a gathered table's index: the smallest key is kept. ~0: none.
struct refused_ids {
    unsigned long long* key;

    static constexpr unsigned long long none = ~0ull;
    __device__ void note(bool gathered, std::size_t position, std::int32_t id) const {
        atomicMin(key, (gathered ? 1ull << 63 : 0ull) |
                           (static_cast<unsigned long long>(position) & 0x7FFFFFFFull) << 32 |
                           static_cast<std::uint32_t>(id));
    }
};

// The tokens of a launch: `most`, or span[1] of at most `most` where only the device has the count. Token i is row
// rows[i] of the call, row i without `rows`.
struct token_range {
    std::size_t most;
    const std::uint32_t* span;  // {0, count} on the device; null: `most`
    const std::uint32_t* rows;

    __device__ std::size_t count() const { return span == nullptr ? most : span[1]; }
    TIFFIN_HD bool has(std::size_t t) const { return span == nullptr || t < span[1]; }
    TIFFIN_HD std::size_t row(std::size_t t) const { return rows != nullptr ? rows[t] : t; }
};

// Calls of up to this many tokens read each weight once for all of them in one kernel of our own; larger ones multiply
// by cuBLASLt.
inline constexpr std::size_t few_tokens = 4;
inline bool is_few(const token_range& tokens) noexcept {
    return tokens.most <= few_tokens;
}

// The rows of a table, a pool or a map, and the row index per token, or per token and choice.
struct row_source {
    const std::byte* data = nullptr;
    const std::int32_t* index = nullptr;
    std::size_t count = 0;
    std::size_t stride = 0;  // bytes
    std::size_t first = 0;   // tokens of the call before this piece
    bool gathered = false;

    // Of token i; index[0] is that of the first token of the piece.
    __device__ const std::byte* row(std::size_t i, const refused_ids& refused) const {
        return at(first + i, index[i], refused);
    }
    // Of one of token i's choices; index[0] is the first of the whole call.
    __device__ const std::byte* row_of_choice(std::size_t i, std::size_t choices, std::size_t which,
                                              const refused_ids& refused) const {
        const std::size_t position = (first + i) * choices + which;
        return at(position, index[position], refused);
    }

private:
    // Row 0 for an id outside the table, which is noted.
    __device__ const std::byte* at(std::size_t position, std::int32_t id, const refused_ids& refused) const {
        if (id < 0 || static_cast<std::size_t>(id) >= count) {
            refused.note(gathered, position, id);
            id = 0;
        }
        return data + static_cast<std::size_t>(id) * stride;
    }
};
// Gathered rows by choice. `first`: tokens of the call before this piece.
inline row_source rows_of_choices(const gathered_rows& from, std::size_t first) {
    return {from.data, from.index.data(), from.count, from.stride, first, true};
}

// The destination of an engine: row i (+)= its value, in f32 for partial sums, else in the layer's format.
template <codec Format>
struct device_rows {
    using storage = typename Format::storage;

    void* data = nullptr;
    std::size_t stride = 0;  // numbers
    bool wide = false;
    bool add = false;
    const std::uint32_t* rows = nullptr;

    // Whether the rows can hold partial sums.
    [[nodiscard]] bool takes_parts() const noexcept { return wide || std::same_as<Format, f32>; }

    template <std::size_t N>
    TIFFIN_HD void put(std::size_t i, std::size_t feature, pack<N> value, std::size_t count) const {
        const std::size_t at = (rows != nullptr ? rows[i] : i) * stride + feature;
        if (wide)
            put_as<f32>(static_cast<float*>(data) + at, value, count);
        else
            put_as<Format>(static_cast<storage*>(data) + at, value, count);
    }

private:
    template <codec To, std::size_t N>
    TIFFIN_HD void put_as(typename To::storage* at, pack<N> value, std::size_t count) const {
        if (add) value = load<To, N>(at, count) + value;
        store<To, N>(value, at, count);
    }
};

// One piece of a call: the tokens that fit the workspace.
template <codec Format>
struct device_call {
    using storage = typename Format::storage;

    matrix_view<const storage> x{};
    const std::int32_t* token_ids = nullptr;
    matrix_view<const storage> residual{};
    matrix_view<const storage> per_layer_input{};
    const gathered_rows* gathered = nullptr;  // of the whole call, with `first` tokens before this piece
    std::size_t first = 0;
    token_range tokens{};
    device_rows<Format> to{};
    choice<float>* routes = nullptr;
    matrix_view<float> carried{};
    bool carried_is_due = false;
    std::byte* workspace = nullptr;
    refused_ids refused{};
    launches* out = nullptr;
};

// Rows of activations, `stride` elements apart.
template <codec Format>
struct activations {
    const typename Format::storage* data;
    std::size_t stride;
};

// Copies rows rows[i] of `from`, row i without `rows`: for products where tokens are not contiguous, and for inputs
// that y overwrites.
template <codec Format>
struct gather_body {
    activations<Format> from;
    const std::uint32_t* rows;
    token_range tokens;
    std::size_t width;
    typename Format::storage* to;

    __device__ void operator()(std::size_t i) const {
        const auto [t, j] = divide(i, width);
        if (tokens.has(t)) to[i] = from.data[(rows != nullptr ? rows[t] : t) * from.stride + j];
    }
};
template <codec Format>
void gather(launches& out, const activations<Format>& from, const std::uint32_t* rows,
            const token_range& tokens, std::size_t width, typename Format::storage* to) {
    for_elements(out, tokens.most * width, gather_body<Format>{from, rows, tokens, width, to});
}

}  // namespace cuda_detail

TIFFIN_END
