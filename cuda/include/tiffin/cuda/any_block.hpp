// Blocks whose kind is known only at run time, as in a layer file, on the device.
#pragma once

#include <tiffin/backend/any_block.hpp>
#include <tiffin/cuda/from_host.hpp>

TIFFIN_BEGIN

namespace detail {

template <class Format>
struct engines_of<cuda_from_host<Format>> {
    using call = cuda_detail::device_call<Format>;
    using preparation = cuda_detail::uploads;
    template <class Block>
    using engine = cuda_detail::engine_of<Format, Block>;
    template <class Engines>
    using branches = cuda_detail::branches_engine<Format, Engines>;

    template <class Block>
    static engine<Block> make(const Block& block, const binding& bound, preparation& up) {
        return engine<Block>(block, bound, up);
    }
};

}  // namespace detail

TIFFIN_END
