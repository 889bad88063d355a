// expect: tiffin: a source declares tensors that a router chooses among .* and no role
#include <tiffin/layers.hpp>

struct rows_by_a_router {
    using rows = tiffin::pool<"rows.weight">;
    using tensors = tiffin::joined_tensors<tiffin::tensor_list<rows>, tiffin::sigmoid_topk_renorm::tensors>;
#ifdef TIFFIN_EXPECT_PASS
    using source_role = tiffin::routed_role;
#endif
    tiffin::sigmoid_topk_renorm router{};
    auto operator()(const auto& at) const {
        return at[rows{}];
    }
};

using block = tiffin::ffn<tiffin::gate<tiffin::silu>, rows_by_a_router>;
static_assert(sizeof(block) > 0);
