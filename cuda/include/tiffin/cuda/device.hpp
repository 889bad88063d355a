// Where the engines of the CUDA backend run.
#pragma once

#include <tiffin/backend/engine/combined.hpp>
#include <tiffin/backend/engine/modulated.hpp>
#include <tiffin/cuda/ffn_engine.hpp>
#include <tiffin/cuda/mixture_engine.hpp>
#include <tiffin/cuda/modulator_stage.hpp>
#include <tiffin/cuda/source_engine.hpp>

#include <concepts>
#include <cstddef>
#include <tuple>

TIFFIN_BEGIN

namespace cuda_detail {

// What an earlier call left is delivered, what this one sends takes its place.
template <codec Format>
struct exchanged_value {
    const float* sent;
    std::size_t width;
    matrix_view<float> carried;
    bool is_due;
    token_range tokens;

    template <std::size_t N>
    __device__ pack<N> at(std::size_t t, std::size_t feature, std::size_t count) const {
        float* const slot = carried.row(tokens.row(t)) + feature;
        const pack<N> taken = is_due ? load<f32, N>(slot, count) : pack<N>(0.0f);
        store<f32, N>(load<f32, N>(sent + t * width + feature, count), slot, count);
        return taken;
    }
};

// A target (see backend/engine/engine_of.hpp).
template <codec Format>
struct device {
    using format = Format;
    using call = device_call<Format>;
    using areas = device_arena;
    using preparation = std::tuple<uploads&>;

    template <class Block, class After = no_modulator>
    using ffn = ffn_engine<Format, Block, After>;
    template <class Source>
    using whole = source_engine<Format, Source>;
    template <class Modulator, class Fusion>
    using modulator = modulator_stage<Format, Modulator, Fusion>;
    template <class Router, class Expert, class Shared>
    using mixture = mixture_engine<device, Router, Expert, Shared>;

    static std::size_t tokens(const call& c) noexcept { return c.tokens.most; }
    static bool takes_parts(const device_rows<Format>& to) noexcept {
        return to.wide || std::same_as<Format, f32>;
    }
    static device_rows<Format> rows_in(float* memory, std::size_t /*tokens*/, std::size_t d_model) noexcept {
        return {memory, d_model, true};
    }
    static void put_rows(const call& c, const float* rows, std::size_t d_model) {
        write(c, row_value{rows, d_model}, d_model);
    }
    static void exchange_rows(const call& c, const float* rows, std::size_t d_model) {
        write(c, exchanged_value<Format>{rows, d_model, c.carried, c.carried_is_due, c.tokens}, d_model);
    }

private:
    template <class Value>
    static void write(const call& c, const Value& value, std::size_t d_model) {
        write_values<Format>(*c.out, value, c.tokens, d_model, finish<Format, no_modulator::view>{c.to, {}});
    }
};

}  // namespace cuda_detail

TIFFIN_END
