// The portable backend: products by Eigen, formulas as plain loops.
#pragma once

#include <tiffin/cpu/eigen/machine.hpp>
#include <tiffin/cpu/engine.hpp>
#include <tiffin/plan/policies.hpp>

#include <vector>

TIFFIN_BEGIN

// Readable and portable: runs wherever Eigen does.
// Numerics: f32; table rows of any format are widened exactly. The order of a product's additions is Eigen's and
//   differs with the number of tokens, so the bitwise guarantee of `simd` does not hold.
// Cost: products go through a (T, d_ff) buffer each; weights in f32, and tables, are read in place.
// Linking: the symbols of Eigen's functions do not encode the instruction set. In a program whose translation units
//   are compiled for different ones, use this backend in one of them only.
struct eigen {
    using machine = eigen_detail::machine;
    static constexpr number_formats formats() noexcept {
        number_formats all;
        all.tables.of = [](dtype given) { return with_table_format(table_kept_as(given), describe_rows); };
        all.reads = in_place::dense_and_tables;
        return all;
    }
    template <block_policy Block>
    using engine = cpu_detail::engine<machine, Block>;

private:
    static constexpr auto describe_rows = [](auto format) {
        constexpr dtype type = decltype(format)::type;
        number_format made = describe(format);
        if constexpr (type != dtype::f32)
            made.rows.decode = [](const std::byte* row, std::size_t first, std::size_t count,
                                  float* to) noexcept { read_as_f32(row, type, first, count, to); };
        return made;
    };
};

TIFFIN_END

// With the compiled library its engine is linked, not instantiated.
#if defined(TIFFIN_COMPILED_ENGINES)
TIFFIN_BEGIN
namespace cpu_detail {
TIFFIN_ENGINE_OF_(TIFFIN_COMPILED_OTHER_ENGINE_, eigen_detail::machine)
}  // namespace cpu_detail
namespace plan_detail {
TIFFIN_COMPILED_OTHER_ENGINE_ template void add_library_policies<eigen_detail::machine>(
    std::vector<policy_line>&);
}  // namespace plan_detail
TIFFIN_END
#endif
