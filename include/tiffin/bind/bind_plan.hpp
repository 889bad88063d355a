// Binding: checks names, formats, shapes and routes of a composition's tensors, once.
#pragma once

#include <tiffin/bind/bind_weights.hpp>
#include <tiffin/bind/row_checks.hpp>
#include <tiffin/bind/tensor_checks.hpp>

#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

TIFFIN_BEGIN

namespace detail {

TIFFIN_INLINE status binder::bind(const plan_node& node, const bind_position& at, bound_node& to) {
    const node_kind& kind = *node.kind;
    to.width = at.width.number;
    std::vector<required_tensor> wanted;
    if (status s = bind_own(kind, at, wanted, to); !s) return s;
    to.recorded_first = kind.recorded_first;
    if (status s = bind_parts(node, at, to); !s) return s;
    if (kind.check != nullptr)
        if (const status s = kind.check(node.source); !s)
            return failure(s.failure().code, at.prefix + s.failure().where, s.failure().what);
    if (kind.router == router_kind::none) return {};
    return bind_routes(node, at, wanted, to);
}

TIFFIN_INLINE bind_position binder::outermost(bool own_width) {
    const size_id d_model = sizes_.fresh("d_model", "");
    const size_id width = own_width ? sizes_.fresh("outputs", "") : d_model;
    return {"", "", width, d_model, d_model, sizes_.fresh("vocab", "")};
}

TIFFIN_INLINE status binder::settle(bound_node& node) {
    for (const auto& [width, name] : given_widths_) {
        const std::size_t found = sizes_[width];
        if (found == 0)
            return failure(
                errc::shape, name,
                "has a width that cannot be inferred: no tensor of the block has an axis of this size");
        if (needs_.given_width != 0 && needs_.given_width != found)
            return failure(errc::shape, name, "is read with widths of ", needs_.given_width, " and ", found,
                           "; a call gives one");
        needs_.given_width = found;
    }
    if (status s = sizes_.check_agreed(); !s) return s;
    return settle_widths(node);
}

TIFFIN_INLINE status binder::check_all_used() const {
    for (std::size_t i = 0; i < used_.size(); ++i)
        if (const weights::entry& e = given_.entries()[i]; !used_[i])
            return failure(errc::unused_tensor, e.name, "the block has no tensor of this name (its shape is ",
                           to_string(e.tensor.shape), ")");
    return {};
}

TIFFIN_INLINE status binder::bind_own(const node_kind& kind, const bind_position& at,
                                      std::vector<required_tensor>& wanted, bound_node& to) {
    axis_sizes sizes{};
    if (kind.is_routed())
        sizes = sizes_.fresh_axes(kind.has(tensor_kind::chosen_rows) ? "rows" : "experts", at.prefix);
    sizes.of(axis::width) = at.width;
    sizes.of(axis::input) = at.input;
    sizes.of(axis::vocab) = at.vocab;
    status wrong;
    for (const node_tensor& own : kind.tensors) {
        required_tensor t{
            tensor_name(at.prefix, kind.owner(at.role), own.name), own.kind, own.needed, {}, own.rank};
        for (std::size_t i = 0; i < own.rank; ++i) t.axes[i] = sizes.of(own.axes[i]);
        if (own.kind == tensor_kind::given)
            given_widths_.emplace_back(at.width, at.prefix + "per_layer_input");
        if (reads_row(own.kind)) sizes_.agree(at.width, at.row_of(own.kind), at.prefix);
        tensor_view& bound = to.tensors.emplace_back();
        std::size_t& given = to.given.emplace_back(bound_node::not_given);
        if (wrong.ok() && is_stored(own.kind)) static_cast<void>(wrong = bind_tensor(t, bound, given));
        wanted.push_back(std::move(t));
    }
    return wrong;
}

TIFFIN_INLINE status binder::bind_tensor(const required_tensor& t, tensor_view& to, std::size_t& place) {
    const auto at = given_.places().find(t.name);
    if (at == given_.places().end()) {
        if (t.needed == presence::optional) return {};
        return failure(errc::missing_tensor, t.name, "missing; the block needs it with shape ",
                       sizes_.symbolic_shape(t));
    }
    place = at->second;
    if (used_[place])
        return failure(errc::duplicate_tensor, t.name, "is read by two parts of the block; name one anew");
    used_[place] = true;
    const tensor_view& given = given_.entries()[place].tensor;
    if (status s = check_dtype(t, given); !s) return s;
    if (status s = sizes_.unify(t, given); !s) return s;
    if (status s = check_format(t.kind, given, t.name, formats_); !s) return s;
    to = given;
    if (stays_in_place(t.kind, given, formats_)) needs_.in_place.push_back(t.name);
    const bool pool = t.kind == tensor_kind::pool;
    if (given.gathered != 0)
        needs_.gathered.push_back({t.name, given.gathered,
                                   pool ? given.shape[0] * given.shape[2] : given.shape[1], given.type,
                                   pool ? given.shape[1] : given.shape[0], 0, given.scales});
    else if (pool)
        needs_.tables.push_back({t.name, given.shape[1]});
    else if (t.kind == tensor_kind::table || is_map(t.kind))
        needs_.tables.push_back({t.name, given.shape[0]});
    return {};
}

TIFFIN_INLINE status binder::bind_parts(const plan_node& node, const bind_position& at, bound_node& to) {
    const node_kind& kind = *node.kind;
    const std::size_t delay_before = needs_.delay;
    const auto fresh = [this](std::string_view name, const bind_position& of) {
        return sizes_.fresh(name, of.prefix);
    };
    size_id input = at.input;
    for (std::size_t i = 0; i < node.parts.size(); ++i)
        if (status s = bind(node.parts[i], stand(kind, i, at, input, fresh), to.parts.emplace_back()); !s)
            return s;
    if (!kind.repeated_name.empty()) {
        const auto scope = [&](std::size_t i) {
            return extended(at.prefix, part_scope{kind.repeated_name, i});
        };
        const std::size_t count = repetitions(node, at);
        if (count == 0)
            return failure(errc::missing_tensor, scope(0), "missing; there is one part of this kind or more");
        for (std::size_t i = 0; i < count; ++i) {
            bind_position of = at;
            of.prefix = scope(i);
            of.vocab = sizes_.fresh("vocab", of.prefix);
            if (status s = bind(node.repeated_part(i), of, to.parts.emplace_back()); !s) return s;
        }
    }
    if (kind.reads_residual()) needs_.residual = true;
    if (kind.role == node_role::delay) {
        if (needs_.delay != 0)
            return failure(errc::option, at.prefix,
                           delay_before == 0 ? "is a delayed block with another inside"
                                             : "is a second delayed block; a call has one handle for one");
        needs_.delay = node.delay;
    }
    if (kind.role == node_role::mixture && needs_.delay != delay_before)
        return failure(errc::option, at.prefix + "experts",
                       "are delayed; an expert sees other tokens each call");
    return {};
}

TIFFIN_INLINE std::size_t binder::repetitions(const plan_node& node, const bind_position& at) const {
    if (node.repetitions != plan_node::as_given) return node.repetitions;
    return numbered_parts(given_, at.prefix + std::string(node.kind->repeated_name) + ".");
}

TIFFIN_INLINE status binder::bind_routes(const plan_node& node, const bind_position& at,
                                         std::span<const required_tensor> wanted, bound_node& to) {
    if (node.kind->router == router_kind::keys || node.kind->router == router_kind::ranges) {
        if (status s = check_rows(node, wanted, to.tensors, at.prefix); !s) return s;
        settle_choices(node, wanted, to, needs_);
        return {};
    }
    to.choices = route_choices(node, wanted, to.tensors);
    return check_routes(node, wanted, to.tensors, at.prefix, to.parts.size() - node.parts.size());
}

TIFFIN_INLINE status binder::settle_widths(bound_node& node) {
    if (status s = sizes_.known({node.width}); !s) return s;
    node.width = sizes_[{node.width}];
    for (bound_node& part : node.parts)
        if (status s = settle_widths(part); !s) return s;
    return {};
}

// The node whose routes a call records: the outermost one that routes, in the order in which parts are visited.
inline bound_node* recorded_node(bound_node& node) {
    if (node.choices != 0) return &node;
    for (std::size_t i = 0; i < node.parts.size(); ++i) {
        const std::size_t part = i == 0 ? node.recorded_first : i - (i <= node.recorded_first ? 1 : 0);
        if (bound_node* found = recorded_node(node.parts[part])) return found;
    }
    return nullptr;
}

TIFFIN_INLINE result<binding> bind_plan(const plan_node& block, const weights& given,
                                        const preparation& how) {
    if (const status s = check_kept(how.formats); !s) return s.failure();
    if (const status s = check_given(given); !s) return s.failure();
    binder from(given, how.formats);
    binding bound;
    const bind_position whole = from.outermost(block.kind->own_width);
    if (const status s = from.bind(block, whole, bound.tree); !s) return s.failure();
    if (const status s = from.settle(bound.tree); !s) return s.failure();
    if (const status s = from.check_all_used(); !s) return s.failure();
    bound.needs = std::move(from.needs());
    bound.needs.d_model = from.sizes()[whole.d_model];
    bound.needs.outputs = bound.tree.width;
    bound.needs.d_ff = from.sizes().first("d_ff") != 0 ? from.sizes().first("d_ff") : bound.tree.width;
    bound.how = how;
    if (bound_node* const recorded = recorded_node(bound.tree)) {
        recorded->recorded = true;
        bound.needs.choices = recorded->choices;
    }
    return bound;
}

}  // namespace detail

TIFFIN_END
