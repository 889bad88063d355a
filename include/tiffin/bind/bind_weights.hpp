// From named tensors to the bound tensors of a block: the first step of prepare().
#pragma once

#include <tiffin/bind/binder.hpp>

#include <cstddef>
#include <utility>

TIFFIN_BEGIN

namespace detail {

// bind_weights() of a block that is already lowered.
result<binding> bind_plan(const plan_node& block, const weights& given, const preparation& how);

}  // namespace detail

// Binds given tensors to a block's. Errors: errc::missing_tensor, unused_tensor, duplicate_tensor,
// dtype, shape, value, option; `where` is the tensor's name.
template <block_policy Block>
result<binding> bind_weights(const Block& block, const weights& given, const preparation& how = {}) {
    return detail::bind_plan(lower(block), given, how);
}

TIFFIN_END
