// A modulated block on the device.
#pragma once

#include <tiffin/cuda/ffn_engine.hpp>

#include <cstddef>
#include <type_traits>
#include <utility>

TIFFIN_BEGIN

namespace cuda_detail {

// A modulated ffn: in its epilogue.
template <codec Format, ffn_block Base, class Modulator, class Fusion>
class modulated_ffn_engine : public ffn_engine<Format, Base, modulator_stage<Format, Modulator, Fusion>> {
public:
    modulated_ffn_engine(const modulated<Base, Modulator, Fusion>& block, const binding& bound, uploads& up)
        : ffn_engine<Format, Base, modulator_stage<Format, Modulator, Fusion>>(
              block.base, bound.parts[0], up, {block.modulator, block.fusion, bound, up}) {}
};

// Any other block modulated: in one more pass.
template <codec Format, block_policy Base, class Modulator, class Fusion>
class modulated_engine {
    using storage = typename Format::storage;

public:
    modulated_engine(const modulated<Base, Modulator, Fusion>& block, const binding& bound, uploads& up)
        : d_model_(bound.d_model),
          base_(block.base, bound.parts[0], up),
          modulator_(block.modulator, block.fusion, bound, up) {}

    [[nodiscard]] std::size_t workspace_bytes(std::size_t tokens, std::size_t workers) const noexcept {
        device_arena areas;
        lay_out(areas, tokens);
        return areas.used() + base_.workspace_bytes(tokens, workers);
    }
    void run(const device_call<Format>& call) const {
        device_arena areas(call.workspace);
        const memory_of_a_call at = lay_out(areas, call.tokens.most);
        device_call<Format> inner = call;
        inner.workspace = areas.rest();
        inner.to = {at.rows, d_model_, true};
        const bool outermost = modulator_.choices() > 0;
        if (outermost) inner.routes = nullptr;
        base_.run(inner);
        const auto after =
            modulator_.prepare(call, inputs_of(call, at.x), at.modulator, outermost ? call.routes : nullptr);
        write_values<Format>(*call.out, row_value{at.rows, d_model_}, call.tokens, d_model_,
                             finish<Format, std::remove_cvref_t<decltype(after)>>{call.to, after});
    }

private:
    struct memory_of_a_call {
        float* rows;  // the base's: what is modulated must not be added yet
        storage* x;
        std::byte* modulator;
    };
    memory_of_a_call lay_out(device_arena& areas, std::size_t tokens) const noexcept {
        auto* const rows = areas.take<float>(tokens * d_model_);
        auto* const x = areas.take<storage>(tokens * d_model_);
        return {rows, x, areas.take<std::byte>(modulator_.bytes(tokens))};
    }

    std::size_t d_model_;
    engine_of<Format, Base> base_;
    modulator_stage<Format, Modulator, Fusion> modulator_;
};

template <codec Format, class Base, class Modulator, class Fusion>
struct engine_choice<Format, modulated<Base, Modulator, Fusion>> {
    using type = modulated_engine<Format, Base, Modulator, Fusion>;
};
template <codec Format, ffn_block Base, class Modulator, class Fusion>
struct engine_choice<Format, modulated<Base, Modulator, Fusion>> {
    using type = modulated_ffn_engine<Format, Base, Modulator, Fusion>;
};

}  // namespace cuda_detail

TIFFIN_END
