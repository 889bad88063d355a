// The engine of every kind of block: what a prepared block is computed with, wherever that runs.
//
// A backend says where: `Target` is fused_detail::host<Machine>, or device<Format> of the CUDA backend. It has
//   call, areas           what an engine computes in one go, and what cuts the call's workspace
//   preparation           references to what engines are made with beside block and binding, a tuple
//   ffn<Block, After>     the engine of a block of two sources; After: what its output passes at the end
//   whole<Source>, modulator<Source, Fusion>, mixture<Router, Expert, Shared>
//                         the engines of a source that is all of a block, of what modulates a block's output,
//                         of a mixture
//   tokens(call)          at most so many are computed
//   takes_parts(rows)     whether values can be put there that are not complete yet
//   rows_in(memory, tokens, d_model)
//                         rows of f32 in the workspace for a call to write to
//   put_rows(call, rows, d_model)
//                         such rows to where the call writes
//   exchange_rows(call, rows, d_model)
//                         the same for those that an earlier call left; these take their place
#pragma once

#include <tiffin/block/block_shape.hpp>

#include <tuple>
#include <vector>

TIFFIN_BEGIN

namespace engine_detail {

template <class Target, class Block>
struct engine_choice;

template <class Target, class Block>
using engine_of = typename engine_choice<Target, Block>::type;

template <class Target, ffn_block Block>
struct engine_choice<Target, Block> {
    using type = typename Target::template ffn<Block>;
};

template <class Target, class Source>
struct engine_choice<Target, source_block<Source>> {
    using type = typename Target::template whole<Source>;
};

template <class Target, class Router, class Expert, class Shared>
struct engine_choice<Target, mixture<Router, Expert, Shared>> {
    using type = typename Target::template mixture<Router, Expert, Shared>;
};

// What there is of a shared block where there is none.
struct no_engine {};
template <class Target>
struct engine_choice<Target, none> {
    using type = no_engine;
};

// A block whose kind is known only at run time brings its engine.
template <class Target, class Block>
    requires requires {
        typename Block::template engine<Target>;
    }
struct engine_choice<Target, Block> {
    using type = typename Block::template engine<Target>;
};

// Calls visit(engine) for each of the engines of a block of blocks, of kinds known at compile time or not.
template <class... Engines, class Visit>
void for_engines(const std::tuple<Engines...>& engines, const Visit& visit) {
    std::apply([&](const auto&... one) { (visit(one), ...); }, engines);
}
template <class Engine, class Visit>
void for_engines(const std::vector<Engine>& engines, const Visit& visit) {
    for (const Engine& one : engines) visit(one);
}

}  // namespace engine_detail

TIFFIN_END
