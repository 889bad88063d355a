// What the library says on a machine without a device: run with CUDA_VISIBLE_DEVICES empty.
#include <tiffin/cuda.hpp>
#include <tiffin/layers.hpp>

#include "support/doctest.hpp"

#include <cstddef>
#include <string>
#include <vector>

namespace cuda_no_device_test {

namespace {

void check_refusal(const tiffin::failure& said) {
    int devices = 0;
    const cudaError_t code = cudaGetDeviceCount(&devices);
    REQUIRE(code != cudaSuccess);
    CAPTURE(said.message());
    CHECK(said.code == tiffin::errc::device);
    CHECK(said.message().find(cudaGetErrorString(code)) != std::string::npos);
    CHECK(said.message().find(cudaGetErrorName(code)) != std::string::npos);
}

}  // namespace

TEST_CASE("layers and tables are refused in CUDA's own words") {
    const std::size_t d_model = 4, d_ff = 8, vocab = 3;
    const std::vector<float> numbers(d_ff * d_model);
    tiffin::weights given;
    given.add("gate_proj.weight", numbers.data(), {d_ff, d_model});
    given.add("stem_embed.weight", numbers.data(), {vocab, d_ff});
    given.add("down_proj.weight", numbers.data(), {d_model, d_ff});
    const auto layer = tiffin::try_prepare<tiffin::stem>(given, tiffin::cuda<>{});
    REQUIRE_FALSE(layer.ok());
    check_refusal(layer.failure());
    const auto narrow = tiffin::try_prepare<tiffin::stem>(given, tiffin::cuda<tiffin::bf16>{});
    REQUIRE_FALSE(narrow.ok());
    check_refusal(narrow.failure());
    const auto from_host = tiffin::try_prepare<tiffin::stem>(given, tiffin::cuda_from_host<>{});
    REQUIRE_FALSE(from_host.ok());
    check_refusal(from_host.failure());
    const tiffin::tensor_view table{numbers.data(), tiffin::dtype::f32, {vocab, d_ff}};
    const auto rows = tiffin::offloaded_rows::make(table);
    REQUIRE_FALSE(rows.ok());
    check_refusal(rows.failure());
}

}  // namespace cuda_no_device_test
