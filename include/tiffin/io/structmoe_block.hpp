// The block structmoe of layer files, in each of its forms.
#pragma once

#include <tiffin/fusion/any_fusion.hpp>
#include <tiffin/io/layer_options.hpp>
#include <tiffin/layers.hpp>
#include <tiffin/router/any_router.hpp>
#include <tiffin/runtime/any_block.hpp>
#include <tiffin/tensor.hpp>

#include <array>
#include <cstddef>
#include <string_view>
#include <tuple>

TIFFIN_BEGIN
namespace io {
namespace detail {

// clang-format off
using file_bank        = routed_low_rank<any_router>;
using file_structmoe   = ffn<gate<any_activation, sum<dense, file_bank>>, none>;
using file_structmoe_down  = ffn<gate<any_activation>, none, multiply, project<no_norm, sum<dense, file_bank>>>;
using file_structmoe_fused = ffn<gate<any_activation, named<dense, "up_proj">>, file_bank, any_fusion>;
// clang-format on

template <class Backend>
result<any_block<Backend>> structmoe_block(layer_options& options, const weights&, const block_place& at) {
    enum class fusion_kind { additive, gated, post_activation } kind = fusion_kind::additive;
    static constexpr std::array<std::string_view, 3> names{{"additive", "gated", "post_activation"}};
    any_router router;
    any_activation phi{activation_kind::gelu};
    if (status s = options.read(at.keys + "fusion", names, kind); !s) return s.failure();
    if (status s = options.read(at.keys + "top_k", router.top_k); !s) return s.failure();
    if (status s = options.read(at.keys + "activation", phi); !s) return s.failure();
    enum class placement_kind { up, down } placement = placement_kind::up;
    static constexpr std::array<std::string_view, 2> placements{{"up", "down"}};
    if (status s = options.read(at.keys + "placement", placements, placement); !s) return s.failure();
    if (placement == placement_kind::down) {
        if (kind != fusion_kind::additive)
            return failure(errc::option, at.keys + "fusion", "is '", names[static_cast<std::size_t>(kind)],
                           "'; a bank at the down projection is added to its result (additive)");
        file_structmoe_down made;
        made.hidden.phi = phi;
        std::get<1>(made.output.terms).router = router;
        return any_block<Backend>(made);
    }
    if (kind == fusion_kind::additive) {
        file_structmoe made;
        made.hidden.phi = phi;
        std::get<1>(made.hidden.input.terms).router = router;
        return any_block<Backend>(made);
    }
    file_structmoe_fused made;
    made.hidden.gate.phi = phi;
    made.hidden.up.router = router;
    made.hidden.fusion.adds = kind == fusion_kind::post_activation;
    return any_block<Backend>(made);
}

}  // namespace detail
}  // namespace io
TIFFIN_END
