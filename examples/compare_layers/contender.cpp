#include "contender.hpp"

#include <tiffin/all_policies.hpp>
#include <tiffin/call/prepare.hpp>
#include <tiffin/cpu/simd/simd.hpp>
#include <tiffin/reference/reference.hpp>
#include <tiffin/runtime/any_layer.hpp>

#include "initialised.hpp"
#include "tables_in_file.hpp"
#if defined(TIFFIN_EXAMPLE_CUDA)
#    include "layers_on_device.hpp"
#endif

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

contender make_contender(const job& j, const std::string& name, const std::string& composition,
                         const tiffin::block_shape& sizes, const report& progress,
                         const tiffin::weights* weights) {
    using tiffin::all_policies;
    const auto block = tiffin::compose<tiffin::simd<>::machine>(composition, all_policies).or_throw();
    struct state {
        initialised given;
        std::unique_ptr<tables_in_file> file;  // null: tables are in memory
        std::vector<float> beside;             // (ids, given_width): rows that calls give beside x
        std::size_t given_width = 0;
        bool residual = false;                     // whether they give x itself as the residual
        std::unique_ptr<tiffin::any_layer> layer;  // null: it runs on the device
#if defined(TIFFIN_EXAMPLE_CUDA)
        std::unique_ptr<layers_on_device> device;  // null: the layers run here
#endif

        // Of tokens [first, first + x.rows).
        tiffin::token_inputs inputs(const job& of, std::size_t first,
                                    const tiffin::matrix_view<const float>& x) {
            const auto ids = std::span(of.ids).subspan(first, x.rows);
            tiffin::token_inputs made{.token_ids = ids};
            if (residual) made.residual = x;
            if (given_width > 0)
                made.per_layer_input = {beside.data() + first * given_width, ids.size(), given_width};
            if (file) made.gathered = file->gather(ids);
            return made;
        }
    };
    const std::size_t d = j.sizes.d_model, tokens = j.ids.size();
    contender made;
    made.result.name = name;
    made.result.composition = composition;
    made.result.cost = tiffin::cost(sizes, block.plan());
    row& r = made.result;
    for (const auto& [tensor, t] : tiffin::tensors_needed(block.plan(), sizes))
        r.reads_ids =
            r.reads_ids || std::find(t.axes.begin(), t.axes.end(), tiffin::axis::vocab) != t.axes.end();
    progress(0.0, "initialising");
    const auto held = std::make_shared<state>();
    held->given = weights ? widened(*weights) : initialise(block.plan(), sizes, j.execute);
    std::vector<bool> tables, by_id;  // the tensors that have rows, and those of a row per token id
    for (const tiffin::tensor_kind kind : held->given.kinds) {
        tables.push_back(tiffin::holds_rows(kind));
        by_id.push_back(tables.back() && !tiffin::has_row_per_choice(kind));
    }
    if (j.tables_in_file && std::find(by_id.begin(), by_id.end(), true) != by_id.end())
        held->file = std::make_unique<tables_in_file>(held->given.tensors, by_id, name);
    const auto exact_block =
        tiffin::compose<tiffin::reference<>::machine>(composition, all_policies).or_throw();
    auto reference = tiffin::prepare(exact_block, held->given.tensors, tiffin::reference{});
    held->given_width = reference.needs().given_width;
    held->residual = reference.needs().residual;
    held->beside.resize(tokens * held->given_width);
    fill(held->beside, 78, 1.0f, j.execute);
    const auto run_here = [&] {
        progress(0.3, "packing weights");
        const tiffin::prepare_options how{.tokens = 0, .execute = j.execute};
        held->layer = std::make_unique<tiffin::any_layer>(tiffin::prepare(
            block, held->file ? held->file->weights() : held->given.tensors, tiffin::simd{}, how));
        const std::size_t needed = held->layer->workspace_bytes(batch, j.execute.concurrency());
        if (j.memory.workspace.size() < needed) {
            j.memory.workspace = tiffin::workspace(needed);
            // Or the first calls wait for the system's pages.
            const std::span<std::byte> all = j.memory.workspace;
            std::fill(all.begin(), all.end(), std::byte{0});
        }
        made.call = [held, &j, d](std::size_t first, std::size_t count) {
            const tiffin::matrix_view<const float> x(j.x.data() + first * d, count, d);
            const tiffin::matrix_view<float> y(j.memory.y.data(), count, d);
            const auto& layer = *held->layer;
            layer(x, held->inputs(j, first, x), y, j.memory.workspace, j.execute);
        };
        made.choices = held->layer->choices();
        made.experts = sizes.experts;
        made.routes = [held, &j, d] {
            const std::size_t k = held->layer->choices(), all = j.ids.size();
            std::vector<tiffin::choice<float>> chosen(all * k);
            for (std::size_t first = 0; first < all && k > 0; first += batch) {
                const std::size_t count = std::min(batch, all - first);
                const tiffin::matrix_view<const float> x(j.x.data() + first * d, count, d);
                const tiffin::matrix_view<float> y(j.memory.y.data(), count, d);
                tiffin::token_inputs inputs = held->inputs(j, first, x);
                inputs.routes = std::span(chosen).subspan(first * k, count * k);
                const auto& layer = *held->layer;
                layer(x, inputs, y, j.memory.workspace, j.execute);
            }
            std::vector<std::int32_t> experts;
            for (const tiffin::choice<float>& c : chosen) experts.push_back(c.expert);
            return experts;
        };
    };
#if defined(TIFFIN_EXAMPLE_CUDA)
    if (j.on_device) {
        progress(0.3, "moving weights to the device");
        held->device =
            make_layers_on_device(composition, device_job{held->given.tensors, tables,
                                                          4 * (r.cost.parameters - r.cost.table_parameters),
                                                          j.x, j.ids, held->beside, d, batch});
        r.copies = held->device->copies();
        made.experts = sizes.experts;
        made.choices = held->device->choices();
        made.call = [held](std::size_t first, std::size_t count) { held->device->call(first, count); };
        made.routes = [held] { return held->device->routes(); };
    } else {
        run_here();
    }
#else
    run_here();
#endif

    progress(0.6, "checking against the reference");
    const std::size_t sample = std::min<std::size_t>(tokens, 4);
    std::vector<float> exact(sample * d);
    made.call(0, sample);
#if defined(TIFFIN_EXAMPLE_CUDA)
    if (j.on_device) j.memory.y = held->device->output(sample);
#endif
    const tiffin::matrix_view<const float> first(j.x.data(), sample, d);
    tiffin::token_inputs of_sample = held->inputs(j, 0, first);
    of_sample.gathered = {};  // it has the tables themselves
    reference(first, of_sample, tiffin::matrix_view<float>(exact.data(), sample, d), j.execute);
    float largest = 0, off = 0;
    for (std::size_t i = 0; i < exact.size(); ++i) {
        largest = std::max(largest, std::abs(exact[i]));
        off = std::max(off, std::abs(exact[i] - j.memory.y[i]));
    }
    r.error = largest > 0 ? static_cast<double>(off / largest) : off;
    // Rounding errors of sums of n terms of random sign grow like sqrt(n) units in the last place of
    // the sum (Higham and Mary, 2019); their constant 8 leaves a failure probability below 1e-13 a sum.
    r.allowed = 8 * std::sqrt(static_cast<double>(d + sizes.d_ff)) * 0x1p-24;

    // What runs from here on are the packed copies and the tables.
    const auto& entries = held->given.tensors.entries();
    const std::vector<std::string> none;
    const auto& stay = held->layer ? held->layer->reads_in_place() : none;
    for (std::size_t i = 0; i < held->given.memory.size(); ++i)
        if (std::find(stay.begin(), stay.end(), entries[i].name) == stay.end())
            std::vector<float>().swap(held->given.memory[i]);
    return made;
}

tiffin::block_cost cost_of(const std::string& composition, const tiffin::block_shape& sizes) {
    return tiffin::cost(sizes, tiffin::compose(composition, tiffin::all_policies).or_throw().plan());
}
