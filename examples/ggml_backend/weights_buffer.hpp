// Where a model's feed-forward weights lie, with the layers that were prepared from them.
#pragma once

#include "layers.hpp"
#include "pattern.hpp"

#include <tiffin/aligned_buffer.hpp>

#include <cstddef>
#include <cstring>
#include <map>
#include <mutex>
#include <optional>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "ggml-backend-impl.h"
#include "ggml-impl.h"

#if defined(__unix__)
#    include <sys/mman.h>
#    include <unistd.h>
#endif

namespace tiffin_in_ggml {

// One layer, or one per expert.
struct held_ffn {
    std::vector<tiffin::any_layer> layers;  // empty: the block was refused, and is left to the CPU backend
    bool joined = false;           // with what a side file has: it reads token ids, and adds no residual
    std::size_t packed_bytes = 0;  // about, for the log
};

// The memory of a buffer: its own, or a mapped file's. The layers go with it when the model does, and all contexts
// of the model share them.
class weights_buffer {
public:
    explicit weights_buffer(std::size_t bytes) : own_(bytes), data_(own_.data()) {}
    explicit weights_buffer(void* mapped) : data_(mapped) {}

    [[nodiscard]] void* data() const noexcept { return data_; }

    // The layers of a block, prepared at the first call. Threads: any.
    const held_ffn& of(const ffn_nodes& nodes, const tiffin::io::side_file* side, std::size_t vocabulary,
                       tiffin::executor_ref execute) {
        const std::lock_guard lock(mutex_);
        const auto data_of = [](const ggml_tensor* t) -> const void* {
            return t != nullptr ? t->data : nullptr;
        };
        const key of_block{{data_of(nodes.weights[0]), data_of(nodes.weights[1]), data_of(nodes.weights[2])},
                           nodes.activation,
                           nodes.residual != nullptr};
        const auto at = held_.find(of_block);
        if (at != held_.end()) return at->second;
        return held_.emplace(of_block, make(nodes, side, vocabulary, execute)).first->second;
    }
    // The memory was written: what was packed from it is of no use.
    void forget() {
        const std::lock_guard lock(mutex_);
        held_.clear();
    }

private:
    using key = std::tuple<std::array<const void*, 3>, std::string_view, bool>;

    static projection expert_of(const ffn_nodes& nodes, std::size_t place, std::size_t expert) {
        const ggml_tensor* const weight = nodes.weights[place];
        if (weight == nullptr) return {};
        const ggml_tensor* const bias = nodes.biases[place];
        return {{static_cast<const std::byte*>(weight->data) + expert * weight->nb[2],
                 *format_of(weight),
                 {static_cast<std::size_t>(weight->ne[1]), static_cast<std::size_t>(weight->ne[0])}},
                bias == nullptr ? nullptr : static_cast<const float*>(bias->data)};
    }
    held_ffn make(const ffn_nodes& nodes, const tiffin::io::side_file* side, std::size_t vocabulary,
                  tiffin::executor_ref execute) const {
        held_ffn made;
        const auto number = layer_of(nodes.weights[2]);
        if (side != nullptr && number && side->layers().contains(*number)) {
            auto joined = prepare_around(*side, *number,
                                         {expert_of(nodes, 0, 0), expert_of(nodes, 1, 0),
                                          expert_of(nodes, 2, 0), nodes.activation, false},
                                         vocabulary, execute);
            if (joined) {
                made.layers.push_back(*std::move(joined));
                made.joined = true;
                return made;
            }
            GGML_LOG_ERROR("tiffin: %s; the layer runs as the model has it\n",
                           joined.failure().message().c_str());
        }
        const auto experts = static_cast<std::size_t>(nodes.weights[1]->ne[2]);
        for (std::size_t e = 0; e < experts; ++e) {
            auto layer = prepare({expert_of(nodes, 0, e), expert_of(nodes, 1, e), expert_of(nodes, 2, e),
                                  nodes.activation, nodes.residual != nullptr},
                                 execute);
            if (!layer) {
                GGML_LOG_WARN("tiffin: %s is left to the CPU backend: %s\n", nodes.weights[2]->name,
                              layer.failure().message().c_str());
                return {};
            }
            made.layers.push_back(*std::move(layer));
        }
        for (const ggml_tensor* weight : nodes.weights)
            if (weight != nullptr) give_back(*weight);
        return made;
    }
    // What was packed need not stay in memory as well: a mapped file is read again where somebody asks for it.
    void give_back(const ggml_tensor& weight) const {
#if defined(__unix__)
        if (own_.data() != nullptr) return;
        const auto page = static_cast<std::uintptr_t>(sysconf(_SC_PAGESIZE));
        const auto begin = (reinterpret_cast<std::uintptr_t>(weight.data) + page - 1) / page * page;
        const auto end = (reinterpret_cast<std::uintptr_t>(weight.data) + ggml_nbytes(&weight)) / page * page;
        if (begin < end) madvise(reinterpret_cast<void*>(begin), end - begin, MADV_DONTNEED);
#endif
    }

    tiffin::aligned_buffer own_;
    void* data_;
    std::mutex mutex_;
    std::map<key, held_ffn> held_;
};

}  // namespace tiffin_in_ggml
