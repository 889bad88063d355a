#pragma once

#include <tiffin/norm/rms.hpp>
#include <tiffin/source/dense.hpp>
#include <tiffin/source/dot_gated.hpp>
#include <tiffin/source/named.hpp>
#include <tiffin/source/normed.hpp>
#include <tiffin/source/per_layer_input.hpp>
#include <tiffin/source/residual_input.hpp>
#include <tiffin/source/source_input.hpp>
#include <tiffin/source/through.hpp>

TIFFIN_BEGIN

// The parts of Engram: of the rows of a memory, `per_layer_input`, a key and a value; of x the query.
// Source: docs/layers.md#engram.
using engram_key = normed<rms, through<"", per_layer_input, named<dense, "key_proj">>, "key_norm">;
using engram_query = normed<rms, source_input, "query_norm">;
using engram_value = through<"", per_layer_input, named<dense, "value_proj">>;

// One branch of several: x its stream, `residual` the value that they share.
template <class Gate>
using gated_branch = dot_gated<Gate, engram_key, engram_query, residual_input>;

TIFFIN_END
