// The fused CPU kernel over xsimd registers.
#pragma once

#include <tiffin/cpu/host.hpp>
#include <tiffin/cpu/simd/backend.hpp>
#include <tiffin/cpu/simd/machine.hpp>
