// The experts of a mixture, each for the tokens that a graph has chosen it for.
#pragma once

#include "pattern.hpp"

#include <tiffin/call/layer_of_any_block.hpp>
#include <tiffin/cpu/grouped_tokens.hpp>
#include <tiffin/executor/executor.hpp>
#include <tiffin/executor/openmp.hpp>
#include <tiffin/runtime/any_layer.hpp>
#include <tiffin/view.hpp>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

#include "ggml-impl.h"
#include "ggml.h"

namespace tiffin_in_ggml {

// Makes room for calls of `tokens` tokens.
inline void make_room(tiffin::workspace& memory, const tiffin::any_layer& layer, std::size_t tokens,
                      std::size_t workers) {
    const std::size_t bytes = layer.workspace_bytes(tokens, workers);
    if (memory.size() < bytes) memory = tiffin::workspace(bytes);
}
// Calls a layer in a workspace with room; logs why it failed.
inline bool call(const tiffin::any_layer& layer, const tiffin::matrix_view<const float>& x,
                 const tiffin::token_inputs& beside, const tiffin::matrix_view<float>& y,
                 tiffin::workspace& memory, tiffin::executor_ref execute) noexcept {
    const tiffin::status done = layer.try_call(x, beside, y, std::span<std::byte>(memory), execute);
    if (!done) GGML_LOG_ERROR("tiffin: %s\n", done.failure().message().c_str());
    return done.ok();
}

class chosen_experts {
public:
    // y of a block: the values of the experts, or their weighted sums. False where an id is no expert's.
    bool run(const ffn_nodes& block, std::span<const tiffin::any_layer> layers, const tiffin::openmp& team) {
        if (!sort(block, layers.size())) return false;
        width_ = static_cast<std::size_t>(block.x->ne[0]);
        in_.resize(rows_.size() * width_);
        out_.resize(rows_.size() * width_);
        const ggml_tensor& x = *block.x;
        for_rows(rows_.size(), width_, team, [&](std::size_t r) {
            const std::size_t place = rows_[r].place % static_cast<std::size_t>(x.ne[1]);
            std::copy_n(at<float>(x, place, rows_[r].token), width_, &in_[r * width_]);
        });
        std::size_t numbers = 0;
        for (const ggml_tensor* w : block.weights)
            if (w != nullptr) numbers += static_cast<std::size_t>(w->ne[0] * w->ne[1]);
        if (!compute(layers, numbers, team)) return false;
        const ggml_tensor& y = *block.y;
        if (block.routing == nullptr)
            for_rows(rows_.size(), width_, team, [&](std::size_t r) {
                std::copy_n(&out_[r * width_], width_, at<float>(y, rows_[r].place, rows_[r].token));
            });
        else
            for_rows(tokens_, chosen_ * width_, team, [&](std::size_t t) { add(t, at<float>(y, t, 0)); });
        return true;
    }

private:
    struct row {
        std::int32_t expert;
        std::size_t place, token;  // place: among the token's choices
        float weight;
    };

    template <class T>
    static T* at(const ggml_tensor& of, std::size_t second, std::size_t third) {
        return reinterpret_cast<T*>(static_cast<std::byte*>(of.data) + second * of.nb[1] + third * of.nb[2]);
    }
    // work(row), the rows split among the threads where that takes less time.
    template <class Work>
    static void for_rows(std::size_t rows, std::size_t numbers, tiffin::executor_ref execute,
                         const Work& work) {
        const std::size_t tasks = std::clamp<std::size_t>(rows * numbers / 32768, 1, execute.concurrency());
        const auto share = [&](std::size_t i) noexcept {
            for (std::size_t r = rows * i / tasks; r < rows * (i + 1) / tasks; ++r) work(r);
        };
        execute(tasks, tiffin::task_ref(share));
    }
    // The choices of all tokens, by expert.
    bool sort(const ffn_nodes& block, std::size_t experts) {
        const ggml_tensor& ids = *block.experts;
        chosen_ = static_cast<std::size_t>(ids.ne[0]);
        tokens_ = static_cast<std::size_t>(ids.ne[1]);
        rows_.clear();
        for (std::size_t t = 0; t < tokens_; ++t)
            for (std::size_t i = 0; i < chosen_; ++i) {
                std::int32_t expert;
                std::memcpy(&expert, at<std::byte>(ids, t, 0) + i * ids.nb[0], sizeof expert);
                if (expert < 0 || static_cast<std::size_t>(expert) >= experts) return false;
                rows_.push_back({expert, i, t, block.routing ? *at<float>(*block.routing, i, t) : 1.0f});
            }
        std::stable_sort(rows_.begin(), rows_.end(),
                         [](const row& a, const row& b) { return a.expert < b.expert; });
        place_of_.resize(rows_.size());
        starts_.clear();
        for (std::size_t r = 0; r < rows_.size(); ++r) {
            place_of_[rows_[r].token * chosen_ + rows_[r].place] = r;
            if (r == 0 || rows_[r].expert != rows_[r - 1].expert) starts_.push_back(r);
        }
        starts_.push_back(rows_.size());
        return true;
    }
    // `numbers`: of an expert's weights.
    bool compute(std::span<const tiffin::any_layer> layers, std::size_t numbers, const tiffin::openmp& team) {
        const std::size_t active = starts_.size() - 1, threads = team.concurrency();
        const std::size_t whole = tiffin::cpu_detail::whole_experts(active, numbers, tokens_, threads);
        const auto layer = [&](std::size_t e) -> const tiffin::any_layer& {
            return layers[static_cast<std::size_t>(rows_[starts_[e]].expert)];
        };
        memories_.resize(std::max(memories_.size(), threads));
        for (std::size_t e = 0; e < active; ++e)
            for (std::size_t i = 0; i < (e < whole ? threads : 1); ++i)
                make_room(memories_[i], layer(e), starts_[e + 1] - starts_[e], e < whole ? 1 : threads);
        const auto run_expert = [&](std::size_t e, std::size_t memory,
                                    tiffin::executor_ref execute) noexcept {
            const std::size_t rows = starts_[e + 1] - starts_[e], first = starts_[e] * width_;
            return call(layer(e), {&in_[first], rows, width_}, {}, {&out_[first], rows, width_},
                        memories_[memory], execute);
        };
        std::atomic<std::size_t> next = 0;
        std::atomic<bool> done = true;
        if (whole > 0)
            team(threads, [&](std::size_t thread) {
                for (std::size_t e; (e = next.fetch_add(1)) < whole;)
                    if (!run_expert(e, thread, tiffin::serially)) done = false;
            });
        for (std::size_t e = whole; e < active && done; ++e)
            if (!run_expert(e, 0, team)) done = false;
        return done;
    }
    // The sum of a token's values, in the order of its choices.
    void add(std::size_t token, float* to) const {
        std::fill_n(to, width_, 0.0f);
        for (std::size_t i = 0; i < chosen_; ++i) {
            const std::size_t r = place_of_[token * chosen_ + i];
            for (std::size_t j = 0; j < width_; ++j) to[j] += rows_[r].weight * out_[r * width_ + j];
        }
    }

    std::size_t chosen_ = 0, tokens_ = 0, width_ = 0;
    std::vector<row> rows_;
    std::vector<std::size_t> place_of_;  // among rows_, of each token's choices
    std::vector<std::size_t> starts_;    // the first row of each expert that was chosen, and the end
    std::vector<float> in_, out_;
    std::vector<tiffin::workspace> memories_;  // of each thread
};

}  // namespace tiffin_in_ggml
