// Weights and tables in the smaller formats.
#include "layer_subject.hpp"

#include <initializer_list>

namespace tiffin_bench {
namespace {

using tiffin::dtype;
using backend = tiffin::simd<tiffin::any_format, tiffin::any_format>;

struct named_format {
    const char* name;
    dtype type;
};

// Rounded to the format from f32.
template <class Block>
void add_rounded(const std::string& name, const shape& s) {
    for (const named_format& f : std::initializer_list<named_format>{{"bf16", dtype::bf16},
                                                                     {"f16", dtype::f16},
                                                                     {"q8_0", dtype::q8_0},
                                                                     {"q4_0", dtype::q4_0},
                                                                     {"q4_1", dtype::q4_1}})
        if (s.d_model % block_of(f.type) == 0 && s.d_ff % block_of(f.type) == 0)
            add_on(name + "/simd/" + f.name, backend{{f.type}, {f.type}}, s, Block{}, {});
}

// Given in a format that nothing can be rounded to, and kept in it.
template <class Block>
void add_kept(const std::string& name, const shape& s) {
    for (const named_format& f : std::initializer_list<named_format>{
             {"q5_0", dtype::q5_0}, {"q4_k", dtype::q4_k}, {"q5_k", dtype::q5_k}, {"q6_k", dtype::q6_k}})
        if (s.d_model % block_of(f.type) == 0 && s.d_ff % block_of(f.type) == 0)
            add_on(name + "/simd/" + f.name, backend{tiffin::kept_as_given, {dtype::f32}}, s, Block{}, {},
                   f.type);
}

}  // namespace

void add_layers_in_formats(const layer_choice& choice) {
    if (choice.wants("swiglu")) {
        add_rounded<tiffin::swiglu>("swiglu", choice.sizes);
        add_kept<tiffin::swiglu>("swiglu", choice.sizes);
    }
    if (choice.wants("stem")) add_rounded<tiffin::stem>("stem", choice.sizes);
}

}  // namespace tiffin_bench
