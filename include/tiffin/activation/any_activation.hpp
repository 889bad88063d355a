#pragma once

#include <tiffin/activation/gelu.hpp>
#include <tiffin/activation/gelu_tanh.hpp>
#include <tiffin/activation/identity.hpp>
#include <tiffin/activation/relu.hpp>
#include <tiffin/activation/relu_squared.hpp>
#include <tiffin/activation/sigmoid.hpp>
#include <tiffin/activation/silu.hpp>

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

TIFFIN_BEGIN

enum class activation_kind : std::uint8_t { silu, gelu, gelu_tanh, relu, sigmoid, identity, relu_squared };

inline constexpr std::array<std::string_view, 7> activation_names{
    {"silu", "gelu", "gelu_tanh", "relu", "sigmoid", "identity", "relu_squared"}};

constexpr std::optional<activation_kind> activation_named(std::string_view name) noexcept {
    for (std::size_t i = 0; i < activation_names.size(); ++i)
        if (activation_names[i] == name) return static_cast<activation_kind>(i);
    return std::nullopt;
}

// An activation chosen at run time, for layers whose kind is read from a file: phi_kind(z).
// Numerics: those of the chosen one, to the bit. Cost: a predictable branch a vector more.
struct any_activation {
    activation_kind kind = activation_kind::silu;

    template <class Use>
    TIFFIN_HD auto visit(const Use& use) const {
        switch (kind) {
            case activation_kind::gelu: return use(gelu{});
            case activation_kind::gelu_tanh: return use(gelu_tanh{});
            case activation_kind::relu: return use(relu{});
            case activation_kind::sigmoid: return use(sigmoid{});
            case activation_kind::identity: return use(identity{});
            case activation_kind::relu_squared: return use(relu_squared{});
            case activation_kind::silu: break;
        }
        return use(silu{});
    }
    [[nodiscard]] double flops() const noexcept {
        return visit([](const auto& phi) { return phi.flops(); });
    }
    template <class S>
    TIFFIN_HD S operator()(const S& z) const {
        return visit([&](const auto& phi) { return phi(z); });
    }
};

TIFFIN_END
