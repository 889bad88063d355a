// The C interface: compositions by text (tiffin/tiffin_training.h).
#include <tiffin/tiffin_training.h>

#include <tiffin/all_policies.hpp>
#include <tiffin/analysis/cost.hpp>
#include <tiffin/analysis/initialise_block.hpp>
#include <tiffin/plan/compose.hpp>

#include "c_common.hpp"

#include <array>
#include <cstddef>
#include <string>
#include <utility>
#include <vector>

struct tiffin_composition {
    tiffin::composition<void> held;
};

namespace {

using namespace tiffin::c_detail;
using tiffin::errc;
using tiffin::failure;
using tiffin::result;

// Sizes within what counts of values can hold.
result<tiffin::block_shape> sizes_of(const tiffin_sizes* given) {
    if (given == nullptr) return failure(errc::option, "sizes", "is NULL");
    if (given->struct_size != sizeof(tiffin_sizes))
        return failure(errc::option, "sizes", "has struct_size ", given->struct_size, "; this library knows ",
                       sizeof(tiffin_sizes));
    const auto or_one = [](std::size_t n) { return n == 0 ? std::size_t{1} : n; };
    const std::array<std::pair<const char*, std::size_t>, 10> all{{{"d_model", given->d_model},
                                                                   {"d_ff", given->d_ff},
                                                                   {"vocab", given->vocab},
                                                                   {"experts", given->experts},
                                                                   {"rank", given->rank},
                                                                   {"inner", given->inner[0]},
                                                                   {"inner", given->inner[1]},
                                                                   {"choices", given->choices},
                                                                   {"outputs", given->outputs},
                                                                   {"heads", given->heads}}};
    constexpr std::size_t most = std::size_t{1} << 31;
    for (const auto& [name, size] : all)
        if (size > most) return failure(errc::option, name, "is ", size, "; at most ", most);
    tiffin::block_shape sizes;
    sizes.d_model = given->d_model;
    sizes.d_ff = given->d_ff;
    sizes.vocab = given->vocab;
    sizes.experts = or_one(given->experts);
    sizes.rank = or_one(given->rank);
    sizes.inner = {{or_one(given->inner[0]), or_one(given->inner[1])}};
    sizes.choices = or_one(given->choices);
    sizes.outputs = given->outputs;
    sizes.heads = or_one(given->heads);
    return sizes;
}

// The tensors, each of a size.
result<std::vector<tiffin::named_tensor>> tensors_of(const tiffin_composition& composition,
                                                     const tiffin::block_shape& sizes) {
    auto all = tiffin::tensors_needed(composition.held.plan(), sizes);
    for (const auto& [name, t] : all)
        for (std::size_t i = 0; i < t.shape.rank(); ++i)
            if (t.shape[i] == 0)
                return failure(errc::option, name, "has the shape ", to_string(t.shape),
                               "; a size that it needs is 0");
    return all;
}

}  // namespace

tiffin_error* tiffin_composition_open(const char* text, tiffin_composition** composition) {
    return guarded([&]() -> tiffin_error* {
        if (text == nullptr || composition == nullptr)
            return error_of(is_null(text == nullptr ? "text" : "composition"));
        auto made = tiffin::compose(text, tiffin::all_policies);
        if (!made) return error_of(because(made.failure()));
        *composition = new tiffin_composition{*std::move(made)};
        return nullptr;
    });
}
const char* tiffin_composition_text(const tiffin_composition* composition) {
    return composition != nullptr ? composition->held.text().c_str() : "";
}
int tiffin_composition_reads_residual(const tiffin_composition* composition) {
    return composition != nullptr && tiffin::reads_residual(composition->held.plan()) ? 1 : 0;
}
void tiffin_composition_free(tiffin_composition* composition) {
    delete composition;
}

tiffin_error* tiffin_composition_tensors(const tiffin_composition* composition, const tiffin_sizes* sizes,
                                         void (*each)(void* user, const tiffin_needed_tensor* tensor),
                                         void* user) {
    return guarded([&]() -> tiffin_error* {
        if (composition == nullptr || each == nullptr)
            return error_of(is_null(composition == nullptr ? "composition" : "each"));
        const auto known = sizes_of(sizes);
        if (!known) return error_of({TIFFIN_ERRC_ARGUMENT, known.failure()});
        const auto all = tensors_of(*composition, *known);
        if (!all) return error_of(because(all.failure()));
        for (const auto& [name, t] : *all) {
            tiffin_needed_tensor told{name.c_str(), t.shape.rank(), {}, 0, 0, 0};
            for (std::size_t i = 0; i < t.shape.rank(); ++i) told.shape[i] = t.shape[i];
            told.is_optional = t.needed == tiffin::presence::optional ? 1 : 0;
            told.has_rows = tiffin::holds_rows(t.kind) ? 1 : 0;
            told.has_integers = tiffin::is_map(t.kind) ? 1 : 0;
            each(user, &told);
        }
        return nullptr;
    });
}

tiffin_error* tiffin_composition_cost(const tiffin_composition* composition, const tiffin_sizes* sizes,
                                      tiffin_cost* cost) {
    return guarded([&]() -> tiffin_error* {
        if (composition == nullptr) return error_of(is_null("composition"));
        if (const auto wrong = unknown_size(cost, "cost")) return error_of(*wrong);
        const auto known = sizes_of(sizes);
        if (!known) return error_of({TIFFIN_ERRC_ARGUMENT, known.failure()});
        const auto all = tensors_of(*composition, *known);
        if (!all) return error_of(because(all.failure()));
        const tiffin::block_cost found = tiffin::cost(*known, composition->held.plan());
        *cost = cost_for_c(found);
        return nullptr;
    });
}

tiffin_error* tiffin_composition_initialise(const tiffin_composition* composition, const tiffin_sizes* sizes,
                                            size_t layers, float scale, uint64_t seed,
                                            const tiffin_tensor* tensors, size_t tensor_count) {
    return guarded([&]() -> tiffin_error* {
        if (composition == nullptr) return error_of(is_null("composition"));
        const auto known = sizes_of(sizes);
        if (!known) return error_of({TIFFIN_ERRC_ARGUMENT, known.failure()});
        tiffin::io::described_layer given;
        std::vector<rows_tensor> in_files;
        if (tiffin_error* const wrong = describe(nullptr, 0, tensors, tensor_count, given, in_files))
            return wrong;
        tiffin::named_memory<float> to;
        for (const auto& e : given.tensors.entries()) {
            if (e.tensor.gathered != 0)
                return error_of(because(failure(errc::dtype, e.name, "lies in a file")));
            if (e.tensor.type != tiffin::dtype::f32)
                return error_of(because(failure(errc::dtype, e.name, "has dtype ", name_of(e.tensor.type),
                                                "; starting values are written as F32")));
            to.add(e.name, const_cast<float*>(static_cast<const float*>(e.tensor.data)), e.tensor.shape);
        }
        const tiffin::status done = tiffin::initialise(composition->held.plan(), *known, to,
                                                       {.layers = layers, .seed = seed, .scale = scale});
        return done ? nullptr : error_of(because(done.failure()));
    });
}
