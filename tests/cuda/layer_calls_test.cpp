// Calls of layers on the device: graphs, pieces, memory of all kinds, and what is refused.
#include <tiffin/activation/identity.hpp>
#include <tiffin/cuda.hpp>
#include <tiffin/layers.hpp>
#include <tiffin/reference/reference.hpp>
#include <tiffin/source/residual_input.hpp>

#include "cuda/whole_numbers.hpp"
#include "support/doctest.hpp"

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

namespace cuda_layer_calls_test {
using namespace tiffin;
using namespace tiffin_cuda_test;

namespace {

class stream_of_a_test {
public:
    stream_of_a_test() { REQUIRE(cudaStreamCreate(&stream_) == cudaSuccess); }
    ~stream_of_a_test() { static_cast<void>(cudaStreamDestroy(stream_)); }
    operator cudaStream_t() const { return stream_; }

private:
    cudaStream_t stream_{};
};

using embedded = ffn<gate<identity>, token_embedding>;

// A STEM layer, its tensors and ten tokens.
struct stem_fixture {
    whole_tensors tensors;
    stream_of_a_test stream;
    std::vector<float> x = whole_numbers(10 * d, 3, 2);
    std::vector<std::int32_t> ids = some_ids(10, 5);
    std::vector<float> wanted = std::vector<float>(10 * d);

    stem_fixture() {
        tensors.add_stem("");
        auto expected = prepare<embedded>(tensors.given, reference<>{});
        expected(x, ids, wanted);
    }
};

}  // namespace

TEST_CASE_FIXTURE(stem_fixture, "a call is captured in a graph and replayed on other numbers") {
    auto layer = prepare<embedded>(tensors.given, tiffin::cuda<>{stream}, {.tokens = 16});
    const there<float> in(std::vector<float>(x.size(), 7.0f)), out(x.size());
    const there<std::int32_t> their_ids(std::vector<std::int32_t>(ids.size(), 0));
    cudaGraph_t graph{};
    cudaGraphExec_t ready{};
    REQUIRE(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal) == cudaSuccess);
    CHECK(layer.try_call(in.rows(), {.token_ids = {their_ids.data(), ids.size()}}, out.rows()).ok());
    REQUIRE(cudaStreamEndCapture(stream, &graph) == cudaSuccess);
    REQUIRE(cudaGraphInstantiate(&ready, graph, 0) == cudaSuccess);
    REQUIRE(cudaMemcpy(in.data(), x.data(), x.size() * sizeof(float), cudaMemcpyHostToDevice) == cudaSuccess);
    REQUIRE(cudaMemcpy(their_ids.data(), ids.data(), ids.size() * sizeof(ids[0]), cudaMemcpyHostToDevice) ==
            cudaSuccess);
    REQUIRE(cudaGraphLaunch(ready, stream) == cudaSuccess);
    CHECK(layer.synchronise().ok());
    CHECK(out.here() == wanted);
    static_cast<void>(cudaGraphExecDestroy(ready));
    static_cast<void>(cudaGraphDestroy(graph));
}

TEST_CASE_FIXTURE(stem_fixture, "layers are not prepared while a graph is captured") {
    REQUIRE(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal) == cudaSuccess);
    const auto made = try_prepare<embedded>(tensors.given, tiffin::cuda<>{stream});
    cudaGraph_t graph{};
    REQUIRE(cudaStreamEndCapture(stream, &graph) == cudaSuccess);
    static_cast<void>(cudaGraphDestroy(graph));
    REQUIRE_FALSE(made.ok());
    CHECK(made.failure().code == errc::device);
    CHECK(made.failure().message().find("captured") != std::string::npos);
}

TEST_CASE_FIXTURE(stem_fixture, "to synchronise while a graph is captured is refused, and ends no capture") {
    auto layer = prepare<embedded>(tensors.given, tiffin::cuda<>{stream}, {.tokens = 16});
    REQUIRE(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal) == cudaSuccess);
    const status s = layer.synchronise();
    cudaGraph_t graph{};
    REQUIRE(cudaStreamEndCapture(stream, &graph) == cudaSuccess);
    static_cast<void>(cudaGraphDestroy(graph));
    REQUIRE_FALSE(s.ok());
    CHECK(s.failure().message().find("captured") != std::string::npos);
}

