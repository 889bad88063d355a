// A chain: parts computed one after the other, each for whole token rows.
#pragma once

#include <tiffin/cpu/stage.hpp>

#include <algorithm>
#include <cstddef>
#include <memory>
#include <vector>

TIFFIN_BEGIN

namespace cpu_detail {

// The output rows of a part are the input of the next; those of the last part go to the caller's sink.
template <class Machine>
class chain {
    using arena = detail::arena<64>;
    using buffer = typename Machine::buffer;

public:
    using activations = typename Machine::activations;

    chain(const plan_node& node, const bound_node& bound, const source_sizes& sizes, const preparation& how) {
        std::size_t inputs = sizes.inputs;
        for (std::size_t i = 0; i < node.parts.size(); ++i) {
            const std::size_t width = bound.parts[i].width;
            stages_.push_back(std::make_unique<const stage<Machine>>(
                node.parts[i], bound.parts[i], source_sizes{width, inputs, sizes.d_model}, how));
            widths_.push_back(width);
            inputs = width;
        }
    }
    [[nodiscard]] std::size_t workspace_bytes(std::size_t tokens, std::size_t workers) const noexcept {
        arena areas;
        std::size_t most = 0;
        for (std::size_t i = 0; i < stages_.size(); ++i) {
            if (i + 1 < stages_.size()) buffer_after(i, areas, tokens);
            most = std::max(most, stages_[i]->workspace_bytes(tokens, workers));
        }
        return areas.used() + most;
    }
    void run(const call_arguments& call, activations in, std::byte* memory, const block_sink& to) const {
        arena areas(memory);
        for (std::size_t i = 0; i + 1 < stages_.size(); ++i) {
            const buffer rows = buffer_after(i, areas, call.tokens);
            stages_[i]->run(call, in, areas.rest(), buffer_sink<Machine>(rows));
            in = rows.view();
        }
        stages_.back()->run(call, in, areas.rest(), to);
    }

private:
    // Rows that part i writes and the next part reads; stored rounded to the format of the next part's products where
    // nothing else reads them.
    buffer buffer_after(std::size_t i, arena& areas, std::size_t tokens) const noexcept {
        buffer made{nullptr, tokens, widths_[i]};
        if constexpr (requires { made.rounded; })
            if (stages_[i]->ends_in() != nullptr && stages_[i + 1]->input_is_multiplied_only()) {
                made.how = Machine::rounding_between(*stages_[i]->ends_in(), *stages_[i + 1]->ends_in());
                if (made.how.round != nullptr) {
                    made.rounded = areas.template take<std::byte>(made.how.bytes(tokens, widths_[i]));
                    return made;
                }
            }
        made.data = areas.template take<float>(buffer::numbers(tokens, widths_[i]));
        return made;
    }

    std::vector<std::unique_ptr<const stage<Machine>>> stages_;
    std::vector<std::size_t> widths_;
};

}  // namespace cpu_detail

TIFFIN_END
