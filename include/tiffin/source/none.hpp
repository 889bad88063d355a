#pragma once

#include <tiffin/config.hpp>

TIFFIN_BEGIN

// The absent up source: `ffn<gate<gelu>, none>` has hidden = gelu(x W^T), and its single
// projection is called `up_proj`.
struct none {};

TIFFIN_END
