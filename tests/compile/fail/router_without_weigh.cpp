// expect: tiffin: a router that reads logits has top_k, score\(values, n\) and weigh\(logits, weights, n\)
#include <tiffin/layers.hpp>

struct router_of_mine {
    using tensors = tiffin::softmax_topk::tensors;
    std::size_t top_k = 1;
    template <class S>
    static void score(S*, std::size_t) {}
#ifdef TIFFIN_EXPECT_PASS
    template <class S>
    static void weigh(const S*, S*, std::size_t) {}
#else
    template <class S>
    static void weigh(S*, std::size_t) {}
#endif
};

using block = tiffin::ffn<tiffin::gate<tiffin::silu, tiffin::routed_low_rank<router_of_mine>>>;
static_assert(sizeof(block) > 0);
