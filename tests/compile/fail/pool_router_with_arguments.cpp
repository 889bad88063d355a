// expect: tiffin: modulator_pool<Norm, Router>: the router cannot be made without arguments
#include <tiffin/layers.hpp>

struct told : tiffin::sigmoid_topk_renorm {
#ifdef TIFFIN_EXPECT_PASS
    explicit told(std::size_t k = 2) {
        top_k = k;
    }
#else
    explicit told(std::size_t k) {
        top_k = k;
    }
#endif
};

const tiffin::modulator_pool<tiffin::l2, told> pool{};
