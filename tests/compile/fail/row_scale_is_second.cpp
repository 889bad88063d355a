// expect: tiffin: a source of row_norm_role declares the tensors `row_scale`, first of all
#include <tiffin/layers.hpp>

struct norm_of_mine {
    using source_role = tiffin::row_norm_role;
    using weight = tiffin::vector<"weight">;
#ifdef TIFFIN_EXPECT_PASS
    using tensors = tiffin::tensor_list<tiffin::row_scale, tiffin::computed, weight>;
#else
    using tensors = tiffin::tensor_list<weight, tiffin::row_scale, tiffin::computed>;
#endif
    tiffin::rms norm{};
    tiffin::token_embedding row{};
    std::tuple<const tiffin::token_embedding&> parts() const {
        return {row};
    }
    static constexpr double flops() {
        return 4;
    }
    auto operator()(const auto& at, const auto& v) const {
        return norm(v, at[tiffin::row_scale{}], at[weight{}]);
    }
};

using block = tiffin::ffn<tiffin::gate<tiffin::silu>, norm_of_mine>;
static_assert(sizeof(block) > 0);
