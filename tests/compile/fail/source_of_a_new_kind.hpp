// A source with a tensor of a kind that nobody has told the library of; mended, of one that it knows.
#pragma once

#include <tiffin/grammar/concepts.hpp>
#include <tiffin/grammar/tensor_kinds.hpp>

#include <string_view>

struct own_vector : tiffin::vector<"own"> {
#ifndef TIFFIN_EXPECT_PASS
    static constexpr auto kind = static_cast<tiffin::tensor_kind>(200);
#endif
};
struct own_source {
    using tensors = tiffin::tensor_list<own_vector>;
    static constexpr std::string_view name = "";
    static constexpr double flops() noexcept { return 0; }

    template <class Place>
    TIFFIN_HD auto operator()(const Place& at) const {
        return at[own_vector{}];
    }
};
