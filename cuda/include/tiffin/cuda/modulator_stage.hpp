// What becomes of a block's output on the device: modulated or not, put where it belongs.
#pragma once

#include <tiffin/backend/binding.hpp>
#include <tiffin/cuda/stage.hpp>

#include <cstddef>

TIFFIN_BEGIN

namespace cuda_detail {

// The epilogue of a block that nothing modulates.
struct no_modulator {
    struct view {
        template <std::size_t N>
        __device__ const pack<N>& apply(const pack<N>& v, std::size_t, std::size_t, std::size_t) const {
            return v;
        }
    };
    static constexpr std::size_t choices() noexcept { return 0; }
    static constexpr std::size_t workspace_bytes(std::size_t) noexcept { return 0; }
    template <class Call, class Activations>
    static view prepare(const Call&, const Activations&, std::byte*, choice<float>*) noexcept {
        return {};
    }
};

// Complete values to where they belong.
template <codec Format, class After>
struct finish {
    device_rows<Format> to;
    After after;

    template <std::size_t N>
    __device__ void operator()(std::size_t t, std::size_t feature, const pack<N>& v,
                               std::size_t count) const {
        to.put(t, feature, pack<N>(after.apply(v, t, feature, count)), count);
    }
};

// Values that lie in rows already.
struct row_value {
    const float* rows;
    std::size_t width;

    template <std::size_t N>
    __device__ pack<N> at(std::size_t t, std::size_t feature, std::size_t count) const {
        return load<f32, N>(rows + t * width + feature, count);
    }
};

// y = fusion(y, modulator). A modulator that multiplies x is computed for whole rows first.
template <codec Format, source_policy Modulator, fusion_policy Fusion>
class modulator_stage {
    using storage = typename Format::storage;
    using stage_type = stage<Format, Modulator>;
    static constexpr bool multiplies = stage_type::projections > 0;

public:
    struct view {
        stage_view<Format, Modulator> stage;
        Fusion fusion;
        const float* rows;

        template <std::size_t N>
        __device__ pack<N> apply(const pack<N>& v, std::size_t t, std::size_t feature,
                                 std::size_t count) const {
            pack<N> m;
            if constexpr (multiplies)
                m = load<f32, N>(rows + t * stage.outputs + feature, count);
            else
                m = evaluate(stage.source, place<Format, Modulator, N>{stage, t, feature, count, nullptr});
            return cuda_detail::apply<N>(fusion, v, m);
        }
    };

    modulator_stage(const Modulator& modulator, const Fusion& fusion, const binding& bound, uploads& up)
        : stage_(modulator, bound.tensors, {bound.d_model, bound.d_model}, up),
          fusion_(fusion),
          d_model_(bound.d_model) {}

    [[nodiscard]] std::size_t choices() const noexcept { return stage_.choices(); }
    [[nodiscard]] std::size_t workspace_bytes(std::size_t tokens) const noexcept {
        device_arena areas;
        lay_out(areas, tokens);
        return areas.used() + stage_.workspace_bytes(tokens);
    }
    view prepare(const device_call<Format>& call, const activations<Format>& in, std::byte* memory,
                 choice<float>* routes) const {
        device_arena areas(memory);
        float* const rows = lay_out(areas, call.tokens.most);
        const stage_view<Format, Modulator> made = stage_.prepare(call, in, areas.rest(), routes);
        if constexpr (multiplies) {
            const row_write<f32> write{rows, d_model_};
            if (is_few(call.tokens))
                stage_.run_few(call, in, made, write);
            else
                write_values<Format>(*call.out, stage_.multiply(call, in, areas.rest(), made), call.tokens,
                                     d_model_, write);
        }
        return {made, fusion_, rows};
    }

    // The modulator's own pass over rows of a block: y = fusion(rows, modulator).
    [[nodiscard]] std::size_t pass_bytes(std::size_t tokens, std::size_t /*workers*/) const noexcept {
        device_arena areas;
        areas.take<storage>(tokens * d_model_);
        return areas.used() + workspace_bytes(tokens);
    }
    void pass(const device_call<Format>& call, const float* rows, std::byte* memory,
              choice<float>* routes) const {
        device_arena areas(memory);
        auto* const x = areas.take<storage>(call.tokens.most * d_model_);
        const view made = prepare(call, inputs_of(call, x), areas.rest(), routes);
        write_values<Format>(*call.out, row_value{rows, d_model_}, call.tokens, d_model_,
                             finish<Format, view>{call.to, made});
    }

private:
    float* lay_out(device_arena& areas, std::size_t tokens) const noexcept {
        return areas.take<float>(multiplies ? tokens * d_model_ : 0);
    }

    stage_type stage_;
    Fusion fusion_;
    std::size_t d_model_;
};

}  // namespace cuda_detail

TIFFIN_END
