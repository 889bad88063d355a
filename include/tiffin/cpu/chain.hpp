// A chain: parts computed one after the other, each for whole token rows.
#pragma once

#include <tiffin/cpu/stage.hpp>

#include <algorithm>
#include <cstddef>
#include <memory>
#include <vector>

TIFFIN_BEGIN

namespace cpu_detail {

// Memory for activations: rounded to the format of the products `to` where these alone read them, else f32. `from`: the
// products that they are written after, part by part; null where whole rows are written.
template <class Machine>
typename Machine::buffer take_buffer(detail::arena<64>& areas, std::size_t tokens, std::size_t features,
                                     const typename Machine::products* from,
                                     const typename Machine::products* to) noexcept {
    typename Machine::buffer made{nullptr, tokens, features};
    if constexpr (requires { made.rounded; })
        if (to != nullptr) {
            made.how = Machine::rounding_between(from, *to);
            if (made.how.round != nullptr) {
                made.rounded = areas.template take<std::byte>(made.how.bytes(tokens, features));
                return made;
            }
        }
    made.data = areas.template take<float>(made.numbers(tokens, features));
    return made;
}

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
    // See stage.
    [[nodiscard]] const typename Machine::products* multiplies_input() const noexcept {
        return stages_.front()->multiplies_input();
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
    // Rows that part i writes and the next part reads.
    buffer buffer_after(std::size_t i, arena& areas, std::size_t tokens) const noexcept {
        const auto* const from = stages_[i]->ends_in();
        return take_buffer<Machine>(areas, tokens, widths_[i], from,
                                    from != nullptr ? stages_[i + 1]->multiplies_input() : nullptr);
    }

    std::vector<std::unique_ptr<const stage<Machine>>> stages_;
    std::vector<std::size_t> widths_;
};

}  // namespace cpu_detail

TIFFIN_END
