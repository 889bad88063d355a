// The portable backend: products by Eigen, formulas as plain loops.
#pragma once

#include <tiffin/cpu/eigen/machine.hpp>
#include <tiffin/cpu/engine.hpp>

TIFFIN_BEGIN

// Readable and portable: runs wherever Eigen does.
// Numerics: f32; the order of a product's additions is Eigen's and differs with the number of
//   tokens, so the bitwise guarantee of `simd` does not hold.
// Cost: products go through a (T, d_ff) buffer each; weights in f32 are read in place.
// Linking: the symbols of Eigen's functions do not encode the instruction set. In a program whose translation units
//   are compiled for different ones, use this backend in one of them only.
struct eigen {
    using machine = eigen_detail::machine;
    static constexpr number_formats formats() noexcept {
        return {{}, {}, {}, false, in_place::dense_and_tables};
    }
    template <block_policy Block>
    using engine = cpu_detail::engine<machine, Block>;
};

TIFFIN_END
