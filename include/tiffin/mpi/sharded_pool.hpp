// A pool of expert tables sharded over MPI ranks, whose rows are mixed on the ranks that hold them.
#pragma once

#include <tiffin/mpi/halved_sum.hpp>
#include <tiffin/mpi/sharded_rows.hpp>
#include <tiffin/router/selection.hpp>

#include <algorithm>
#include <bit>
#include <climits>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <utility>
#include <vector>

TIFFIN_BEGIN

// Mixes rows of the tables E_e (rows, d) of `experts` experts, which lie side by side in table rows of experts d
// values:
//
//     z[t] = sum over chosen e of w_e E_e[ids[t]]
//
// A rank mixes the rows of its experts that a token chose, and sends one row of d floats for them.
// Shapes: ids (T), choices (T, top_k) in any order, z (T, d). Columns are cut by shard_grid::experts_at().
// Numerics: products are rounded to f32 and summed in f32 by halving [0, experts), see halved_sum.hpp: the same bits on
//   any number of ranks. A layer that mixes by itself sums the best expert first, by fused multiply-adds. No term of
//   either sum is rounded more than k = top_k times: where nothing underflows, each differs by at most g sum |w_e E_e|
//   from the exact sum, g = k u / (1 - k u), u = 2^-24, and they by at most twice that from one another.
// Errors, threads: those of sharded_rows. read_mixed() has errc::size for choices not of shape (T, top_k), and
//   errc::option for a choice that is no expert or that a token makes twice, for a top_k that is not in [1, experts],
//   and where ranks pass different ones.
// Cost: that of sharded_rows with d floats in place of a block's row, and only from blocks of which an expert was
//   chosen; equal ids of a rank are sent separately. Own stores read whole rows of their blocks.
// Source: MoRT Eq. 5; ReToken, Appendix B.
//
//     auto pool = sharded_pool::of(*table, 8);
//     pool->read_mixed(ids, choices, 2, z.data());
class sharded_pool {
public:
    // The table must outlive this. Not collective.
    // Errors: errc::option where the number of column shards is no power of two, or exceeds `experts`; errc::size where
    //   the width is not that of `experts` experts in whole blocks of the format, or a column shard's not that of its
    //   experts; errc::dtype where rows have scales.
    static result<sharded_pool> of(const sharded_rows&& table, std::size_t experts) = delete;
    static result<sharded_pool> of(const sharded_rows& table, std::size_t experts) {
        const table_shape& shape = table.shape();
        const std::size_t columns = table.ranks_.grid().column_shards;
        if (!std::has_single_bit(columns) || columns > experts)
            return failure(errc::option, "grid", "has ", columns, " column shards; of ", experts,
                           " experts it may have a power of two, and not more than experts");
        if (shape.scales.any())
            return failure(errc::dtype, "table", "has ", shape.scales.text(),
                           "; rows that are mixed have none");
        if (shape.width % experts != 0 || shape.width / experts % block_of(shape.type) != 0)
            return failure(errc::size, "experts", experts, " do not share rows of ", shape.width,
                           " in blocks of ", block_of(shape.type));
        const std::size_t d = shape.width / experts;
        for (std::size_t c = 0; c < columns; ++c) {
            const shard_range own = table.ranks_.grid().experts_at(static_cast<int>(c), experts);
            const std::size_t width = table.ranks_.width_of(c);
            if (width != own.count * d)
                return failure(errc::size, "column shard " + std::to_string(c), "has rows of ", width,
                               "; its ", own.count, " experts of ", experts, " have ", own.count * d);
        }
        return sharded_pool(table, experts);
    }

