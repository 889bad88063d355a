// expect: tiffin: prepare_training: a source whose rows a backend computes by an engine of its own has no gradient
#include <tiffin/layers.hpp>
#include <tiffin/train/reference.hpp>

#if defined(TIFFIN_EXPECT_PASS)
using expert = tiffin::swiglu;
#else
// Nobody but a backend of its own could compute its rows.
struct expert : tiffin::swiglu {
    using source_role = tiffin::row_role;
    using tensors = tiffin::tensor_list<tiffin::computed>;
};
#endif

void learn(const tiffin::weights& given) {
    static_cast<void>(tiffin::try_prepare_training<tiffin::mixture<tiffin::softmax_topk, expert>>(
        given, tiffin::reference<>{}));
}