TEST_CASE_FIXTURE(stem_fixture, "a workspace of the host is refused before anything is launched") {
    auto layer = prepare<embedded>(tensors.given, tiffin::cuda<>{stream}, {.tokens = 16});
    const there<float> in(x), out(x);
    const there<std::int32_t> their_ids(ids);
    std::vector<std::byte> here(layer.workspace_bytes(10));
    const status s = layer.try_call(in.rows(), {.token_ids = {their_ids.data(), ids.size()}}, out.rows(),
                                    {here.data(), here.size()}, stream);
    REQUIRE_FALSE(s.ok());
    CHECK(s.failure().message().find("workspace: is memory of the host") == 0);
    CHECK(layer.synchronise().ok());
    CHECK(out.here() == x);
}

TEST_CASE_FIXTURE(stem_fixture,
                  "weights may lie on the device, a router's too, whose numbers are looked at there") {
    mixture<softmax_topk, embedded> block;
    block.router.top_k = 2;
    whole_tensors all;
    for (const char* const expert : {"experts.0.", "experts.1.", "experts.2."}) all.add_stem(expert);
    all.add("router.weight", {3, d});
    auto expected = prepare(block, all.given, reference<>{});
    std::vector<float> wanted_rows(x.size());
    expected(x, ids, wanted_rows);

    const moved_tensors moved(all.given);
    auto layer = prepare(block, moved.given, tiffin::cuda<>{stream}, {.tokens = 16});
    const there<float> in(x), out(x.size());
    const there<std::int32_t> their_ids(ids);
    CHECK(layer.try_call(in.rows(), {.token_ids = {their_ids.data(), ids.size()}}, out.rows()).ok());
    CHECK(layer.synchronise().ok());
    const std::vector<float> y = out.here();
    // The experts' rows are whole numbers; two weights and a sum are rounded, 2^-24 each, and exp by a few of these.
    for (std::size_t i = 0; i < y.size(); ++i) CHECK(y[i] == doctest::Approx(wanted_rows[i]).epsilon(1e-5));

    const float nan = std::numeric_limits<float>::quiet_NaN();
    REQUIRE(cudaMemcpy(moved.held.back().data() + 5, &nan, sizeof nan, cudaMemcpyHostToDevice) ==
            cudaSuccess);
    const auto refused = try_prepare(block, moved.given, tiffin::cuda<>{stream});
    REQUIRE_FALSE(refused.ok());
    CHECK(refused.failure().message().find("router.weight: number 5 is NaN") == 0);
}

TEST_CASE_FIXTURE(stem_fixture, "a small workspace makes calls run in pieces; too small a one is refused") {
    auto layer = prepare<embedded>(tensors.given, tiffin::cuda<>{stream}, {.tokens = 0});
    const there<float> in(x), out(x.size());
    const there<std::int32_t> their_ids(ids);
    const device_inputs<f32> inputs{.token_ids = {their_ids.data(), ids.size()}};
    for (const std::size_t tokens : {1u, 3u, 6u, 10u}) {
        const there<std::byte> memory(layer.workspace_bytes(tokens));
        REQUIRE(cudaMemcpy(out.data(), in.data(), x.size() * sizeof(float), cudaMemcpyDeviceToDevice) ==
                cudaSuccess);
        CHECK(layer.try_call(in.rows(), inputs, out.rows(), {memory.data(), memory.size()}, stream).ok());
        CHECK(layer.synchronise().ok());
        CHECK(out.here() == wanted);
    }
    const there<std::byte> memory(100);
    const status s = layer.try_call(in.rows(), inputs, out.rows(), {memory.data(), memory.size()}, stream);
    REQUIRE_FALSE(s.ok());
    CHECK(s.failure().code == errc::workspace);
}

