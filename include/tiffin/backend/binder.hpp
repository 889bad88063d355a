// A block's tensors once they are bound, and what finds them among those given.
#pragma once

#include <tiffin/backend/format_checks.hpp>
#include <tiffin/backend/tensor_checks.hpp>
#include <tiffin/block/block_shape.hpp>
#include <tiffin/error.hpp>
#include <tiffin/tensor.hpp>

#include <concepts>
#include <cstddef>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

TIFFIN_BEGIN

// What a call's token ids are held against.
struct table_size {
    std::string name;
    std::size_t vocab;
};

// A table of which calls bring the rows; a pool's row is that of all its experts.
struct gathered_table {
    std::string name;
    std::size_t number;  // from 1 on, as added
    std::size_t width;
    dtype type;
};

// A block's tensors and the sizes they agree on. Of a block of two sources: the tensors of
// tensors_of<Block>() in their order; of a block of blocks: those it has itself, and its parts. A tensor
// that was not given, or is not stored, has null data.
struct binding {
    std::vector<tensor_view> tensors;
    std::vector<binding> parts;
    std::vector<table_size> tables;        // of this block and its parts
    std::vector<gathered_table> gathered;  // likewise
    std::vector<std::string> in_place;     // likewise: tensors that the layer goes on reading where they lie
    number_formats formats;
    std::size_t d_model = 0;
    std::size_t d_ff = 0;         // of the first block of two sources
    std::size_t given_width = 0;  // of the per-layer input; 0 where none is read
    bool reads_residual = false;
    std::size_t delay = 0;    // layers that a delayed block inside carries over; 0: there is none
    std::size_t choices = 0;  // experts a token of the outermost part that routes; 0: nothing routes
};

// The tensors of a block's hidden source, of its output source, and the weight of its norm.
template <ffn_block B>
std::span<const tensor_view> hidden_part(const binding& bound) {
    return std::span(bound.tensors).subspan(0, hidden_tensors<B>);
}
template <ffn_block B>
std::span<const tensor_view> output_part(const binding& bound) {
    return std::span(bound.tensors).subspan(hidden_tensors<B>, output_tensors<B>);
}
template <ffn_block B>
tensor_view norm_part(const binding& bound) {
    return norm_tensors<B> ? bound.tensors.back() : tensor_view{};
}

// The experts that a source picks for a token, once its tensors are bound. 0: it routes nothing.
template <source_policy S>
std::size_t bound_choices(const S& source, std::span<const tensor_view> tensors) {
    std::size_t choices = 0;
    visit_nodes<chains::entered>(source, [&]<std::size_t First>(const auto& node) {
        if constexpr (routed_source<std::remove_cvref_t<decltype(node)>>) {
            if (choices == 0)
                choices = detail::route_choices(
                    node.router,
                    tensors.subspan(First, own_tensors_of<std::remove_cvref_t<decltype(node)>>::size));
        }
    });
    return choices;
}

namespace detail {

// The width of what calls give beside x, once all tensors of a block are bound.
inline status tell_given_width(std::span<const block_tensor> wanted, const extents_seen& extents,
                               const std::string& prefix, binding& to) {
    for (const block_tensor& t : wanted) {
        if (t.spec.kind != tensor_kind::given) continue;
        const std::size_t width = extents.size(t.extents[0]);
        if (width == 0)
            return failure{
                errc::shape, prefix + "per_layer_input",
                "has a width that cannot be told: no tensor of the block has an axis of this size"};
        if (to.given_width != 0 && to.given_width != width)
            return failure{errc::shape, prefix + "per_layer_input",
                           "is read with widths of " + std::to_string(to.given_width) + " and " +
                               std::to_string(width) + "; a call gives one"};
        to.given_width = width;
    }
    return {};
}

}  // namespace detail

// Given tensors, and which of them a block has found a use for.
class binder {
public:
    explicit binder(const weights& given, const number_formats& formats = {})
        : given_(given), formats_(formats), used_(given.entries().size(), false) {}

