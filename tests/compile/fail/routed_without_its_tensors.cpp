// expect: tiffin: a source of routed_role does not declare the tensors of its router
#include <tiffin/layers.hpp>

struct rows_by_a_router {
    using source_role = tiffin::routed_role;
    using rows = tiffin::pool<"rows.weight">;
#ifdef TIFFIN_EXPECT_PASS
    using tensors = tiffin::joined_tensors<tiffin::tensor_list<rows>, tiffin::sigmoid_topk_renorm::tensors>;
#else
    using tensors = tiffin::tensor_list<rows>;
#endif
    tiffin::sigmoid_topk_renorm router{};
    auto operator()(const auto& at) const {
        return at[rows{}];
    }
};

using block = tiffin::ffn<tiffin::gate<tiffin::silu>, rows_by_a_router>;
static_assert(sizeof(block) > 0);