TEST_CASE_FIXTURE(stem_fixture, "an id outside its table is reported at the next synchronisation, once") {
    auto layer = prepare<embedded>(tensors.given, tiffin::cuda<>{stream}, {.tokens = 4});
    const there<float> in(x), out(x.size());
    for (const std::int32_t bad : {99, -1, static_cast<std::int32_t>(vocab)}) {
        ids[3] = bad;
        ids[8] = bad;
        const there<std::int32_t> their_ids(ids);
        CHECK(layer.try_call(in.rows(), {.token_ids = {their_ids.data(), ids.size()}}, out.rows()).ok());
        const status s = layer.synchronise();
        REQUIRE_FALSE(s.ok());
        CHECK(s.failure().code == errc::token_id);
        CHECK(s.failure().message() ==
              "stem_embed.weight: token_ids[3] = " + std::to_string(bad) + " lies outside its 9 rows");
        CHECK(layer.synchronise().ok());
        std::vector<float> others = out.here();
        for (const std::size_t t : {std::size_t{3}, std::size_t{8}})
            std::copy_n(wanted.begin() + static_cast<std::ptrdiff_t>(t * d), d,
                        others.begin() + static_cast<std::ptrdiff_t>(t * d));
        CHECK(others == wanted);
    }
}

TEST_CASE_FIXTURE(stem_fixture, "what a call brings is checked before anything is launched") {
    auto layer = prepare<embedded>(tensors.given, tiffin::cuda<>{stream}, {.tokens = 16});
    const there<float> in(x), out(x.size());
    const there<std::int32_t> their_ids(ids);
    const device_inputs<f32> inputs{.token_ids = {their_ids.data(), ids.size()}};
    const auto refused = [&](const status& s, errc code, const std::string& text) {
        REQUIRE_FALSE(s.ok());
        CHECK(s.failure().code == code);
        CHECK_MESSAGE(s.failure().message().find(text) != std::string::npos, s.failure().message());
    };
    std::vector<float> of_host = x;
    refused(layer.try_call(matrix_view<float>(of_host.data(), 10, d), inputs, out.rows()), errc::device,
            "x: is memory of the host");
    refused(layer.try_call(in.rows(), inputs, matrix_view<float>(of_host.data(), 10, d)), errc::device,
            "cudaErrorInvalidDevicePointer");
    refused(layer.try_call(in.rows(), {.token_ids = ids}, out.rows()), errc::device, "token_ids: is memory");
    refused(layer.try_call(in.rows(), {.token_ids = {their_ids.data(), 9}}, out.rows()), errc::size,
            "has 9 ids");
    refused(layer.try_call(in.rows(d / 2), inputs, out.rows()), errc::size, "x: has shape (20, 12)");
    refused(layer.try_call(in.rows().rows_from(0, 9), {.token_ids = {their_ids.data(), 9}},
                           matrix_view<float>(in.data() + d, 9, d)),
            errc::overlap, "y: overlaps x and is not x itself");
    refused(layer.try_call(in.rows(), inputs, matrix_view<float>(out.data(), 10, d, d - 1)), errc::size,
            "stride");
    CHECK(layer.try_call(matrix_view<float>(), {}, matrix_view<float>()).ok());
}

TEST_CASE_FIXTURE(stem_fixture, "y may be x, in one piece and in several") {
    auto layer = prepare<embedded>(tensors.given, tiffin::cuda<>{stream}, {.tokens = 0});
    const there<std::int32_t> their_ids(ids);
    for (const std::size_t tokens : {10u, 3u}) {
        const there<float> in(x);
        const there<std::byte> memory(layer.workspace_bytes(tokens));
        layer(in.rows(), {.token_ids = {their_ids.data(), ids.size()}}, in.rows(),
              {memory.data(), memory.size()}, stream);
        CHECK(layer.synchronise().ok());
        CHECK(in.here() == wanted);
    }
}

