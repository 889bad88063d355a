// What the levels of several_levels have in common. No type of tiffin's crosses this border: each level has
// its own, named after its instruction set.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

struct stem_weights {
    std::size_t d_model, d_ff, vocab;
    const float *gate, *table, *down;
};

class stem_layer {
public:
    virtual ~stem_layer() = default;
    // x and y (tokens, d_model). False where an id is out of range; y is untouched then.
    virtual bool run(const float* x, const std::int32_t* token_ids, std::size_t tokens, float* y) const = 0;
};

// The same function once a level. A null pointer where the weights cannot be used.
std::unique_ptr<stem_layer> prepare_baseline(const stem_weights& given);
std::unique_ptr<stem_layer> prepare_avx2(const stem_weights& given);
std::unique_ptr<stem_layer> prepare_avx512(const stem_weights& given);
