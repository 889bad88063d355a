// The sizes that a block's tensors agree on: the first tensor with an axis sets it, the others are checked.
#pragma once

#include <tiffin/error.hpp>
#include <tiffin/grammar/parts.hpp>
#include <tiffin/tensor.hpp>

#include <array>
#include <cstddef>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

TIFFIN_BEGIN

namespace detail {

// The id of a size that may not be known yet; `any` matches every size.
struct size_id {
    static constexpr std::size_t any = ~std::size_t{0};
    std::size_t number = any;
};

// The size id of each axis of one source's tensors.
struct axis_sizes {
    std::array<size_id, static_cast<std::size_t>(axis::bounds) + 1> by_axis{};

    [[nodiscard]] size_id& of(axis a) noexcept { return by_axis[static_cast<std::size_t>(a)]; }
};

// A tensor that a block needs: its name, and a size id per axis.
struct required_tensor {
    std::string name;
    tensor_kind kind;
    presence needed;
    std::array<size_id, 3> axes{};
    std::size_t rank = 0;
};

class dimension_solver {
public:
    size_id fresh(std::string_view name, const std::string& prefix) {
        all_.push_back({name, prefix, 0, {}});
        return {all_.size() - 1};
    }
    // Sizes that belong to one source alone; `experts`: the name of that size.
    axis_sizes fresh_axes(std::string_view experts, const std::string& prefix) {
        axis_sizes to;
        to.of(axis::experts) = fresh(experts, prefix);
        to.of(axis::rank) = fresh("rank", prefix);
        to.of(axis::queries) = fresh("queries", prefix);
        to.of(axis::groups) = fresh("groups", prefix);
        to.of(axis::keys) = fresh("keys", prefix);
        to.of(axis::half) = fresh("half", prefix);
        to.of(axis::bounds) = fresh("2", prefix);
        return to;
    }
    [[nodiscard]] std::size_t operator[](size_id id) const noexcept { return all_[id.number].size; }
    // The name of the size in an error.
    [[nodiscard]] std::string_view name(size_id id) const noexcept {
        return id.number == size_id::any ? "choices" : all_[id.number].name;
    }
    // The first size of this name; 0 if there is none.
    [[nodiscard]] std::size_t first(std::string_view name) const noexcept {
        for (const dimension& t : all_)
            if (t.name == name) return t.size;
        return 0;
    }
    [[nodiscard]] std::string symbolic_shape(const required_tensor& t) const {
        std::string text = "(";
        for (std::size_t i = 0; i < t.rank; ++i) text.append(i ? ", " : "").append(name(t.axes[i]));
        return text + ")";
    }
    // Checks the shape of a given tensor against the known sizes, and sets those that are not known yet.
    status unify(const required_tensor& t, const tensor_view& given) {
        const std::string has = "has shape " + to_string(given.shape);
        if (t.kind == tensor_kind::scalar) {
            if (given.shape.rank() <= 1 && given.shape.elements() == 1) return {};
            return failure(errc::shape, t.name, has, "; it must be one number, () or (1)");
        }
        const bool flat_map = t.kind == tensor_kind::route_map && given.shape.rank() == 1;
        if (given.shape.rank() != t.rank && !flat_map)
            return failure(errc::shape, t.name, has, "; it must have ", t.rank, " axes, ", symbolic_shape(t));
        for (std::size_t i = 0; i < given.shape.rank(); ++i) {
            const std::size_t size = given.shape[i];
            if (size == 0) return failure(errc::shape, t.name, has, "; no axis may be 0");
            if (t.axes[i].number == size_id::any) continue;
            dimension& known = all_[t.axes[i].number];
            if (known.size == 0) std::tie(known.size, known.found_in) = std::pair(size, t.name);
            if (known.size != size)
                return failure(errc::shape, t.name, has, "; its axis ", i, " must be ", known.name, " = ",
                               known.size, ", as in ", known.found_in);
        }
        return {};
    }
    // Requires that a source that yields a row unchanged has the width of that row.
    void agree(size_id width, size_id of, const std::string& prefix) {
        agreed_.push_back({width, of, prefix});
    }
    [[nodiscard]] status check_agreed() const {
        for (const agreement& one : agreed_)
            if (const std::size_t width = (*this)[one.width], of = (*this)[one.of]; width != 0 && of != width)
                return failure(errc::shape, one.prefix + std::string(name(one.width)), "is ", width,
                               " where a row of ", of, " is read as it is");
        return {};
    }
    // An error if no tensor determines this size.
    [[nodiscard]] status known(size_id id) const {
        const dimension& t = all_[id.number];
        if (t.size != 0) return {};
        return failure(errc::shape, t.prefix + std::string(t.name),
                       "cannot be inferred: no tensor of the block has an axis of this size");
    }

private:
    struct dimension {
        std::string_view name;
        std::string prefix;
        std::size_t size;
        std::string found_in;
    };
    struct agreement {
        size_id width, of;
        std::string prefix;
    };
    std::vector<dimension> all_;
    std::vector<agreement> agreed_;
};

}  // namespace detail

TIFFIN_END
