// Layers on the device in each number format that it keeps.
#include <tiffin/activation/identity.hpp>
#include <tiffin/cuda.hpp>
#include <tiffin/layers.hpp>
#include <tiffin/reference/reference.hpp>

#include "cuda/whole_numbers.hpp"
#include "support/composition.hpp"
#include "support/doctest.hpp"
#include "support/tensor_set.hpp"

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace cuda_formats_test {
using namespace tiffin;
using namespace tiffin_test;
using namespace tiffin_cuda_test;

namespace {

using glu = ffn<gate<relu>, dense>;
using embedded = ffn<gate<identity>, token_embedding>;

template <class Format, class Block>
void check_whole_numbers(const whole_tensors& tensors, const char* name) {
    auto layer = prepare<Block>(tensors.given, tiffin::cuda<Format>{}, {.tokens = 80});
    auto expected = prepare<Block>(tensors.given, reference<>{});
    for (const std::size_t tokens : {1u, 2u, 4u, 5u, 33u, 80u, 130u}) {
        CAPTURE(name);
        CAPTURE(tokens);
        const std::vector<float> x = whole_numbers(tokens * d, 3, 2);
        const std::vector<std::int32_t> ids = some_ids(tokens, 5);
        std::vector<float> wanted(x.size());
        expected(x, ids, wanted);
        const there<typename Format::storage> in(encoded<Format>(x)), out(x.size());
        const there<std::int32_t> their_ids(ids);
        layer(in.rows(), {.token_ids = {their_ids.data(), tokens}}, out.rows());
        REQUIRE(layer.synchronise().ok());
        CHECK(out.here() == encoded<Format>(wanted));
    }
}

template <class Format>
void check_all_whole_numbers() {
    whole_tensors of_glu, of_stem, of_both, of_experts, of_modulated;
    of_glu.add_glu("");
    of_stem.add_stem("");
    of_both.add_glu("branch.0.");
    of_both.add_stem("branch.1.");
    of_experts.add_map(3);
    for (const char* e : {"experts.0.", "experts.1.", "experts.2."}) of_experts.add_stem(e);
    of_experts.add_glu("shared.");
    of_modulated.add_glu("base.");
    of_modulated.add("modulators.weight", {vocab, d});
    check_whole_numbers<Format, glu>(of_glu, "glu");
    check_whole_numbers<Format, embedded>(of_stem, "stem");
    check_whole_numbers<Format, parallel<glu, embedded>>(of_both, "parallel");
    check_whole_numbers<Format, mixture<hash, embedded, glu>>(of_experts, "mixture");
    check_whole_numbers<Format, modulated<glu, folded_modulator, add>>(of_modulated, "modulated");
}

}  // namespace

TEST_CASE("whole numbers come out to the bit in every format") {
    check_all_whole_numbers<f32>();
    check_all_whole_numbers<bf16>();
    check_all_whole_numbers<f16>();
}

// x, z, h, the product and y are each off by half a unit of bf16 (2^-9) of their size at most, and silu by no
// more than 1.1 times what z is: five roundings, were all of them as large as they can be and of one sign.
TEST_CASE("bf16 is off by its roundings") {
    tensor_set tensors(tensors_wanted(swiglu{}), {{67, 131, 1}, {}, {}, 0u, 7});
    const std::size_t tokens = 21, width = 67;
    std::vector<float> x(tokens * width);
    random_numbers random(9);
    random.fill(x, 1.0f);
    for (float& v : x) v = bf16_to_f32(f32_to_bf16(v));
    std::vector<float> wanted(x.size());
    auto expected = prepare<swiglu>(tensors.given(), reference<>{});
    expected(x, std::vector<std::int32_t>(tokens), wanted);
    auto layer = prepare<swiglu>(tensors.given(), cuda_from_host<bf16>{});
    for (const std::size_t count : {std::size_t{3}, tokens}) {
        std::vector<float> y(count * width);
        REQUIRE(layer.try_call(std::span(x).first(y.size()), token_inputs{}, y).ok());
        double off = 0, size = 0;
        for (std::size_t i = 0; i < y.size(); ++i) {
            off += std::pow(y[i] - wanted[i], 2);
            size += std::pow(wanted[i], 2);
        }
        CHECK(std::sqrt(off / size) < 5.5 * 0x1p-9);
        CHECK(std::sqrt(off / size) > 0x1p-12);  // it is bf16
    }
}

}  // namespace cuda_formats_test
