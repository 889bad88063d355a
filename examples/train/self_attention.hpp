// Causal self-attention with rotary positions and grouped heads, forward and back. Projections are not part of it.
#pragma once

#include <tiffin/executor/executor.hpp>

#include "../support/row_matrix.hpp"

#include <cmath>
#include <cstddef>

struct attention_sizes {
    std::size_t heads = 0, kv_heads = 0, head = 0;  // `head`: the width of one, even
    [[nodiscard]] std::size_t queries() const { return heads * head; }
    [[nodiscard]] std::size_t qkv() const { return (heads + 2 * kv_heads) * head; }
};

// The first `rows` rows of a batch are sequences of one length, one after the other. A row of qkv has the queries of all heads, then
// the keys, then the values of those that heads share.
class self_attention {
public:
    self_attention(const attention_sizes& sizes, std::size_t positions, double base = 10000)
        : sizes_(sizes),
          cosines_(as_index(positions), as_index(sizes.head / 2)),
          sines_(cosines_.rows(), cosines_.cols()),
          scale_(1 / std::sqrt(static_cast<float>(sizes.head))) {
        for (Eigen::Index i = 0; i < cosines_.cols(); ++i) {
            const double turn =
                std::pow(base, -2.0 * static_cast<double>(i) / static_cast<double>(sizes.head));
            for (Eigen::Index t = 0; t < cosines_.rows(); ++t) {
                cosines_(t, i) = static_cast<float>(std::cos(static_cast<double>(t) * turn));
                sines_(t, i) = static_cast<float>(std::sin(static_cast<double>(t) * turn));
            }
        }
    }

private:
    // The columns of one head, of one sequence.
    template <class Matrix>
    auto part(Matrix& rows, Eigen::Index first, std::size_t length, Eigen::Index column) const {
        return rows.block(first, column, as_index(length), as_index(sizes_.head));
    }

public:
    // mixed (rows, queries()) <- softmax(q k^T / sqrt(head)) v; q and k are left rotated, as backward wants them.
    void forward(row_matrix& qkv, row_matrix& mixed, std::size_t rows, std::size_t length,
                 tiffin::executor_ref execute) const {
        each_group(rows, length, execute, [&](Eigen::Index first, Eigen::Index group) {
            turn(qkv, first, as_index(length), group, 1);
            row_matrix p;
            const auto k = part(qkv, first, length, key(group)), v = part(qkv, first, length, value(group));
            for (Eigen::Index h = 0; h < shared(); ++h) {
                weights(part(qkv, first, length, query(group, h)), k, p);
                part(mixed, first, length, query(group, h)).noalias() = p * v;
            }
        });
    }

    // dqkv <- the gradient of sum(mixed dmixed) with respect to what forward was given; `qkv` as it left them.
    void backward(const row_matrix& qkv, const row_matrix& dmixed, row_matrix& dqkv, std::size_t rows,
                  std::size_t length, tiffin::executor_ref execute) const {
        each_group(rows, length, execute, [&](Eigen::Index first, Eigen::Index group) {
            row_matrix p, dp;
            const auto k = part(qkv, first, length, key(group)), v = part(qkv, first, length, value(group));
            auto dk = part(dqkv, first, length, key(group)), dv = part(dqkv, first, length, value(group));
            dk.setZero();
            dv.setZero();
            for (Eigen::Index h = 0; h < shared(); ++h) {
                const auto q = part(qkv, first, length, query(group, h));
                const auto dy = part(dmixed, first, length, query(group, h));
                weights(q, k, p);
                dp.noalias() = dy * v.transpose();
                dv.noalias() += p.transpose() * dy;
                // d softmax: p (dp - sum(p dp))
                const Eigen::VectorXf sums = p.cwiseProduct(dp).rowwise().sum();
                dp = p.cwiseProduct(dp.colwise() - sums) * scale_;
                part(dqkv, first, length, query(group, h)).noalias() = dp * k;
                dk.noalias() += dp.transpose() * q;
            }
            turn(dqkv, first, as_index(length), group, -1);
        });
    }

private:
    [[nodiscard]] Eigen::Index shared() const { return as_index(sizes_.heads / sizes_.kv_heads); }
    [[nodiscard]] Eigen::Index query(Eigen::Index group, Eigen::Index h) const {
        return (group * shared() + h) * as_index(sizes_.head);
    }
    [[nodiscard]] Eigen::Index key(Eigen::Index group) const {
        return as_index(sizes_.queries()) + group * as_index(sizes_.head);
    }
    [[nodiscard]] Eigen::Index value(Eigen::Index group) const {
        return key(group) + as_index(sizes_.kv_heads * sizes_.head);
    }
    // task(first row, group) for every sequence and every head of keys.
    template <class Task>
    void each_group(std::size_t rows, std::size_t length, tiffin::executor_ref execute,
                    const Task& task) const {
        const auto one = [&](std::size_t i) {
            task(as_index(i / sizes_.kv_heads * length), as_index(i % sizes_.kv_heads));
        };
        execute(rows / length * sizes_.kv_heads, tiffin::task_ref(one));
    }
    template <class Q, class K>
    void weights(const Q& q, const K& k, row_matrix& p) const {
        p.noalias() = q * k.transpose();
        for (Eigen::Index t = 0; t < p.rows(); ++t) {
            auto seen = p.row(t).head(t + 1);
            seen = ((seen.array() - seen.maxCoeff()) * scale_).exp().matrix();
            seen /= seen.sum();
            p.row(t).tail(p.cols() - t - 1).setZero();
        }
    }
    // Turns the queries and the keys of a group by their positions, or back.
    void turn(row_matrix& rows, Eigen::Index first, Eigen::Index length, Eigen::Index group,
              float way) const {
        const Eigen::Index half = cosines_.cols();
        for (Eigen::Index h = 0; h <= shared(); ++h) {
            const Eigen::Index at = h < shared() ? query(group, h) : key(group);
            for (Eigen::Index t = 0; t < length; ++t) {
                auto a = rows.row(first + t).segment(at, half).array();
                auto b = rows.row(first + t).segment(at + half, half).array();
                const auto c = cosines_.row(t).array();
                const auto s = sines_.row(t).array() * way;
                const Eigen::ArrayXf was = a.transpose();
                a = a * c - b * s;
                b = was.transpose() * s + b * c;
            }
        }
    }

    attention_sizes sizes_;
    row_matrix cosines_, sines_;
    float scale_;
};
