#pragma once

#include <tiffin/source/routed_embedding.hpp>

TIFFIN_BEGIN

// A router by itself: z = x; the routes that a call records are the router's choices.
// Shapes: x, z (T, width), the router's tensors. Numerics: those of a layer with this router.
// Errors: those of the router that can be found without a table. Cost: the router's, and a copy of x.
// Source: MoRT Sec. 3.3.2, which routes before it fetches; docs/tables.md#pools-whose-rows-are-chosen.
template <router_policy Router>
using routes_of = routed_embedding<Router, input_row>;

TIFFIN_END
