// The portable backend: products by Eigen, formulas as plain loops.
#pragma once

#include <tiffin/cpu/eigen/machine.hpp>
#include <tiffin/cpu/engine.hpp>

TIFFIN_BEGIN

// Readable and portable: every machine that Eigen knows.
// Numerics: f32; the order of a product's additions is Eigen's and differs with the number of
//   tokens, so the bitwise promise of `simd` does not hold here.
// Cost: products go through a (T, d_ff) buffer each; weights in f32 are read in place.
// Linking: Eigen's own functions carry no mark of the instruction set. In a program whose translation
//   units are compiled for different ones, use this backend in one of them only.
struct eigen {
    using machine = eigen_detail::machine;
    static constexpr number_formats formats() noexcept {
        return {{}, {}, {}, false, in_place::dense_and_tables};
    }
    template <block_policy Block>
    using engine = cpu_detail::engine<machine, Block>;
};

TIFFIN_END
