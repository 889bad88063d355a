// Finds a block's tensors among those given: names, formats, shapes and routes are checked here, once.
#pragma once

#include <tiffin/bind/bound.hpp>
#include <tiffin/bind/format_checks.hpp>
#include <tiffin/bind/row_checks.hpp>
#include <tiffin/bind/sizes.hpp>
#include <tiffin/bind/tensor_checks.hpp>
#include <tiffin/grammar/parts.hpp>

#include <concepts>
#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

TIFFIN_BEGIN

namespace detail {

// Where a source stands while its tensors are bound.
using bind_place = standing<std::string, size_id>;

// One walk over a tree of sources: each takes its own tensors, then its parts do.
class binder {
public:
    explicit binder(const weights& given, const number_formats& formats = {})
        : given_(given), formats_(formats), used_(given.entries().size(), false) {}

    // Binds what stands at `at`. Widths are numbers of sizes until settle().
    template <source_policy S>
    status bind(const S& source, const bind_place& at, bound_node& to) {
        check_role<S, own_tensors_of<S>>();
        to.width = at.width.number;
        if constexpr (has_role<S, runtime_role>) {
            return bind_runtime(source, at, to);
        } else {
            std::vector<wanted_tensor> wanted;
            if (status s = bind_own<S>(at, wanted, to); !s) return s;
            if constexpr (requires { S::recorded_first; }) to.recorded_first = S::recorded_first;
            if (status s = bind_parts(source, at, to); !s) return s;
            if constexpr (requires {
                              { source.check() } -> std::same_as<status>;
                          })
                if (const status s = source.check(); !s)
                    return failure(s.failure().code, at.prefix + s.failure().where, s.failure().what);
            if constexpr (routing_source<S>) return bind_routes(source, at, wanted, to);
            return {};
        }
    }
    // The place of a whole block.
    template <class Block = void>
    [[nodiscard]] bind_place outermost() {
        const size_id d_model = sizes_.fresh("d_model", "");
        const size_id width = own_width_block<Block> ? sizes_.fresh("outputs", "") : d_model;
        return {"", "", width, d_model, d_model, sizes_.fresh("vocab", "")};
    }
    [[nodiscard]] sizes_told& sizes() noexcept { return sizes_; }
    [[nodiscard]] call_needs& needs() noexcept { return needs_; }
    // Puts sizes where their numbers were, once all tensors are bound.
    status settle(bound_node& node) {
        for (const auto& [width, name] : given_widths_) {
            const std::size_t told = sizes_[width];
            if (told == 0)
                return failure(
                    errc::shape, name,
                    "has a width that cannot be told: no tensor of the block has an axis of this size");
            if (needs_.given_width != 0 && needs_.given_width != told)
                return failure(errc::shape, name, "is read with widths of ", needs_.given_width, " and ",
                               told, "; a call gives one");
            needs_.given_width = told;
        }
        if (status s = sizes_.check_agreed(); !s) return s;
        return settle_widths(node);
    }
    // An error where a tensor was given that nothing has taken.
    [[nodiscard]] status check_all_used() const {
        for (std::size_t i = 0; i < used_.size(); ++i)
            if (const weights::entry& e = given_.entries()[i]; !used_[i])
                return failure(errc::unused_tensor, e.name,
                               "the block has no tensor of this name (its shape is ",
                               to_string(e.tensor.shape), ")");
        return {};
    }

private:
    auto fresh() {
        return [this](std::string_view name, const bind_place& at) { return sizes_.fresh(name, at.prefix); };
    }

    template <class S>
    status bind_own(const bind_place& at, std::vector<wanted_tensor>& wanted, bound_node& to) {
        using own = own_tensors_of<S>;
        axis_sizes sizes{};
        if constexpr (any_routed(own{}))
            sizes =
                sizes_.fresh_axes(has_kind(own{}, tensor_kind::chosen_rows) ? "rows" : "experts", at.prefix);
        sizes.of(axis::width) = at.width;
        sizes.of(axis::input) = at.input;
        sizes.of(axis::vocab) = at.vocab;
        status wrong;
        [&]<class... Tensors>(tensor_list<Tensors...>) {
            [[maybe_unused]] const auto one = [&]<class Tensor>(std::type_identity<Tensor>) {
                wanted_tensor t{at.prefix, Tensor::kind, Tensor::needed, {}, Tensor::axes.size()};
                for (const std::string_view part : {owner_name<S>(at.role), Tensor::name})
                    if (!part.empty())
                        t.name.append(t.name.size() > at.prefix.size() ? "." : "").append(part);
                for (std::size_t i = 0; i != Tensor::axes.size(); ++i) t.axes[i] = sizes.of(Tensor::axes[i]);
                if (Tensor::kind == tensor_kind::given)
                    given_widths_.emplace_back(at.width, at.prefix + "per_layer_input");
                if (Tensor::kind == tensor_kind::residual_row) needs_.residual = true;
                if (reads_row(Tensor::kind)) sizes_.agree(at.width, at.row_of(Tensor::kind), at.prefix);
                tensor_view& bound = to.tensors.emplace_back();
                std::size_t& given = to.given.emplace_back(bound_node::not_given);
                if (wrong.ok() && is_stored(Tensor::kind))
                    static_cast<void>(wrong = bind_tensor(t, bound, given));
                wanted.push_back(std::move(t));
            };
            (one(std::type_identity<Tensors>{}), ...);
        }(own{});
        return wrong;
    }

