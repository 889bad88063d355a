// expect: tiffin: a source of routed_role has a list of tensors, a formula over them, and a member `router`
#include <tiffin/layers.hpp>

struct rows_by_a_router {
    using source_role = tiffin::routed_role;
    using rows = tiffin::pool<"rows.weight">;
    using tensors = tiffin::joined_tensors<tiffin::tensor_list<rows>, tiffin::sigmoid_topk_renorm::tensors>;
#ifdef TIFFIN_EXPECT_PASS
    tiffin::sigmoid_topk_renorm router{};
#else
    int router = 0;
#endif
    auto operator()(const auto& at) const {
        return at[rows{}];
    }
};

using block = tiffin::ffn<tiffin::gate<tiffin::silu>, rows_by_a_router>;
static_assert(sizeof(block) > 0);
