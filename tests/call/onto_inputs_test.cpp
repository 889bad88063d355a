// y written over x or over the residual: the same bits as where they lie apart.
#include <tiffin/call/prepare.hpp>
#include <tiffin/cpu/eigen/eigen.hpp>
#include <tiffin/cpu/simd/simd.hpp>
#include <tiffin/executor/openmp.hpp>
#include <tiffin/layers.hpp>
#include <tiffin/reference/reference.hpp>

#include "support/doctest.hpp"
#include "support/policies.hpp"
#include "support/random.hpp"
#include "support/tensor_set.hpp"

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace call_onto_inputs_test {
using namespace tiffin;
using tiffin_test::random_ids;
using tiffin_test::random_rows;

namespace {

constexpr tiffin_test::sizes sizes{.d_model = 36, .d_ff = 70, .vocab = 11, .experts = 3, .rank = 2};
constexpr std::size_t d = sizes.d_model, most = 9;

template <class Block, class Backend>
void check(const Backend& backend) {
    const tiffin_test::tensor_set tensors(tiffin_test::tensors_wanted(Block{}), {sizes, {}, {}, ~0u, 29});
    const auto layer = prepare<Block>(tensors.given(), backend, {.tokens = 0});
    const std::vector<std::int32_t> all_ids = random_ids(most, sizes.vocab, 7);
    for (const std::size_t tokens : {std::size_t{1}, std::size_t{2}, most})
        for (const int threads : {1, 2}) {
            CAPTURE(tokens);
            CAPTURE(threads);
            const std::vector<float> x = random_rows(tokens, d, 1), residual = random_rows(tokens, d, 2);
            const std::span<const std::int32_t> ids = std::span(all_ids).first(tokens);
            const auto run = [&](std::span<const float> from, std::span<const float> r, std::span<float> y,
                                 std::size_t room_for) {
                workspace memory = layer.make_workspace(room_for, static_cast<std::size_t>(threads));
                token_inputs inputs{.token_ids = ids};
                if (layer.needs().residual) inputs.residual = {r.data(), tokens, d};
                const status s = layer.try_call(from, inputs, y, memory, openmp{threads});
                CHECK_MESSAGE(s.ok(), (s.ok() ? "" : s.failure().message()));
            };
            // A workspace of enough for all tokens, and one that makes two pieces or more.
            for (const std::size_t room_for : {tokens, (tokens + 1) / 2}) {
                std::vector<float> apart(x.size()), onto_x = x, onto_residual = residual, both = x;
                run(x, residual, apart, room_for);
                run(onto_x, residual, onto_x, room_for);
                CHECK(onto_x == apart);
                if (!layer.needs().residual) continue;
                run(x, onto_residual, onto_residual, room_for);
                CHECK(onto_residual == apart);
                run(x, x, apart, room_for);
                run(both, both, both, room_for);
                CHECK(both == apart);
            }
        }
}

template <class Backend>
void check_all(const Backend& backend) {
    check<stem>(backend);
    check<parallel<swiglu, on_residual<meki>>>(backend);
#if !defined(TIFFIN_TEST_SMALL)
    check<parallel<swiglu, meki>>(backend);
    check<moe<swiglu>>(backend);
    check<tiffin_test::mort_of_three<stem>>(backend);
    check<structmoe_down>(backend);
#endif
}

}  // namespace

TEST_CASE("onto inputs: reference") {
    check_all(reference<>{});
}
TEST_CASE("onto inputs: eigen") {
    check_all(eigen{});
}
TEST_CASE("onto inputs: simd") {
    check_all(simd<>{});
}

}  // namespace call_onto_inputs_test
