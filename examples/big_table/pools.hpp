// The bytes of the table once more, as the pools of a stack of MoRT layers: routes first, then the chosen rows alone, which
// arrive while the next layers compute.
#pragma once

#include <tiffin/call/token_router.hpp>
#include <tiffin/executor/executor.hpp>
#include <tiffin/table/direct_file.hpp>
#include <tiffin/table/pool_schedule.hpp>
#include <tiffin/tiffin.hpp>

#include "measured.hpp"

#include <algorithm>
#include <cstddef>
#include <functional>
#include <list>
#include <span>
#include <string>
#include <vector>

// Layer l has the pool whose rows are pools[l]: `experts` tables of d_model numbers per row, of which 2 are chosen.
class pool_stack {
    using layer_type = tiffin::layer<tiffin::mort_given<tiffin::mlp>, tiffin::simd<>>;
    using router_type = tiffin::token_router<tiffin::sigmoid_topk_renorm, tiffin::simd<>>;

public:
    static constexpr std::size_t top_k = 2, batch = 512;

    // How many tables the rows of a layer's table make; below 2 where they make none.
    static std::size_t experts_of(const arguments& args) {
        return args.d_ff % args.d_model == 0 && args.d_model % tiffin::block_of(args.type) == 0
                   ? args.d_ff / args.d_model
                   : 0;
    }
    static tiffin::table_location pool_of(const tiffin::table_location& table, const arguments& args) {
        const tiffin::table_shape rows{table.shape.rows * experts_of(args), args.d_model, args.type};
        return {table.path, table.offset, rows, rows.row_bytes()};
    }

    pool_stack(const arguments& args, const ids_type& ids, const std::vector<float>& x,
               tiffin::executor_ref execute)
        : args_(args), ids_(ids), x_(x), execute_(execute), none_(batch * args.d_model, 0.0f) {
        const std::size_t d = args.d_model, f = args.d_ff, experts = experts_of(args);
        const std::vector<float> up = numbers(f * d, 0.05f), down = numbers(d * f, 0.05f), scale(d, 0.1f);
        tiffin::weights given;
        given.add("base.up_proj.weight", up.data(), {f, d}).add("base.down_proj.weight", down.data(), {d, f});
        given.add("scale", scale.data(), {d});
        tiffin::mort_given<tiffin::mlp> block;
        block.modulator.num_layers = args.layers;
        for (std::size_t l = 0; l < args.layers; ++l) {
            layers_.push_back(tiffin::prepare(block, given, tiffin::simd{}, {.tokens = 0}));
            // Routers differ from layer to layer.
            const std::vector<float> all = numbers((l + 1) * experts * d, 1.0f);
            tiffin::weights router;
            router.add("router.weight", all.data() + l * experts * d, {experts, d});
            routers_.push_back(
                router_type::prepare({.top_k = top_k}, router, tiffin::simd{}, {.tokens = batch}).or_throw());
        }
        workspace_ = layers_[0].make_workspace(batch, execute_.concurrency());
        chosen_.resize(batch * top_k);
        y_.resize(batch * d);
    }

    // Both ways through the text, rows arriving `delay` layers after their routes; bytes read per token and layer.
    line run(const std::vector<tiffin::table_location>& pools, tiffin::file_cache cache, std::size_t delay,
             double& bytes_per_token, const std::function<void(double)>& progress) {
        std::list<tiffin::direct_file<>> files;
        for (const tiffin::table_location& pool : pools)
            files.push_back(tiffin::direct_file<>::open(pool, cache).or_throw());
        auto schedule =
            tiffin::pool_schedule::of({files.begin(), files.end()}, experts_of(args_), delay).or_throw();
        line result{.name = "rows arrive " + std::to_string(delay) + " layers later"};
        const auto measure = [&](std::size_t passes, std::size_t count, std::size_t step, double& rate,
                                 double& waited) {
            const double before = schedule.waited().count();
            const auto start = clock_type::now();
            std::size_t done = 0;
            for (std::size_t p = 0; p < passes; ++p) {
                const std::size_t first = p * step, now = std::min(count, ids_.size() - first);
                pass(first, now, schedule);
                done += now;
                progress(static_cast<double>(p) / static_cast<double>(passes));
            }
            const double took = seconds_since(start);
            rate = static_cast<double>(done) / took;
            waited = (schedule.waited().count() - before) / took;
            return done;
        };
        measure((ids_.size() + batch - 1) / batch, batch, batch, result.prefill, result.waited_prefill);
        const std::size_t decoded = std::min(args_.decode, ids_.size()), before = schedule.rows_read();
        measure(decoded, 1, ids_.size() / decoded, result.decode, result.waited_decode);
        // Of the last layers nobody takes the rows.
        const std::size_t taken = args_.layers - std::min(args_.layers, delay);
        bytes_per_token = static_cast<double>((schedule.rows_read() - before) * pools[0].shape.row_bytes()) /
                          static_cast<double>(std::max<std::size_t>(decoded * taken, 1));
        result.memory = memory_use::now();
        return result;
    }

private:
    void pass(std::size_t first, std::size_t count, tiffin::pool_schedule& schedule) {
        const std::size_t d = args_.d_model;
        const std::span<const std::int32_t> now = std::span(ids_).subspan(first, count);
        const std::span<const float> x = std::span(x_).first(count * d);
        const std::span<tiffin::choice<float>> chosen = std::span(chosen_).first(count * top_k);
        schedule.begin();
        for (std::size_t l = 0; l < layers_.size(); ++l) {
            routers_[l](x, chosen, execute_).or_throw();
            schedule.send(l, now, chosen).or_throw();
            tiffin::matrix_view<const float> mixed = schedule.receive().or_throw();
            // Where nothing is due: rows of zeros, which add nothing.
            if (mixed.rows == 0) mixed = {none_.data(), count, d};
            tiffin::token_inputs inputs;
            inputs.per_layer_input = mixed;
            layers_[l](x, inputs, std::span(y_).first(count * d), workspace_, execute_);
        }
    }

    const arguments& args_;
    const ids_type& ids_;
    const std::vector<float>& x_;
    tiffin::executor_ref execute_;
    std::vector<layer_type> layers_;
    std::vector<router_type> routers_;
    tiffin::workspace workspace_;
    std::vector<tiffin::choice<float>> chosen_;
    std::vector<float> none_, y_;
};
