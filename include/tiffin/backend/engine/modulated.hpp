// A modulated block, wherever it runs.
#pragma once

#include <tiffin/backend/binding.hpp>
#include <tiffin/backend/engine/engine_of.hpp>

#include <algorithm>
#include <cstddef>

TIFFIN_BEGIN

namespace engine_detail {

// A modulated ffn: in its epilogue.
template <class Target, ffn_block Base, class Modulator, class Fusion>
class modulated_ffn_engine
    : public Target::template ffn<Base, typename Target::template modulator<Modulator, Fusion>> {
    using modulator_type = typename Target::template modulator<Modulator, Fusion>;

public:
    template <class... Preparation>
    modulated_ffn_engine(const modulated<Base, Modulator, Fusion>& block, const binding& bound,
                         Preparation&... how)
        : Target::template ffn<Base, modulator_type>(
              block.base, bound.parts[0], how...,
              modulator_type(block.modulator, block.fusion, bound, how...)) {}
};

// Any other block modulated: in one more pass.
template <class Target, block_policy Base, class Modulator, class Fusion>
class modulated_engine {
public:
    template <class... Preparation>
    modulated_engine(const modulated<Base, Modulator, Fusion>& block, const binding& bound,
                     Preparation&... how)
        : d_model_(bound.d_model),
          base_(block.base, bound.parts[0], how...),
          modulator_(block.modulator, block.fusion, bound, how...) {}

    [[nodiscard]] std::size_t workspace_bytes(std::size_t tokens, std::size_t workers) const noexcept {
        typename Target::areas areas;
        areas.template take<float>(tokens * d_model_);
        return areas.used() +
               std::max(base_.workspace_bytes(tokens, workers), modulator_.pass_bytes(tokens, workers));
    }
    void run(const typename Target::call& call) const {
        typename Target::areas areas(call.workspace);
        const std::size_t tokens = Target::tokens(call);
        // The base's: what is modulated must not be weighted or added yet.
        auto* const rows = areas.template take<float>(tokens * d_model_);
        typename Target::call inner = call;
        inner.workspace = areas.rest();
        inner.to = Target::rows_in(rows, tokens, d_model_);
        const bool outermost = modulator_.choices() > 0;
        if (outermost) inner.routes = nullptr;
        base_.run(inner);
        modulator_.pass(call, rows, areas.rest(), outermost ? call.routes : nullptr);
    }

private:
    std::size_t d_model_;
    engine_of<Target, Base> base_;
    typename Target::template modulator<Modulator, Fusion> modulator_;
};

template <class Target, class Base, class Modulator, class Fusion>
struct engine_choice<Target, modulated<Base, Modulator, Fusion>> {
    using type = modulated_engine<Target, Base, Modulator, Fusion>;
};
template <class Target, ffn_block Base, class Modulator, class Fusion>
struct engine_choice<Target, modulated<Base, Modulator, Fusion>> {
    using type = modulated_ffn_engine<Target, Base, Modulator, Fusion>;
};

}  // namespace engine_detail

TIFFIN_END
