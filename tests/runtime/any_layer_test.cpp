// A layer behind the type-erased handle is the layer: values, sizes, errors and lifetime.
#include <tiffin/runtime/any_layer.hpp>

#include <tiffin/call/prepare.hpp>
#include <tiffin/cpu/simd/simd.hpp>
#include <tiffin/executor/openmp.hpp>
#include <tiffin/layers.hpp>
#include <tiffin/reference/reference.hpp>
#include <tiffin/view.hpp>

#include "support/doctest.hpp"
#include "support/tensor_set.hpp"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

namespace runtime_any_layer_test {
using namespace tiffin;
using tiffin_test::random_ids;
using tiffin_test::random_rows;
using tiffin_test::tensor_set;

namespace {

constexpr std::size_t d = 5, f = 9, vocab = 3, tokens = 7;

template <class Block>
struct example {
    tensor_set tensors{tiffin_test::tensors_wanted(Block{}), {{d, f, vocab}, {}, {}, ~0u, 3}};
    std::vector<float> x = random_rows(tokens, d, 5);
    std::vector<std::int32_t> ids = random_ids(tokens, vocab, 7);

    template <class Backend>
    layer<Block, Backend> make(const Backend& backend) const {
        return prepare<Block>(tensors.given(), backend, {.tokens = 0});
    }
};

}  // namespace

TEST_CASE_TEMPLATE("any_layer computes and tells what its layer does", Backend, reference<>, simd<>) {
    const example<stem> e;
    const auto plain = e.make(Backend{});
    const any_layer any(e.make(Backend{}));
    CHECK(any.d_model() == d);
    CHECK(any.d_ff() == f);
    CHECK(any.reads_token_ids());
    for (const std::size_t n : {1u, 2u, 100u})
        CHECK(any.workspace_bytes(n, 3) == plain.workspace_bytes(n, 3));
    workspace memory = any.make_workspace(tokens, 2);
    CHECK(memory.size() == plain.workspace_bytes(tokens, 2));

    std::vector<float> y(tokens * d), z(tokens * d), strided(tokens * 8, -1.0f);
    plain(e.x, e.ids, y, memory);
    any(e.x, e.ids, z, memory, openmp{2});
    CHECK(y == z);
    const status s = any.try_call(e.x, e.ids, matrix_view<float>(strided.data(), tokens, d, 8), memory);
    CHECK(s.ok());
    for (std::size_t t = 0; t < tokens; ++t)
        for (std::size_t i = 0; i < 8; ++i) CHECK(strided[t * 8 + i] == (i < d ? y[t * d + i] : -1.0f));
}

TEST_CASE("any_layer: whether token ids are read is the block's") {
    const example<mlp> e;
    const any_layer any(e.make(reference{}));
    CHECK_FALSE(any.reads_token_ids());
    workspace memory = any.make_workspace(tokens, 1);
    std::vector<float> y(tokens * d);
    CHECK(any.try_call(e.x, {}, y, memory).ok());
}

TEST_CASE("any_layer passes failures on") {
    const example<stem> e;
    const auto plain = e.make(reference{});
    const any_layer any(e.make(reference{}));
    workspace memory = any.make_workspace(tokens, 1);
    std::vector<float> y(tokens * d, -1.0f);
    const auto same = [&](std::span<const float> x, std::span<const std::int32_t> ids, std::span<float> out,
                          std::span<std::byte> room, errc code) {
        const status one = any.try_call(x, ids, out, room), other = plain.try_call(x, ids, out, room);
        REQUIRE_FALSE(one.ok());
        CHECK(one.failure().code == code);
        CHECK(one.failure().message() == other.failure().message());
        CHECK_THROWS_AS(any(x, ids, out, room), error);
        for (const float v : y) CHECK(v == -1.0f);
    };
    std::vector<std::int32_t> ids = e.ids;
    ids[3] = vocab;
    same(e.x, ids, y, memory, errc::token_id);
    same(std::span(e.x).first(6), e.ids, y, memory, errc::size);
    same(e.x, e.ids, std::span(y).first(6), memory, errc::size);
    same(e.x, e.ids, y, {}, errc::workspace);
    std::vector<float> two(2 * y.size());
    const std::span<float> rows(two);
    CHECK(any.try_call(rows.first(y.size()), e.ids, rows.subspan(1, y.size()), memory).failure().code ==
          errc::overlap);
}

TEST_CASE("any_layer: copies share the layer and keep what it needs alive") {
    const auto needed = std::make_shared<const example<stem>>();
    const std::weak_ptr<const example<stem>> watch = needed;
    std::vector<float> y(tokens * d), z(tokens * d);
    any_layer copy;
    {
        auto tensors = needed;
        any_layer first(needed->make(reference{}), std::move(tensors));
        CHECK(watch.use_count() == 2);
        copy = first;
        const any_layer moved = std::move(first);
        workspace memory = moved.make_workspace(tokens, 1);
        moved(needed->x, needed->ids, y, memory);
    }
    CHECK(watch.use_count() == 2);
    workspace memory = copy.make_workspace(tokens, 1);
    copy(needed->x, needed->ids, z, memory);
    CHECK(y == z);
    copy = any_layer();
    CHECK(watch.use_count() == 1);
}

}  // namespace runtime_any_layer_test
