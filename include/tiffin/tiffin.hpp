// tiffin: token-indexed and sparse feed-forward layers. The umbrella: includes only.
//
// Not here, because they bring a dependency along: executor/openmp.hpp (OpenMP), io/ (JSON), and
// tiffin/cuda.hpp (CUDA).
#pragma once

#include <tiffin/activation/any_activation.hpp>
#include <tiffin/activation/gelu.hpp>
#include <tiffin/activation/gelu_tanh.hpp>
#include <tiffin/activation/identity.hpp>
#include <tiffin/activation/relu.hpp>
#include <tiffin/activation/sigmoid.hpp>
#include <tiffin/activation/silu.hpp>
#include <tiffin/analysis/cost.hpp>
#include <tiffin/backend/eigen/eigen.hpp>
#include <tiffin/backend/reference/reference.hpp>
#include <tiffin/backend/simd/simd.hpp>
#include <tiffin/block/ffn.hpp>
#include <tiffin/concepts.hpp>
#include <tiffin/error.hpp>
#include <tiffin/executor/executor.hpp>
#include <tiffin/format/f32.hpp>
#include <tiffin/fusion/add.hpp>
#include <tiffin/fusion/multiply.hpp>
#include <tiffin/layers.hpp>
#include <tiffin/norm/l2.hpp>
#include <tiffin/norm/no_norm.hpp>
#include <tiffin/norm/rms.hpp>
#include <tiffin/norm/rms_cast_first.hpp>
#include <tiffin/norm/rms_one_plus.hpp>
#include <tiffin/output/project.hpp>
#include <tiffin/prepare.hpp>
#include <tiffin/source/dense.hpp>
#include <tiffin/source/gate.hpp>
#include <tiffin/source/named.hpp>
#include <tiffin/source/none.hpp>
#include <tiffin/source/sum.hpp>
#include <tiffin/source/token_embedding.hpp>
#include <tiffin/tensor.hpp>
#include <tiffin/view.hpp>