    status bind_tensor(const wanted_tensor& t, tensor_view& to, std::size_t& place) {
        const auto at = given_.places().find(t.name);
        if (at == given_.places().end()) {
            if (t.needed == presence::optional) return {};
            return failure(errc::missing_tensor, t.name, "missing; the block needs it with shape ",
                           sizes_.symbolic_shape(t));
        }
        place = at->second;
        if (used_[place])
            return failure(errc::duplicate_tensor, t.name,
                           "is read by two parts of the block; name one anew");
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
                                       pool ? given.shape[1] : given.shape[0]});
        else if (pool)
            needs_.tables.push_back({t.name, given.shape[1]});
        else if (t.kind == tensor_kind::table || is_map(t.kind))
            needs_.tables.push_back({t.name, given.shape[0]});
        return {};
    }

    template <class S>
    status bind_parts(const S& source, const bind_place& at, bound_node& to) {
        if constexpr (composite_source<S>) {
            const std::size_t delay_before = needs_.delay;
            status wrong;
            const auto bind_part = [&](const auto& part, const bind_place& of) {
                if (wrong.ok()) static_cast<void>(wrong = bind(part, of, to.parts.emplace_back()));
            };
            for_parts(source, at, fresh(), bind_part);
            if constexpr (repeating_source<S>) {
                const std::size_t count = repetitions(source, at);
                if (wrong.ok() && count == 0)
                    return failure(errc::missing_tensor, extended(at.prefix, S::repeated_scope(0)),
                                   "missing; there is one part of this kind or more");
                for (std::size_t i = 0; i < count && wrong.ok(); ++i) {
                    bind_place of = at;
                    of.prefix = extended(at.prefix, S::repeated_scope(i));
                    of.vocab = sizes_.fresh("vocab", of.prefix);
                    bind_part(source.repeated(i), of);
                }
            }
            if (!wrong) return wrong;
            if constexpr (has_role<S, residual_role>) needs_.residual = true;
            if constexpr (has_role<S, delay_role>) {
                if (needs_.delay != 0)
                    return failure(errc::option, at.prefix,
                                   delay_before == 0
                                       ? "is a delayed block with another inside"
                                       : "is a second delayed block; a call has one handle for one");
                needs_.delay = S::layers;
            }
            if constexpr (has_role<S, mixture_role>)
                if (needs_.delay != delay_before)
                    return failure(errc::option, at.prefix + "experts",
                                   "are delayed; an expert sees other tokens each call");
        }
        return {};
    }
    // The parts that there are at run time: as many as the source says, else one more than the largest number
    // among the tensors' names.
    template <class S>
    std::size_t repetitions(const S& source, const bind_place& at) const {
        if constexpr (requires { source.repetitions(); })
            return source.repetitions();
        else
            return numbered_parts(given_, at.prefix + std::string(S::repeated_scope(0).name) + ".");
    }

    template <class S>
    status bind_routes(const S& source, const bind_place& at, std::span<const wanted_tensor> wanted,
                       bound_node& to) {
        if constexpr (row_router<router_of<S>>) {
            if (status s = check_rows(source.router, wanted, to.tensors, at.prefix); !s) return s;
            settle_choices(source.router, wanted, to, needs_);
            return {};
        } else {
            const std::size_t experts = to.parts.size() - part_count_of<S>();
            to.choices = route_choices(source.router, wanted, to.tensors);
            return check_routes(source.router, wanted, to.tensors, at.prefix, experts);
        }
    }
    template <class S>
    static constexpr std::size_t part_count_of() noexcept {
        if constexpr (composite_source<S>)
            return part_count<S>;
        else
            return 0;
    }
    template <class S>
    status bind_runtime(const S& source, const bind_place& at, bound_node& to) {
        to.tensors.emplace_back();  // its row
        to.given.push_back(bound_node::not_given);
        return source.bind(*this, at, to.parts.emplace_back());
    }

    status settle_widths(bound_node& node) {
        if (status s = sizes_.known({node.width}); !s) return s;
        node.width = sizes_[{node.width}];
        for (bound_node& part : node.parts)
            if (status s = settle_widths(part); !s) return s;
        return {};
    }

    const weights& given_;
    number_formats formats_;
    std::vector<bool> used_;
    sizes_told sizes_;
    std::vector<std::pair<size_id, std::string>> given_widths_;
    call_needs needs_;
};

}  // namespace detail

TIFFIN_END
