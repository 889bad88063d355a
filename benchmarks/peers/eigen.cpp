// Eigen. Left alone, Eigen 3.4 runs a product with few tokens on one thread, because it shares out
// tokens and not outputs, and always a matrix times a vector. So the outputs are shared out here,
// and within a parallel region Eigen does not start threads of its own. On 2 cores with AVX-512
// that took 0.5 of the time at 1 token, 0.2 at 4 and about the same at 512.
#include "../machine.hpp"
#include "../peers.hpp"

#include <omp.h>
#include <Eigen/Core>

#include <algorithm>
#include <utility>

namespace tiffin_bench {
namespace {

using index = Eigen::Index;
using vector_map = Eigen::Map<Eigen::VectorXf>;
using const_vector_map = Eigen::Map<const Eigen::VectorXf>;
using row_major = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
using rows_map = Eigen::Map<row_major>;
using const_rows_map = Eigen::Map<const row_major>;
using columns_map = Eigen::Map<Eigen::MatrixXf>;

// Fewer tokens than a vector has lanes leave Eigen's matrix kernel with partial vectors; products
// with one token at a time are then faster (0.7 of the time at 12 tokens with 16 lanes).
constexpr index lanes = Eigen::internal::packet_traits<float>::size;

index as_index(std::size_t n) {
    return static_cast<index>(n);
}

class eigen_peer final : public dense_peer {
public:
    eigen_peer(dense_shape shape, int threads, dense_weights weights)
        : shape_(shape), threads_(threads), weights_(std::move(weights)) {
        prepare(1);
    }

    void prepare(std::size_t tokens) override {
        if (tokens <= capacity_) return;
        gate_ = page_floats(tokens * shape_.d_ff);
        up_ = page_floats(tokens * shape_.d_ff);
        out_ = page_floats(tokens * shape_.d_model);
        capacity_ = tokens;
    }

    void run(std::size_t layer, const float* x, std::size_t tokens, float* y) override {
        prepare(tokens);
        // Eigen takes this as its own limit too, which matters where it is 1.
        omp_set_num_threads(threads_);
        if (as_index(tokens) < lanes)
            run_few(layer, x, as_index(tokens), y);
        else
            run_many(layer, x, as_index(tokens), y);
    }

private:
    // out (tokens, w.rows()), row-major, of which the given rows of w yield some columns.
    static void multiply_by_token(const const_rows_map& w, row_range rows, const float* in, index tokens,
                                  float* out) {
        const index block = as_index(rows_kept_in_cache(static_cast<std::size_t>(w.cols())));
        const index end = as_index(rows.begin + rows.count);
        for (index r = as_index(rows.begin); r < end; r += block) {
            const index count = std::min(block, end - r);
            for (index t = 0; t < tokens; ++t)
                vector_map(out + t * w.rows() + r, count).noalias() =
                    w.middleRows(r, count) * const_vector_map(in + t * w.cols(), w.cols());
        }
    }

    void run_few(std::size_t layer, const float* x, index tokens, float* y) {
        const index d_model = as_index(shape_.d_model);
        const index d_ff = as_index(shape_.d_ff);
        const const_rows_map gate(weights_.gate(layer), d_ff, d_model);
        const const_rows_map up(weights_.up(layer), d_ff, d_model);
        const const_rows_map down(weights_.down(layer), d_model, d_ff);
#pragma omp parallel num_threads(threads_)
        {
            const int me = omp_get_thread_num();
            const int all = omp_get_num_threads();
            const row_range rows = rows_of_thread(shape_.d_ff, me, all);
            multiply_by_token(gate, rows, x, tokens, gate_.data());
            multiply_by_token(up, rows, x, tokens, up_.data());
            rows_map all_gates(gate_.data(), tokens, d_ff);
            const const_rows_map all_ups(up_.data(), tokens, d_ff);
            auto g = all_gates.middleCols(as_index(rows.begin), as_index(rows.count)).array();
            auto u = all_ups.middleCols(as_index(rows.begin), as_index(rows.count)).array();
            g = g / (1.0f + (-g).exp()) * u;
#pragma omp barrier
            multiply_by_token(down, rows_of_thread(shape_.d_model, me, all), gate_.data(), tokens, y);
        }
    }

    // Intermediate results are column-major, token beside token: Eigen's kernel then has tokens in
    // its vectors, and a thread's part of the outputs is one piece of memory. On AVX-512 this took
    // 0.7 of the row-major time at 16 tokens and 0.9 at 512.
    void run_many(std::size_t layer, const float* x, index tokens, float* y) {
        const index d_model = as_index(shape_.d_model);
        const index d_ff = as_index(shape_.d_ff);
        const const_rows_map in(x, tokens, d_model);
        const const_rows_map gate(weights_.gate(layer), d_ff, d_model);
        const const_rows_map up(weights_.up(layer), d_ff, d_model);
        const const_rows_map down(weights_.down(layer), d_model, d_ff);
        const columns_map hidden(gate_.data(), tokens, d_ff);
        rows_map result(y, tokens, d_model);
#pragma omp parallel num_threads(threads_)
        {
            const int me = omp_get_thread_num();
            const int all = omp_get_num_threads();
            const row_range inner = rows_of_thread(shape_.d_ff, me, all);
            const index first = as_index(inner.begin);
            const index count = as_index(inner.count);
            columns_map g(gate_.data() + first * tokens, tokens, count);
            columns_map u(up_.data() + first * tokens, tokens, count);
            if (count > 0) {
                g.noalias() = in * gate.middleRows(first, count).transpose();
                u.noalias() = in * up.middleRows(first, count).transpose();
                g.array() = g.array() / (1.0f + (-g.array()).exp()) * u.array();
            }
#pragma omp barrier
            const row_range outer = rows_of_thread(shape_.d_model, me, all);
            const index begin = as_index(outer.begin);
            const index end = begin + as_index(outer.count);
            columns_map o(out_.data() + begin * tokens, tokens, end - begin);
            if (end > begin) o.noalias() = hidden * down.middleRows(begin, end - begin).transpose();
            // Transposed in strips of a cache line, of which each line is read and written once.
            for (index c = begin; c < end; c += 16) {
                const index width = std::min(index{16}, end - c);
                result.middleCols(c, width) = o.middleCols(c - begin, width);
            }
        }
    }

    dense_shape shape_;
    int threads_;
    dense_weights weights_;
    std::size_t capacity_ = 0;
    page_floats gate_;
    page_floats up_;
    page_floats out_;
};

}  // namespace

dense_peer_kind eigen_peer_kind() {
    return {.library = "eigen",
            .format = "f32",
            .reads_in_place = true,
            .make = [](dense_shape shape, int threads, dense_weights weights) {
                return std::make_unique<eigen_peer>(shape, threads, std::move(weights));
            }};
}

}  // namespace tiffin_bench
