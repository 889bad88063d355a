// Blocks on a machine: engine_of<Machine, Block> for every kind of block.
#pragma once

#include <tiffin/backend/fused/combined.hpp>
#include <tiffin/backend/fused/ffn_engine.hpp>
#include <tiffin/backend/fused/mixture_engine.hpp>
#include <tiffin/backend/fused/modulated_engine.hpp>
