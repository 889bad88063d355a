// The engines of a block of blocks, of kinds known at compile time or not.
#pragma once

#include <tiffin/config.hpp>

#include <tuple>
#include <vector>

TIFFIN_BEGIN

namespace fused_detail {

// Calls visit(engine) for each of a tuple's or a vector's engines.
template <class... Engines, class Visit>
void for_engines(const std::tuple<Engines...>& engines, const Visit& visit) {
    std::apply([&](const auto&... one) { (visit(one), ...); }, engines);
}
template <class Engine, class Visit>
void for_engines(const std::vector<Engine>& engines, const Visit& visit) {
    for (const Engine& one : engines) visit(one);
}

}  // namespace fused_detail

TIFFIN_END
