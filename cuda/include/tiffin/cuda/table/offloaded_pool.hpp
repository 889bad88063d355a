// The chosen rows of a pool in host memory: fetched to the device while it computes, and mixed there.
#pragma once

#include <tiffin/cuda/kernels.hpp>
#include <tiffin/cuda/numbers.hpp>
#include <tiffin/cuda/table/offloaded_rows.hpp>
#include <tiffin/format/concepts.hpp>
#include <tiffin/router/selection.hpp>
#include <tiffin/view.hpp>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>

TIFFIN_BEGIN

namespace cuda_detail {

// A thread per choice: its row of the pool, -1 for an invalid expert or id, and its weight.
struct pool_rows_body {
    const std::int32_t* ids;  // null: a pool of one id
    const choice<float>* routes;
    std::size_t top_k;
    std::size_t experts;
    std::size_t vocab;
    std::int32_t* rows;
    float* weights;

    __device__ void operator()(std::size_t i) const {
        const std::int32_t id = ids != nullptr ? ids[i / top_k] : 0, e = routes[i].expert;
        const bool none = e < 0 && routes[i].weight == 0;  // padding behind a token's last choice
        const bool inside = id >= 0 && static_cast<std::size_t>(id) < vocab && e >= 0 &&
                            static_cast<std::size_t>(e) < experts;
        const std::size_t row = static_cast<std::size_t>(e) * vocab + static_cast<std::size_t>(id);
        rows[i] = inside ? static_cast<std::int32_t>(row) : none ? 0 : -1;
        weights[i] = routes[i].weight;
    }
};

// A thread per some features of a token: the weighted sum of its rows, best first.
template <codec Format>
struct mix_rows_body {
    static constexpr std::size_t numbers = access<Format>;

    const std::byte* rows;
    std::size_t stride;
    const std::int32_t* index;
    const float* weights;
    std::size_t top_k;
    std::size_t width;
    typename Format::storage* to;

    [[nodiscard]] TIFFIN_HD std::size_t chunks() const { return (width + numbers - 1) / numbers; }
    __device__ void operator()(std::size_t item) const {
        const auto [t, chunk] = divide(item, chunks());
        const std::size_t feature = chunk * numbers, count = width - feature;
        pack<numbers> total(0.0f);
        for (std::size_t i = t * top_k; i < (t + 1) * top_k; ++i) {
            const auto* const row = reinterpret_cast<const typename Format::storage*>(
                rows + static_cast<std::size_t>(index[i]) * stride);
            total = total + pack<numbers>(weights[i]) * load<Format, numbers>(row + feature, count);
        }
        store<Format, numbers>(total, to + t * width + feature, count);
    }
};

}  // namespace cuda_detail

// m[t] = sum over the choices (e, w) of t of w E_e[ids[t]], with the pool in host memory: as MoRT is deployed, top_k
// rows per token cross the bus. Where the mixed rows are read some layers later, the layers between hide the transfer.
//
//     auto routes = prepare(routes_of<sigmoid_topk_renorm>{{.top_k = 2}}, router_weights, cuda<bf16>{stream});
//     routes(x, {.routes = chosen}, copy_of_x);
//     pool[l].send(ids, chosen, stream).or_throw();                     // returns at once
//     ...                                                               // the layers between
//     auto mixed = pool[l].receive(stream).or_throw();
//     layer(x, {.per_layer_input = mixed}, y);                          // mort_given
//
// Shapes: ids (T), routes (T, top_k), on the device; ids may be empty for a pool of one id, such as the values of
//   product keys. T up to `tokens`. Mixed rows (T, width) as Format, valid until the next send().
// Numerics: products and sums in f32, best choice first, rounded once to Format.
// Errors, order, cache, threads, lifetime: those of offloaded_rows; the pool is kept in Format (errc::dtype). check()
//   reports an invalid expert or id.
// Cost: the fetches, a kernel for the row indices, and a kernel to mix.
// Source: MoRT Sec. 3.3.2 and App. C; docs/device.md#tables-in-host-memory.
template <codec Format, row_store Store = row_store_ref>
class basic_offloaded_pool {
public:
    using storage = typename Format::storage;

    // Pool: (experts, vocab, width) in host memory, or a store of rows e * vocab + id.
    template <class Pool>
    static result<basic_offloaded_pool> make(const Pool& pool, std::size_t experts, std::size_t top_k,
                                             const offload_options& options = {}) {
        if (top_k == 0 || experts == 0)
            return failure(errc::option, top_k == 0 ? "top_k" : "experts", "is 0");
        const std::size_t choices = options.tokens * top_k;
        auto rows = basic_offloaded_rows<Store>::make(flat(pool), {choices, options.cached_rows});
        if (!rows) return rows.failure();
        const table_shape shape = shape_of(pool);
        if (shape.type != Format::type)
            return failure(errc::dtype, "pool", "is ", name_of(shape.type), "; it is mixed as ",
                           name_of(Format::type));
        if (shape.rows % experts != 0)
            return failure(errc::size, "pool", "has ", shape.rows, " rows for ", experts, " experts");
        cuda_detail::device_arena counted;
        lay_out(counted, choices, options.tokens * shape.width);
        auto memory = cuda_detail::device_memory::make(counted.used(), "mixed rows");
        if (!memory) return memory.failure();
        return basic_offloaded_pool(*std::move(rows), *std::move(memory), shape, experts, top_k,
                                    options.tokens);
    }

