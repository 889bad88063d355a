// SwiGLU, STEM and their kin.
#include <tiffin/layers.hpp>

#include "ffn_kinds.hpp"

namespace {

// A block with one width and one table.
template <class Block>
ffn_kind plain(const char* name, const char* in_file) {
    return kind_of(
        name, [](const ffn_sizes&) { return Block{}; },
        [](const ffn_sizes& s, const auto& use) {
            use(tiffin::block_shape{.d_model = s.d_model, .d_ff = s.d_ff, .vocab = s.vocabulary});
        },
        [in_file](const ffn_sizes&) {
            return file_options{{"block", in_file}};
        });
}

}  // namespace

std::vector<ffn_kind> dense_kinds() {
    using namespace tiffin;
    return {plain<mlp>("mlp", "mlp"), plain<swiglu>("swiglu", "glu"), plain<stem>("stem", "stem"),
            plain<stem_gate>("stem_gate", "stem_gate"), plain<stem_hybrid>("stem_hybrid", "stem_hybrid")};
}
