// Policies whose options have no default, with one: for tests that name a composition by its type.
#pragma once

#include <tiffin/block/modulated.hpp>
#include <tiffin/fusion/add.hpp>
#include <tiffin/modulator/modulator_pool.hpp>

namespace tiffin_test {

// MoRT's pool in a network of three layers.
template <class Norm = tiffin::l2, class Router = tiffin::sigmoid_topk_renorm>
struct pool_of_three : tiffin::modulator_pool<Norm, Router> {
    constexpr pool_of_three() { this->num_layers = 3; }
};

template <class Block>
using mort_of_three = tiffin::modulated<Block, pool_of_three<>, tiffin::add>;

}  // namespace tiffin_test
