// expect: tiffin: prepare_training: a formula takes a plain number .float. and nothing else, so it has no derivative
#include <tiffin/layers.hpp>
#include <tiffin/train/reference.hpp>

struct squared {
    static constexpr double flops() noexcept { return 1; }
#ifdef TIFFIN_EXPECT_PASS
    template <class S>
    S operator()(const S& z) const {
        return z * z;
    }
#else
    float operator()(float z) const {
        return z * z;
    }
#endif
};

void learn(const tiffin::weights& given) {
    static_cast<void>(tiffin::try_prepare_training<tiffin::ffn<tiffin::gate<squared>, tiffin::dense>>(
        given, tiffin::reference<>{}));
}