    // Binds the tensors of one source. `all` knows the sizes seen before in the same block.
    template <source_policy S>
    status bind_source(const S& source, std::span<const block_tensor> wanted, const std::string& prefix,
                       detail::extents_seen& all, binding& to) {
        const std::size_t first = to.tensors.size();
        if (status s = bind_tensors(wanted, prefix, all, to); !s) return s;
        const std::span<const tensor_view> tensors = std::span(to.tensors).subspan(first);
        status wrong;
        visit_nodes<chains::entered>(source, [&]<std::size_t First>(const auto& node) {
            using node_type = std::remove_cvref_t<decltype(node)>;
            if constexpr (requires {
                              { node.check() } -> std::same_as<status>;
                          }) {
                if (status s = node.check(); wrong.ok() && !s)
                    static_cast<void>(
                        wrong = failure{s.failure().code, prefix + s.failure().where, s.failure().what});
            }
            if constexpr (routed_source<node_type>) {
                constexpr std::size_t count = own_tensors_of<node_type>::size;
                if (wrong.ok())
                    static_cast<void>(wrong = detail::check_routes(node.router, wanted.subspan(First, count),
                                                                   tensors.subspan(First, count), prefix,
                                                                   expert_count(prefix)));
            }
        });
        if (to.choices == 0) to.choices = bound_choices(source, tensors);
        return wrong;
    }

    status bind_tensors(std::span<const block_tensor> wanted, const std::string& prefix,
                        detail::extents_seen& all, binding& to) {
        to.formats = formats_;
        for (const block_tensor& t : wanted) {
            to.tensors.emplace_back();
            if (!is_stored(t.spec.kind)) continue;
            const std::string name = prefix + full_name(t.spec);
            const tensor_view* const tensor = take(name);
            if (tensor == nullptr) {
                if (t.spec.needed == presence::optional) continue;
                return failure{errc::missing_tensor, name,
                               "missing; the block needs it with shape " + detail::symbolic_shape(t)};
            }
            if (status s = detail::check_dtype(t, *tensor, name); !s) return s;
            if (status s = all.unify(t, *tensor, name); !s) return s;
            if (status s = detail::check_format(t.spec.kind, *tensor, name, formats_); !s) return s;
            to.tensors.back() = *tensor;
            if (detail::stays_in_place(t.spec.kind, *tensor, formats_)) to.in_place.push_back(name);
            const bool pool = t.spec.kind == tensor_kind::pool;
            if (tensor->gathered != 0)
                to.gathered.push_back({name, tensor->gathered,
                                       pool ? tensor->shape[0] * tensor->shape[2] : tensor->shape[1],
                                       tensor->type});
            else if (pool)
                to.tables.push_back({name, tensor->shape[1]});
            else if (t.spec.kind == tensor_kind::table || t.spec.kind == tensor_kind::route_map)
                to.tables.push_back({name, tensor->shape[0]});
        }
        return {};
    }

    // How many blocks are given under "<prefix>experts.<e>.": one more than the largest e.
    [[nodiscard]] std::size_t expert_count(const std::string& prefix) const {
        return detail::numbered_parts(given_, prefix + "experts.");
    }

    // An error where a tensor was given that nothing has taken.
    [[nodiscard]] status check_all_used() const {
        for (std::size_t i = 0; i < used_.size(); ++i) {
            const weights::entry& e = given_.entries()[i];
            if (!used_[i])
                return failure{
                    errc::unused_tensor, e.name,
                    "the block has no tensor of this name (its shape is " + to_string(e.tensor.shape) + ")"};
        }
        return {};
    }

private:
    const tensor_view* take(const std::string& name) {
        const auto at = given_.places().find(name);
        if (at == given_.places().end()) return nullptr;
        used_[at->second] = true;
        return &given_.entries()[at->second].tensor;
    }

    const weights& given_;
    number_formats formats_;
    std::vector<bool> used_;
};

TIFFIN_END
