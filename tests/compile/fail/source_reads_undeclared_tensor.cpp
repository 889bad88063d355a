// expect: tiffin: at.tensor.: this source reads a tensor that it does not declare; add it to the source's
#include <tiffin/call/prepare.hpp>
#include <tiffin/layers.hpp>
#include <tiffin/reference/reference.hpp>

#include <string_view>

struct scaled_embedding {
    using rows = tiffin::table<"weight">;
    using scale = tiffin::vector<"scale">;
#ifdef TIFFIN_EXPECT_PASS
    using tensors = tiffin::tensor_list<rows, scale>;
#else
    using tensors = tiffin::tensor_list<rows>;
#endif
    static constexpr std::string_view name = "scaled_embed";
    auto operator()(const auto& at) const {
        return at[rows{}] * at[scale{}];
    }
};

using block = tiffin::ffn<tiffin::gate<tiffin::silu>, scaled_embedding>;

auto prepared(const tiffin::weights& given) {
    return tiffin::prepare<block>(given, tiffin::reference<>{});
}