    // Collective.
    status read_mixed(std::span<const std::int32_t> ids, std::span<const choice<float>> choices,
                      std::size_t top_k, float* to) const {
        const std::size_t columns = ranks_->grid().column_shards;
        std::vector<choice<float>> chosen;
        std::vector<float> products;
        std::vector<detail::placed_row> terms;
        const status own = detail::attempt("memory", [&]() -> status {
            if (status s = check_call(ids, choices, top_k); !s) return s;
            chosen.resize(top_k);
            products.resize(top_k * width_);
            terms.reserve(std::max(top_k, columns));
            return {};
        });
        const shard_range mine = ranks_->grid().experts_at(ranks_->rank(), experts_);
        const auto mix = [&](const std::byte* record, const std::byte* row, std::byte* answer) {
            std::memcpy(chosen.data(), record + sizeof(std::int32_t), top_k * sizeof(choice<float>));
            std::sort(chosen.begin(), chosen.end(),
                      [](const auto& a, const auto& b) { return a.expert < b.expert; });
            const dtype type = ranks_->shape().type;
            terms.clear();
            for (const auto& [expert, weight] : chosen) {
                const std::size_t place = static_cast<std::size_t>(expert);
                if (!mine.has(place)) continue;
                float* const product = products.data() + terms.size() * width_;
                decode_row({1, width_, type}, row + bytes_of(type, (place - mine.first) * width_), product);
                detail::scale_row(weight, product, width_);
                terms.push_back({place, product});
            }
            detail::sum_by_halves(terms, mine.first, mine.first + mine.count, width_);
            std::memcpy(answer, terms[0].row, width_ * sizeof(float));
        };
        const auto chose_some = [&](std::size_t t, std::size_t c) {
            const shard_range there = ranks_->grid().experts_at(static_cast<int>(c), experts_);
            const auto of_token = choices.subspan(t * top_k, top_k);
            return std::any_of(of_token.begin(), of_token.end(), [&](const choice<float>& one) {
                return there.has(static_cast<std::size_t>(one.expert));
            });
        };
        detail::shard_requests::answers got;
        if (status s = ranks_->exchange({ids, choices, top_k, experts_, width_ * sizeof(float)}, own,
                                        chose_some, mix, got);
            !s)
            return s;
        // The ranks' sums are the lower levels of the tree; these are the upper ones.
        for (std::size_t t = 0; t < ids.size(); ++t) {
            terms.clear();
            for (std::size_t c = 0; c < columns; ++c)
                if (std::byte* const row = got.row(t * columns + c); row != nullptr)
                    terms.push_back({c, reinterpret_cast<float*>(row)});
            detail::sum_by_halves(terms, 0, columns, width_);
            std::memcpy(to + t * width_, terms[0].row, width_ * sizeof(float));
        }
        return {};
    }

private:
    sharded_pool(const sharded_rows& table, std::size_t experts)
        : ranks_(&table.ranks_), experts_(experts), width_(table.shape().width / experts) {}

    [[nodiscard]] status check_call(std::span<const std::int32_t> ids, std::span<const choice<float>> choices,
                                    std::size_t top_k) const {
        if (top_k == 0 || top_k > experts_)
            return failure(errc::option, "top_k", "is ", top_k, " of ", experts_, " experts");
        if (status s = ranks_->check_call(ids); !s) return s;
        if (choices.size() != ids.size() * top_k)
            return failure(errc::size, "choices", "are ", choices.size(), "; ", ids.size(), " tokens make ",
                           top_k, " each");
        for (std::size_t i = 0; i < choices.size(); ++i) {
            const std::int32_t e = choices[i].expert;
            const auto earlier = choices.subspan(i / top_k * top_k, i % top_k);
            const bool twice = std::any_of(earlier.begin(), earlier.end(),
                                           [e](const choice<float>& one) { return one.expert == e; });
            if (e < 0 || static_cast<std::size_t>(e) >= experts_ || twice)
                return failure(
                    errc::option, "choices[" + std::to_string(i) + "]", "is expert ", e,
                    (twice ? ", which the token has chosen before" : " of " + std::to_string(experts_)));
        }
        return {};
    }

    const detail::shard_requests* ranks_;
    std::size_t experts_;
    std::size_t width_;
};

TIFFIN_END