TEST_CASE_FIXTURE(stem_fixture, "y may be the residual, and x too") {
    using joined = parallel<embedded, residual_input>;
    whole_tensors named;
    named.add_stem("branch.0.");
    const std::vector<float> residual = whole_numbers(x.size(), 5, 3);
    std::vector<float> sum(x.size()), sum_of_x(x.size());
    auto expected = prepare<joined>(named.given, reference<>{});
    expected(x, token_inputs{.token_ids = ids, .residual = {residual.data(), 10, d}}, sum);
    expected(x, token_inputs{.token_ids = ids, .residual = {x.data(), 10, d}}, sum_of_x);
    auto layer = prepare<joined>(named.given, tiffin::cuda<>{stream}, {.tokens = 4});
    const there<std::int32_t> their_ids(ids);
    const there<float> in(x), r(residual), both(x);
    layer(in.rows(), {.token_ids = {their_ids.data(), ids.size()}, .residual = r.rows()}, r.rows());
    layer(both.rows(), {.token_ids = {their_ids.data(), ids.size()}, .residual = both.rows()}, both.rows());
    CHECK(layer.synchronise().ok());
    CHECK(r.here() == sum);
    CHECK(both.here() == sum_of_x);
    const status s = layer.try_call(
        in.rows().rows_from(0, 9), {.token_ids = {their_ids.data(), 9}, .residual = r.rows().rows_from(0, 9)},
        matrix_view<float>(r.data() + d, 9, d));
    REQUIRE_FALSE(s.ok());
    CHECK(s.failure().message() == "y: overlaps residual and is not the residual itself");
}

TEST_CASE_FIXTURE(stem_fixture, "weights that lie on the device are read there") {
    const moved_tensors moved(tensors.given);
    const weights& given = moved.given;
#if defined(TIFFIN_CUDA_ON_HOST)
    const std::size_t before = emulated::device().allocations;
#endif
    auto layer = prepare<embedded>(given, tiffin::cuda<>{stream}, {.tokens = 16});
#if defined(TIFFIN_CUDA_ON_HOST)
    CHECK(emulated::device().allocations == before + 2);  // the workspace, and where ids are refused
#endif
    CHECK(layer.held_bytes() == 0);
    const there<float> in(x), out(x.size());
    const there<std::int32_t> their_ids(ids);
    layer(in.rows(), {.token_ids = {their_ids.data(), ids.size()}}, out.rows());
    CHECK(layer.synchronise().ok());
    CHECK(out.here() == wanted);
    // In another format they are converted on the way.
    auto narrow = prepare<embedded>(given, tiffin::cuda<bf16>{stream}, {.tokens = 16});
    const there<std::uint16_t> narrow_in(encoded<bf16>(x)), narrow_out(x.size());
    narrow(narrow_in.rows(), {.token_ids = {their_ids.data(), ids.size()}}, narrow_out.rows());
    CHECK(narrow.synchronise().ok());
    CHECK(narrow_out.here() == encoded<bf16>(wanted));
}

TEST_CASE_FIXTURE(stem_fixture, "a table's rows come with the call") {
    weights given;
    for (const weights::entry& e : tensors.given.entries())
        if (e.name == "stem_embed.weight")
            given.add_gathered(e.name, dtype::f32, e.tensor.shape);
        else
            given.add(e.name, e.tensor);
    auto layer = prepare<embedded>(given, tiffin::cuda<>{stream}, {.tokens = 4});
    const auto* const table = static_cast<const std::byte*>(tensors.given.find("stem_embed.weight")->data);
    const there<std::byte> rows(std::vector<std::byte>(table, table + vocab * d_ff * sizeof(float)));
    const there<float> in(x), out(x.size());
    const auto call = [&](const std::vector<std::int32_t>& index) {
        const there<std::int32_t> their_index(index);
        const gathered_rows gathered{rows.data(), vocab,      d_ff * sizeof(float),
                                     d_ff,        dtype::f32, {their_index.data(), 10}};
        const std::vector<gathered_rows> all{gathered};
        CHECK(layer.try_call(in.rows(), {.gathered = all}, out.rows()).ok());
        return layer.synchronise();
    };
    CHECK(call(ids).ok());
    CHECK(out.here() == wanted);
    ids[7] = 12;
    const status s = call(ids);
    REQUIRE_FALSE(s.ok());
    CHECK(s.failure().message().find("index[7] = 12") != std::string::npos);
}

