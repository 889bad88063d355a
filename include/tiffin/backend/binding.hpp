// From named tensors to a block's tensors: names, formats and shapes are checked here, once.
#pragma once

#include <tiffin/backend/binder.hpp>
#include <tiffin/block/block_shape.hpp>
#include <tiffin/error.hpp>

#include <cstddef>
#include <span>
#include <string>
#include <tuple>
#include <utility>

TIFFIN_BEGIN

// Binds a block whose tensors are called after `prefix`. `outer` is the d_model around it, if known.
template <block_policy Block>
result<binding> bind_block(const Block& block, binder& from, const std::string& prefix,
                           const detail::size_seen& outer);

namespace detail {

// Adds what a part of a block brings to the whole.
inline status adopt(binding part, binding& to, const std::string& prefix, const size_seen& outer) {
    if (outer.size != 0 && part.d_model != outer.size)
        return failure{errc::shape, prefix,
                       "has d_model = " + std::to_string(part.d_model) + "; it must be " +
                           std::to_string(outer.size) + ", as in " + outer.told_by};
    if (to.d_model == 0) to.d_model = part.d_model;
    if (to.d_ff == 0) to.d_ff = part.d_ff;
    if (part.given_width != 0 && to.given_width != 0 && part.given_width != to.given_width)
        return failure{errc::shape, prefix,
                       "reads a per_layer_input of width " + std::to_string(part.given_width) +
                           ", the parts before it one of " + std::to_string(to.given_width) +
                           "; a call gives one"};
    if (part.given_width != 0) to.given_width = part.given_width;
    to.reads_residual = to.reads_residual || part.reads_residual;
    if (to.delay != 0 && part.delay != 0)
        return failure{errc::option, prefix, "is a second delayed block; a call has one handle for one"};
    if (part.delay != 0) to.delay = part.delay;
    to.tables.insert(to.tables.end(), part.tables.begin(), part.tables.end());
    to.gathered.insert(to.gathered.end(), part.gathered.begin(), part.gathered.end());
    to.in_place.insert(to.in_place.end(), part.in_place.begin(), part.in_place.end());
    to.parts.push_back(std::move(part));
    return {};
}

template <ffn_block Block>
result<binding> bind_ffn(const Block& block, binder& from, const std::string& prefix,
                         const size_seen& outer) {
    static constexpr auto wanted = tensors_of<Block>();
    constexpr std::size_t h = hidden_tensors<Block>, o = output_tensors<Block>;
    const std::span<const block_tensor> all(wanted);
    binding bound;
    extents_seen extents;
    extents.expect(extent::d_model, outer);
    if (status s = from.bind_source(block.hidden, all.subspan(0, h), prefix, extents, bound); !s)
        return s.failure();
    if (status s = from.bind_source(block.output.source, all.subspan(h, o), prefix, extents, bound); !s)
        return s.failure();
    if (status s = from.bind_tensors(all.subspan(h + o), prefix, extents, bound); !s) return s.failure();
    bound.d_model = extents.size(extent::d_model);
    bound.d_ff = extents.size(extent::d_ff);
    for (const auto& [size, name] : {std::pair(bound.d_model, "d_model"), std::pair(bound.d_ff, "d_ff")})
        if (size == 0)
            return failure{errc::shape, prefix + name,
                           "cannot be told: no tensor of the block has an axis of this size"};
    if (status s = tell_given_width(all, extents, prefix, bound); !s) return s.failure();
    return bound;
}

template <class Base, class Modulator, class Fusion>
result<binding> bind_combined(const modulated<Base, Modulator, Fusion>& block, binder& from,
                              const std::string& prefix, const size_seen& outer) {
    static constexpr auto wanted = in_block(specs_of<Modulator>(""), extent::d_model, extent::d_model);
    auto base = bind_block(block.base, from, prefix + "base.", outer);
    if (!base) return base;
    binding bound;
    const size_seen told{base->d_model, prefix + "base"};
    const std::size_t base_choices = base->choices;
    if (status s = adopt(*std::move(base), bound, prefix + "base", {}); !s) return s.failure();
    extents_seen extents;
    extents.expect(extent::d_model, told);
    if (status s = from.bind_source(block.modulator, wanted, prefix, extents, bound); !s) return s.failure();
    if (bound.choices == 0) bound.choices = base_choices;
    if (status s = tell_given_width(wanted, extents, prefix, bound); !s) return s.failure();
    return bound;
}

template <class Router, class Expert, class Shared>
result<binding> bind_combined(const mixture<Router, Expert, Shared>& block, binder& from,
                              const std::string& prefix, const size_seen& outer) {
    using route = route_of<Router>;
    static constexpr auto wanted = in_block(specs_of<route>(""), extent::d_ff, extent::d_model);
    binding bound;
    extents_seen extents;
    extents.expect(extent::d_model, outer);
    const std::size_t experts = from.expert_count(prefix);
    if (experts == 0)
        return failure{errc::missing_tensor, prefix + "experts.0.",
                       "missing; a mixture has one expert or more"};
    if (status s = from.bind_source(route{block.router}, wanted, prefix, extents, bound); !s)
        return s.failure();
    size_seen told = outer;
    if (extents.size(extent::d_model) != 0) told = {extents.size(extent::d_model), prefix + "router.weight"};
    const auto bind_part = [&](const auto& part, const std::string& name) -> status {
        auto one = bind_block(part, from, name, told);
        if (!one) return one.failure();
        if (told.size == 0) told = {one->d_model, name.substr(0, name.size() - 1)};
        return adopt(*std::move(one), bound, name, told);
    };
    for (std::size_t e = 0; e < experts; ++e)
        if (status s = bind_part(block.expert, prefix + "experts." + std::to_string(e) + "."); !s)
            return s.failure();
    if constexpr (mixture<Router, Expert, Shared>::has_shared)
        if (status s = bind_part(block.shared, prefix + "shared."); !s) return s.failure();
    if (bound.delay != 0)
        return failure{errc::option, prefix + "experts",
                       "are delayed; an expert sees other tokens each call"};
    return bound;
}

// Branch i of a block of branches; `told` is what the branches before it say of d_model.
template <block_policy Block>
status bind_branch(const Block& block, std::size_t i, binder& from, const std::string& prefix,
                   size_seen& told, binding& bound) {
    const std::string name = prefix + "branch." + std::to_string(i);
    auto one = bind_block(block, from, name + ".", told);
    if (!one) return one.failure();
    if (told.size == 0) told = {one->d_model, name};
    if (bound.choices == 0) bound.choices = one->choices;
    return adopt(*std::move(one), bound, name, told);
}

template <class... Blocks>
result<binding> bind_combined(const parallel<Blocks...>& block, binder& from, const std::string& prefix,
                              const size_seen& outer) {
    binding bound;
    size_seen told = outer;
    status wrong;
    std::size_t i = 0;
    const auto bind_next = [&](const auto& branch) {
        if (wrong.ok()) static_cast<void>(wrong = bind_branch(branch, i++, from, prefix, told, bound));
    };
    std::apply([&](const auto&... branch) { (bind_next(branch), ...); }, block.branches);
    if (!wrong) return wrong.failure();
    return bound;
}

template <class Block>
result<binding> bind_combined(const on_residual<Block>& block, binder& from, const std::string& prefix,
                              const size_seen& outer) {
    auto one = bind_block(block.block, from, prefix, outer);
    if (!one) return one;
    binding bound;
    bound.choices = one->choices;
    if (status s = adopt(*std::move(one), bound, prefix, {}); !s) return s.failure();
    bound.reads_residual = true;
    return bound;
}

template <class Block, std::size_t Layers>
result<binding> bind_combined(const delayed<Block, Layers>& block, binder& from, const std::string& prefix,
                              const size_seen& outer) {
    auto one = bind_block(block.block, from, prefix, outer);
    if (!one) return one;
    binding bound;
    bound.choices = one->choices;
    if (one->delay != 0) return failure{errc::option, prefix, "is a delayed block inside another"};
    if (status s = adopt(*std::move(one), bound, prefix, {}); !s) return s.failure();
    bound.delay = Layers;
    return bound;
}

template <class Source>
result<binding> bind_combined(const source_block<Source>& block, binder& from, const std::string& prefix,
                              const size_seen& outer) {
    static constexpr auto wanted = in_block(specs_of<Source>(""), extent::d_model, extent::d_model);
    binding bound;
    extents_seen extents;
    extents.expect(extent::d_model, outer);
    if (status s = from.bind_source(block.source, wanted, prefix, extents, bound); !s) return s.failure();
    bound.d_model = bound.d_ff = extents.size(extent::d_model);
    if (bound.d_model == 0)
        return failure{errc::shape, prefix + "d_model",
                       "cannot be told: no tensor of the block has an axis of this size"};
    if (status s = tell_given_width(wanted, extents, prefix, bound); !s) return s.failure();
    return bound;
}

}  // namespace detail

template <block_policy Block>
result<binding> bind_block(const Block& block, binder& from, const std::string& prefix,
                           const detail::size_seen& outer) {
    if constexpr (ffn_block<Block>)
        return detail::bind_ffn(block, from, prefix, outer);
    else if constexpr (requires { block.bind(from, prefix, outer); })
        return block.bind(from, prefix, outer);  // a block that knows its kind only at run time
    else
        return detail::bind_combined(block, from, prefix, outer);
}

// Binds given tensors to a block's. Errors: errc::missing_tensor, unused_tensor, duplicate_tensor,
// dtype, shape, option; `where` is the tensor's name.
template <block_policy Block>
result<binding> bind_weights(const Block& block, const weights& given, const number_formats& formats = {}) {
    if (const status s = detail::check_given(given); !s) return s.failure();
    binder from(given, formats);
    auto bound = bind_block(block, from, "", {});
    if (!bound) return bound;
    if (const status s = from.check_all_used(); !s) return s.failure();
    return bound;
}

TIFFIN_END
