// The kinds of tensor a source may read, and how a formula names them.
#pragma once

#include <tiffin/config.hpp>
#include <tiffin/fixed_string.hpp>

#include <array>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <type_traits>

TIFFIN_BEGIN

// How a backend reads a tensor, and so what `at[tensor]` means in a formula.
enum class tensor_kind : std::uint8_t { projection, table, vector };

// The size of one axis. `width` and `input` are the features a source yields and reads; a block
// says which of its own widths they are (see block_tensors.hpp). `vocab` is free for each table.
enum class axis : std::uint8_t { width, input, vocab };

enum class presence : std::uint8_t { required, optional };

// A dense weight W (width, input): `at[w]` is sum_k x[k] W[feature][k], where x is what the source
// reads. Cost: 2 input FLOPs an element.
template <fixed_string Name>
struct projection {
    static constexpr std::string_view name = Name.view();
    static constexpr tensor_kind kind = tensor_kind::projection;
    static constexpr presence needed = presence::required;
    static constexpr std::array axes{axis::width, axis::input};
};

// A token-indexed table U (vocab, width): `at[u]` is U[token id][feature]. Cost: one row a token.
template <fixed_string Name>
struct table {
    static constexpr std::string_view name = Name.view();
    static constexpr tensor_kind kind = tensor_kind::table;
    static constexpr presence needed = presence::required;
    static constexpr std::array axes{axis::vocab, axis::width};
};

// One number a feature, v (width): `at[v]` is v[feature]; 0 where it is optional and not given.
template <fixed_string Name, presence Needed = presence::required>
struct vector {
    static constexpr std::string_view name = Name.view();
    static constexpr tensor_kind kind = tensor_kind::vector;
    static constexpr presence needed = Needed;
    static constexpr std::array axes{axis::width};
};

template <class T>
concept tensor_declaration = requires {
    { T::name } -> std::convertible_to<std::string_view>;
    { T::kind } -> std::convertible_to<tensor_kind>;
    { T::needed } -> std::convertible_to<presence>;
    T::axes.size();
};

// The tensors of one source, in an order of its choice.
template <tensor_declaration... Tensors>
struct tensor_list {
    static constexpr std::size_t size = sizeof...(Tensors);

    template <class T>
    static constexpr bool contains = (std::same_as<T, Tensors> || ...);

    // The place of T. Precondition: contains<T>.
    template <class T>
    static constexpr std::size_t index_of() noexcept {
        std::size_t i = 0;
        static_cast<void>(((std::same_as<T, Tensors> || (++i, false)) || ...));
        return i;
    }
};

// What a block knows of one tensor before any weights are given: the tensor is called
// "<owner>.<leaf>", or "<leaf>" where the owner is empty.
struct tensor_spec {
    std::string_view owner;
    std::string_view leaf;
    tensor_kind kind = tensor_kind::projection;
    presence needed = presence::required;
    std::array<axis, 2> axes{};
    std::size_t rank = 0;

    [[nodiscard]] constexpr bool same_name(const tensor_spec& other) const noexcept {
        return owner == other.owner && leaf == other.leaf;
    }
};

TIFFIN_END