TEST_CASE_FIXTURE(stem_fixture, "a delayed block carries its rows on the device") {
    auto layer = prepare<delayed<embedded, 2>>(tensors.given, tiffin::cuda<>{stream}, {.tokens = 4});
    const there<float> in(x), out(x.size()), memory(2 * 10 * d);
    const there<std::int32_t> their_ids(ids);
    carried_residuals carried(2, 10, d, memory.data());
    const std::vector<float> nothing(x.size(), 0.0f);
    for (int call = 0; call < 4; ++call) {
        layer(in.rows(), {.token_ids = {their_ids.data(), ids.size()}, .carried = &carried}, out.rows());
        CHECK(layer.synchronise().ok());
        CHECK(out.here() == (call < 2 ? nothing : wanted));
    }
}

#if defined(TIFFIN_CUDA_ON_HOST)
// What no real device can be asked for on purpose.
TEST_CASE_FIXTURE(stem_fixture, "a call allocates nothing; a refused launch is told in CUDA's words") {
    auto layer = prepare<embedded>(tensors.given, tiffin::cuda<>{stream}, {.tokens = 4});
    const there<float> in(x), out(x.size());
    const there<std::int32_t> their_ids(ids);
    const device_inputs<f32> inputs{.token_ids = {their_ids.data(), ids.size()}};
    const std::size_t before = emulated::device().allocations;
    CHECK(layer.try_call(in.rows(), inputs, out.rows()).ok());
    CHECK(emulated::device().allocations == before);
    emulated::device().next_launch = cudaErrorInvalidConfiguration;
    const std::size_t launched = emulated::device().launches;
    const status s = layer.try_call(in.rows(), inputs, out.rows());
    REQUIRE_FALSE(s.ok());
    CHECK(s.failure().code == errc::device);
    CHECK(s.failure().message().find("cudaErrorInvalidConfiguration") != std::string::npos);
    CHECK(emulated::device().launches == launched);  // nothing after the refusal
}

TEST_CASE_FIXTURE(stem_fixture, "out of device memory is a failure with the bytes") {
    emulated::device().memory_limit = emulated::device().allocated + 1000;
    const auto made = try_prepare<embedded>(tensors.given, tiffin::cuda<>{stream});
    emulated::device().memory_limit = ~std::size_t{0};
    REQUIRE_FALSE(made.ok());
    CHECK(made.failure().code == errc::device);
    CHECK(made.failure().message() ==
          "weights: no 3840 bytes on the device: out of memory (cudaErrorMemoryAllocation)");
    CHECK(try_prepare<embedded>(tensors.given, tiffin::cuda<>{stream}).ok());
}

TEST_CASE_FIXTURE(stem_fixture, "streams, memory and callers of another device are refused") {
    auto layer = prepare<embedded>(tensors.given, tiffin::cuda<>{stream}, {.tokens = 16});
    const there<float> in(x), out(x.size());
    const there<std::int32_t> their_ids(ids);
    const device_inputs<f32> inputs{.token_ids = {their_ids.data(), ids.size()}};
    const there<std::byte> memory(layer.workspace_bytes(10));
    emulated::device().current = 1;
    const there<float> elsewhere(x);
    const stream_of_a_test other;
    const status called = layer.try_call(in.rows(), inputs, out.rows());
    const auto prepared = try_prepare<embedded>(tensors.given, tiffin::cuda<>{stream});
    emulated::device().current = 0;
    REQUIRE_FALSE(called.ok());
    CHECK(called.failure().message() == "device: the current device is 1; the layer is on device 0");
    REQUIRE_FALSE(prepared.ok());
    CHECK(prepared.failure().message() == "stream: is of device 0; the layer is on device 1");
    const status on_other =
        layer.try_call(in.rows(), inputs, out.rows(), {memory.data(), memory.size()}, other);
    REQUIRE_FALSE(on_other.ok());
    CHECK(on_other.failure().message() == "stream: is of device 1; the layer is on device 0");
    const status with_other = layer.try_call(elsewhere.rows(), inputs, out.rows());
    REQUIRE_FALSE(with_other.ok());
    CHECK(with_other.failure().message() == "x: lies on device 1; the layer is on device 0");
    emulated::device().current = 1;
    const there<std::byte> their_memory(layer.workspace_bytes(10));
    const status waited = layer.synchronise();
    emulated::device().current = 0;
    CHECK(waited.failure().message() == "device: the current device is 1; the layer is on device 0");
    CHECK(layer.try_call(in.rows(), inputs, out.rows(), {their_memory.data(), their_memory.size()}, stream)
              .failure()
              .message() == "workspace: lies on device 1; the layer is on device 0");
}

