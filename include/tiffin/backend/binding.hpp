// From named tensors to a block's tensors: names, formats and shapes are checked here, once.
#pragma once

#include <tiffin/block/block_tensors.hpp>
#include <tiffin/error.hpp>
#include <tiffin/tensor.hpp>

#include <array>
#include <cstddef>
#include <span>
#include <string>
#include <vector>

TIFFIN_BEGIN

// A block's tensors in the order of tensors_of<Block>(), and the sizes they agree on. An optional
// tensor that was not given has null data.
struct binding {
    std::vector<tensor_view> tensors;
    std::size_t d_model = 0;
    std::size_t d_ff = 0;
};

// The tensors of a block's hidden source, of its output source, and the weight of its norm.
template <block_policy B>
std::span<const tensor_view> hidden_part(const binding& bound) {
    return std::span(bound.tensors).subspan(0, hidden_tensors<B>);
}
template <block_policy B>
std::span<const tensor_view> output_part(const binding& bound) {
    return std::span(bound.tensors).subspan(hidden_tensors<B>, output_tensors<B>);
}
template <block_policy B>
tensor_view norm_part(const binding& bound) {
    return norm_tensors<B> ? bound.tensors.back() : tensor_view{};
}

inline std::string full_name(const tensor_spec& spec) {
    std::string name{spec.owner};
    if (!name.empty()) name += '.';
    return name.append(spec.leaf);
}

namespace detail {

inline std::string symbolic_shape(const block_tensor& t) {
    std::string text = "(";
    for (std::size_t i = 0; i < t.spec.rank; ++i) text.append(i ? ", " : "").append(name_of(t.extents[i]));
    return text + ")";
}

// The sizes known so far and the tensor that told each.
class extents_seen {
public:
    status unify(const block_tensor& t, const tensor_view& given, const std::string& name) {
        const std::string has = "has shape " + to_string(given.shape);
        if (given.shape.rank() != t.spec.rank)
            return failure{
                errc::shape, name,
                has + "; it must have " + std::to_string(t.spec.rank) + " axes, " + symbolic_shape(t)};
        for (std::size_t i = 0; i < t.spec.rank; ++i) {
            const std::size_t size = given.shape[i];
            if (size == 0) return failure{errc::shape, name, has + "; no axis may be 0"};
            if (t.extents[i] == extent::vocab) continue;
            seen& s = sizes_[static_cast<std::size_t>(t.extents[i])];
            if (s.size == 0) s = {size, name};
            if (s.size != size)
                return failure{errc::shape, name,
                               has + "; its axis " + std::to_string(i) + " must be " +
                                   std::string(name_of(t.extents[i])) + " = " + std::to_string(s.size) +
                                   ", as in " + s.told_by};
        }
        return {};
    }
    [[nodiscard]] std::size_t size(extent e) const noexcept {
        return sizes_[static_cast<std::size_t>(e)].size;
    }

private:
    struct seen {
        std::size_t size = 0;
        std::string told_by;
    };
    std::array<seen, 3> sizes_{};
};

inline status check_given(const weights& given) {
    const auto& entries = given.entries();
    for (std::size_t i = 0; i < entries.size(); ++i) {
        const auto& [name, tensor] = entries[i];
        for (std::size_t j = 0; j < i; ++j)
            if (entries[j].name == name)
                return failure{errc::duplicate_tensor, name,
                               "given twice, as tensors " + std::to_string(j) + " and " + std::to_string(i)};
        if (tensor.data == nullptr && tensor.shape.elements() != 0)
            return failure{errc::missing_tensor, name,
                           "given with a null pointer and shape " + to_string(tensor.shape)};
        if (tensor.type != dtype::f32 && tensor.type != dtype::f16 && tensor.type != dtype::bf16)
            return failure{errc::dtype, name,
                           "has dtype " + std::string(name_of(tensor.type)) +
                               "; a layer's tensors are F32, F16 or BF16"};
    }
    return {};
}

}  // namespace detail

// Binds given tensors to a block's. Errors: errc::missing_tensor, unused_tensor, duplicate_tensor,
// dtype, shape; `where` is the tensor's name.
inline result<binding> bind_tensors(std::span<const block_tensor> wanted, const weights& given) {
    if (const status s = detail::check_given(given); !s) return s.failure();
    binding bound;
    detail::extents_seen extents;
    std::size_t used = 0;
    for (const block_tensor& t : wanted) {
        const std::string name = full_name(t.spec);
        const tensor_view* tensor = given.find(name);
        bound.tensors.push_back(tensor ? *tensor : tensor_view{});
        if (!tensor) {
            if (t.spec.needed == presence::optional) continue;
            return failure{errc::missing_tensor, name,
                           "missing; the block needs it with shape " + detail::symbolic_shape(t)};
        }
        ++used;
        if (const status s = extents.unify(t, *tensor, name); !s) return s.failure();
    }
    if (used != given.entries().size()) {
        for (const weights::entry& e : given.entries()) {
            bool known = false;
            for (const block_tensor& t : wanted) known = known || full_name(t.spec) == e.name;
            if (!known)
                return failure{
                    errc::unused_tensor, e.name,
                    "the block has no tensor of this name (its shape is " + to_string(e.tensor.shape) + ")"};
        }
    }
    bound.d_model = extents.size(extent::d_model);
    bound.d_ff = extents.size(extent::d_ff);
    for (const extent e : {extent::d_model, extent::d_ff})
        if (extents.size(e) == 0)
            return failure{errc::shape, std::string(name_of(e)),
                           "cannot be told: no tensor of the block has an axis of this size"};
    return bound;
}

TIFFIN_END
