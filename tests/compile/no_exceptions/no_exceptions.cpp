// The whole library without exceptions and without run-time types: every failure comes back as a value.
#include <tiffin/cpu/eigen/eigen.hpp>
#include <tiffin/io/layer_file.hpp>
#include <tiffin/io/safetensors.hpp>
#include <tiffin/io/safetensors_writer.hpp>
#include <tiffin/tiffin.hpp>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#if defined(__cpp_exceptions) || defined(__cpp_rtti)
#    error "this test is about -fno-exceptions -fno-rtti"
#endif

namespace {

int mistakes = 0;

void check(bool holds, const char* what) {
    if (holds) return;
    std::printf("wrong: %s\n", what);
    ++mistakes;
}
#define CHECK(...) check((__VA_ARGS__), #__VA_ARGS__)

// d_model 2, d_ff 1, two rows: y = silu(x_0) * U[t] * (1, -1).
struct tiny {
    std::vector<float> gate{1, 0}, rows{2, 3}, down{1, -1};
    tiffin::weights given() const {
        tiffin::weights w;
        w.add("gate_proj.weight", gate.data(), {1, 2});
        w.add("stem_embed.weight", rows.data(), {2, 1});
        w.add("down_proj.weight", down.data(), {2, 1});
        return w;
    }
};

bool near(float got, double want) {
    return std::abs(double(got) - want) <= 1e-6 * std::abs(want);
}

const double silu_of_1 = 1 / (1 + std::exp(-1.0));

// The checks that a layer and an any_layer share; `call` is try_call with what else it needs.
template <class Call>
void check_calls(const Call& call) {
    const std::vector<float> x{1, 5, 1, 7};
    const std::vector<std::int32_t> ids{1, 0}, outside{1, 2};
    std::vector<float> y(4), shorter(2);
    CHECK(call(x, ids, y).ok());
    CHECK(near(y[0], 3 * silu_of_1) && near(y[1], -3 * silu_of_1));
    CHECK(near(y[2], 2 * silu_of_1) && near(y[3], -2 * silu_of_1));
    CHECK(call(x, outside, y).failure().code == tiffin::errc::token_id);
    CHECK(call(x, ids, shorter).failure().code == tiffin::errc::size);
    const std::vector<float> apart = y;
    y = x;
    CHECK(call(y, ids, y).ok());
    CHECK(y == apart);
}

template <class Backend>
void check_backend(const Backend& backend) {
    const tiny numbers;
    auto layer = tiffin::try_prepare<tiffin::stem>(numbers.given(), backend);
    CHECK(layer.ok());
    if (!layer) return;
    check_calls([&](const auto& x, const auto& ids, auto& y) { return layer->try_call(x, ids, y); });
    std::vector<float> x(2), y(2);
    CHECK(layer->try_call(x, std::vector<std::int32_t>{0}, y, std::span<std::byte>{}).failure().code ==
          tiffin::errc::workspace);

    const tiffin::any_layer any(*std::move(layer));
    tiffin::workspace memory = any.make_workspace(2, 1);
    check_calls([&](const auto& in, const auto& ids, auto& out) {
        return any.try_call(in, ids, out, std::span<std::byte>(memory));
    });

    const auto missing = tiffin::try_prepare<tiffin::stem_hybrid>(numbers.given(), backend);
    CHECK(!missing && missing.failure().code == tiffin::errc::missing_tensor);
    const auto unused = tiffin::try_prepare<tiffin::stem>(
        numbers.given().add("up_proj.weight", numbers.gate.data(), {1, 2}), backend);
    CHECK(!unused && unused.failure().where == "up_proj.weight");
}

tiffin::io::safetensors_writer writer_of(const tiny& numbers, const char* block) {
    tiffin::io::safetensors_writer writer;
    writer.set("block", block);
    const tiffin::weights given = numbers.given();
    for (const auto& e : given.entries()) writer.add(e.name, e.tensor);
    return writer;
}

void check_layer_file() {
    const tiffin::reference<> backend;
    const tiny numbers;
    const auto load = [&](const char* block) {
        const auto bytes = writer_of(numbers, block).to_bytes("test");
        CHECK(bytes.ok());
        auto file = tiffin::io::safetensors_file::parse(*bytes, "test");
        CHECK(file.ok());
        return tiffin::io::load_layer(std::make_shared<const tiffin::io::safetensors_file>(*std::move(file)),
                                      backend);
    };
    const auto layer = load("stem");
    CHECK(layer.ok());
    if (layer) {
        tiffin::workspace memory = layer->make_workspace(2, 1);
        check_calls([&](const auto& in, const auto& ids, auto& out) {
            return layer->try_call(in, ids, out, std::span<std::byte>(memory));
        });
    }
    CHECK(load("steam").failure().code == tiffin::errc::option);
    CHECK(load("stem_hybrid").failure().code == tiffin::errc::missing_tensor);
    CHECK(tiffin::io::open_layer("no/such/file", backend).failure().code == tiffin::errc::file);
}

// Bytes that are no file: a parser that throws would end the program here.
void check_bad_files() {
    for (const std::string_view header :
         {"", "{", "[]", "{\"a\":}", "{\"a\":1e999}", "{\"a\":{\"dtype\":\"\xff\"}}",
          "{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}"}) {
        std::vector<std::byte> bytes(8);
        bytes[0] = static_cast<std::byte>(header.size());
        for (const char c : header) bytes.push_back(static_cast<std::byte>(c));
        const auto file = tiffin::io::safetensors_file::parse(bytes, "bad");
        CHECK(!file && file.failure().code == tiffin::errc::file);
    }
    tiny numbers;
    const auto write = writer_of(numbers, "stem \xff").to_bytes("bad");
    CHECK(!write && write.failure().code == tiffin::errc::file);
}

}  // namespace

int main() {
    check_backend(tiffin::reference<>{});
    check_backend(tiffin::eigen{});
    check_backend(tiffin::simd{});
    check_layer_file();
    check_bad_files();
    return mistakes == 0 ? 0 : 1;
}