TEST_CASE_FIXTURE(stem_fixture, "weights of another device are copied") {
    weights given;
    std::vector<there<float>> elsewhere;
    std::size_t bytes = 0;
    emulated::device().current = 1;
    for (const auto& e : tensors.given.entries()) {
        const auto* const numbers = static_cast<const float*>(e.tensor.data);
        elsewhere.emplace_back(std::vector<float>(numbers, numbers + e.tensor.shape.elements()));
        given.add(e.name, elsewhere.back().data(), e.tensor.shape);
        bytes += e.tensor.shape.elements() * sizeof(float);
    }
    emulated::device().current = 0;
    const std::size_t before = emulated::device().allocated;
    const auto layer = prepare<embedded>(given, tiffin::cuda<>{stream}, {.tokens = 0});
    CHECK(emulated::device().allocated >= before + bytes);
    elsewhere.clear();
    const there<float> in(x), out(x.size());
    const there<std::int32_t> their_ids(ids);
    const there<std::byte> memory(layer.workspace_bytes(10));
    layer(in.rows(), {.token_ids = {their_ids.data(), ids.size()}}, out.rows(),
          {memory.data(), memory.size()}, stream);
    CHECK(layer.synchronise().ok());
    CHECK(out.here() == wanted);
}

TEST_CASE_FIXTURE(stem_fixture, "where cuBLASLt knows no way to multiply, tiles do") {
    auto layer = prepare<embedded>(tensors.given, tiffin::cuda<>{stream}, {.tokens = 16});
    const there<float> in(x), out(x.size());
    const there<std::int32_t> their_ids(ids);
    emulated::device().blas_knows_a_way = false;
    layer(in.rows(), {.token_ids = {their_ids.data(), ids.size()}}, out.rows());
    CHECK(layer.synchronise().ok());
    emulated::device().blas_knows_a_way = true;
    CHECK(out.here() == wanted);
}

TEST_CASE_FIXTURE(stem_fixture, "cuBLASLt is asked once how to compute the products of a shape") {
    auto layer = prepare<embedded>(tensors.given, tiffin::cuda<>{stream}, {.tokens = 16});
    const there<float> in(x), out(x.size());
    const there<std::int32_t> their_ids(ids);
    auto& device = emulated::device();
    const auto questions = [&](std::size_t rows) {
        const std::size_t before = device.blas_questions, products = device.blas_products;
        layer(in.rows().rows_from(0, rows), {.token_ids = {their_ids.data(), rows}},
              out.rows().rows_from(0, rows));
        CHECK(layer.synchronise().ok());
        CHECK(device.blas_products == products + 2);  // of the gate and of the output
        return device.blas_questions - before;
    };
    CHECK(questions(ids.size()) == 2);
    CHECK(questions(ids.size()) == 0);
    CHECK(out.here() == wanted);
    CHECK(questions(ids.size() - 1) == 2);
    CHECK(questions(ids.size()) == 0);
}

TEST_CASE("of more shapes than are kept, those met last are") {
    auto by = cuda_detail::blas::make().or_throw();
    constexpr std::size_t most = 70, inputs = 3, outputs = 2;
    const there<float> x(std::vector<float>(most * inputs, 2.0f)),
        w(std::vector<float>(outputs * inputs, 3.0f)), y(most * outputs);
    const auto asks = [&](std::size_t tokens) {
        const std::size_t before = emulated::device().blas_questions;
        CHECK(by->product<f32>(x.data(), inputs, tokens, w.data(), outputs, inputs, y.data(), nullptr,
                               nullptr) == CUBLAS_STATUS_SUCCESS);
        return emulated::device().blas_questions - before == 1;
    };
    for (std::size_t tokens = 1; tokens <= most; ++tokens) CHECK(asks(tokens));
    for (std::size_t tokens = most; tokens > most - 64; --tokens) CHECK_FALSE(asks(tokens));
    CHECK(asks(most - 64));
    CHECK(y.here() == std::vector<float>(most * outputs, 18.0f));
}
#endif

}  // namespace cuda_layer_calls_test