    // Starts to fetch the rows that tokens chose.
    status send(std::span<const std::int32_t> ids, std::span<const choice<float>> routes,
                cudaStream_t stream) {
        sent_ = 0;
        const std::size_t tokens = routes.size() / top_k_, vocab = shape_.rows / experts_;
        if (routes.size() % top_k_ != 0 || tokens > tokens_)
            return failure(errc::size, "routes", "are ", routes.size(), "; there is room for ", tokens_,
                           " tokens of ", top_k_);
        if (ids.size() != tokens && !(ids.empty() && vocab == 1))
            return failure(errc::size, "ids", "are ", ids.size(), " for ", tokens, " tokens and ", vocab,
                           " ids");
        if (tokens == 0) return {};
        cuda_detail::launches out(stream);
        const areas at = here();
        cuda_detail::for_elements(
            out, routes.size(),
            cuda_detail::pool_rows_body{ids.empty() ? nullptr : ids.data(), routes.data(), top_k_, experts_,
                                        vocab, at.rows, at.weights});
        if (status s = out.outcome(); !s) return s;
        if (status s = rows_.prefetch({at.rows, routes.size()}, stream); !s) return s;
        sent_ = tokens;
        return {};
    }
    // The mixed rows of the last send(); empty if there was none.
    result<matrix_view<const storage>> receive(cudaStream_t stream) {
        const std::size_t tokens = std::exchange(sent_, 0);
        if (tokens == 0) return matrix_view<const storage>{};
        const areas at = here();
        const auto now = rows_.gather({at.rows, tokens * top_k_}, stream);
        if (!now) return now.failure();
        cuda_detail::launches out(stream);
        const cuda_detail::mix_rows_body<Format> mix{now->data, now->stride,  now->index.data(), at.weights,
                                                     top_k_,    shape_.width, at.mixed};
        cuda_detail::for_elements(out, tokens * mix.chunks(), mix);
        if (status s = out.outcome(); !s) return s.failure();
        return matrix_view<const storage>(at.mixed, tokens, shape_.width);
    }

    // Those of offloaded_rows; a reported id is a row of the pool, -1 for an invalid expert or id.
    [[nodiscard]] status check() { return rows_.check(); }
    [[nodiscard]] result<offload_counts> counts() { return rows_.counts(); }

private:
    struct areas {
        std::int32_t* rows;
        float* weights;
        storage* mixed;
    };
    basic_offloaded_pool(basic_offloaded_rows<Store> rows, cuda_detail::device_memory memory,
                         const table_shape& shape, std::size_t experts, std::size_t top_k, std::size_t tokens)
        : rows_(std::move(rows)),
          memory_(std::move(memory)),
          shape_(shape),
          experts_(experts),
          top_k_(top_k),
          tokens_(tokens) {}

    static areas lay_out(cuda_detail::device_arena& from, std::size_t choices, std::size_t numbers) noexcept {
        auto* const rows = from.template take<std::int32_t>(choices);
        auto* const weights = from.template take<float>(choices);
        return {rows, weights, from.template take<storage>(numbers)};
    }
    [[nodiscard]] areas here() const noexcept {
        cuda_detail::device_arena from(memory_.data());
        return lay_out(from, tokens_ * top_k_, tokens_ * shape_.width);
    }
    static tensor_view flat(const tensor_view& pool) {
        tensor_view rows = pool;
        if (pool.shape.rank() == 3) rows.shape = {pool.shape[0] * pool.shape[1], pool.shape[2]};
        return rows;
    }
    static const Store& flat(const Store& store) { return store; }
    static table_shape shape_of(const tensor_view& pool) {
        const tensor_view rows = flat(pool);
        return {rows.shape[0], rows.shape[1], rows.type};
    }
    static table_shape shape_of(const Store& store) { return store.shape(); }

    basic_offloaded_rows<Store> rows_;
    cuda_detail::device_memory memory_;
    table_shape shape_;
    std::size_t experts_;
    std::size_t top_k_;
    std::size_t tokens_;
    std::size_t sent_ = 0;
};

template <codec Format = f32>
using offloaded_pool = basic_offloaded_pool<Format>;

TIFFIN_END
