// Claims that look into trained models.
#include <tiffin/analysis/geometry.hpp>
#include <tiffin/analysis/routing.hpp>
#include <tiffin/io/fold_layer.hpp>
#include <tiffin/table/row_store.hpp>

#include "../train/export_model.hpp"
#include "claims.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <memory>
#include <set>
#include <stdexcept>

namespace {

namespace fs = std::filesystem;

void with_kind(run_options& o, const char* kind) {
    o.ffn = kind;
}

// The same model with the memories or modulators of every layer folded to tables.
std::unique_ptr<training_run> folded(lab& in, const finished_run& run, const std::string& kind) {
    run_options options = run.options;
    options.ffn = kind;
    const auto from = in.open(run);
    auto made = std::make_unique<training_run>(options, in.text().tokenizer, in.execute());
    const fs::path folder = run.checkpoint.parent_path();
    export_model(from->model(), folder);
    const tiffin::weights theirs = from->model().numbers().behind("");
    const tiffin::named_memory<float> ours = made->model().numbers().memory();
    for (const auto& t : ours.entries())
        if (const auto* const same = theirs.find(t.name))
            std::copy_n(static_cast<const float*>(same->data), t.shape.elements(), t.data);
    for (std::size_t i = 0; i < options.layers; ++i) {
        const auto file =
            tiffin::io::safetensors_file::open(folder / ("layer." + std::to_string(i) + ".safetensors"))
                .or_throw();
        const auto layer = tiffin::io::folded_layer::from(file, {}, in.execute()).or_throw();
        const tiffin::weights tables = layer.tensors();
        for (const auto& t : ours.entries()) {
            const std::string at = "layers." + std::to_string(i) + ".ffn.";
            if (!t.name.starts_with(at)) continue;
            const auto* const table = tables.find(t.name.substr(at.size()));
            if (table == nullptr) throw std::runtime_error("the folded layer has no " + t.name);
            tiffin::read_as_f32(*table, 0, t.shape.elements(), t.data);
        }
    }
    return made;
}

// Looks at rows of the held-out text, behind a forward pass of one batch.
void look(lab& in, training_run& run) {
    const std::size_t tokens = run.tokens_per_step();
    static_cast<void>(run.judge(in.text().held_out, tokens));
}

double variance_of(const row_matrix& rows) {
    return rows.cast<double>().squaredNorm() / static_cast<double>(rows.size());
}

}  // namespace

claim_table folds_change_nothing(lab& in) {
    claim_table made;
    made.columns = {"FFN", "held-out loss as trained", "folded", "largest difference of a seed"};
    struct foldable {
        const char *name, *kind, *folded;
    };
    for (const foldable& one :
         {foldable{"ReToken", "retoken", "retoken_folded"}, foldable{"MeKi", "meki", "meki_folded"}}) {
        std::vector<double> before, after;
        double largest = 0;
        for (std::size_t seed = 1; seed <= in.seeds(); ++seed) {
            const finished_run& run = in.run(seed, [&](run_options& o) { with_kind(o, one.kind); });
            before.push_back(in.judge(*in.open(run)));
            after.push_back(in.judge(*folded(in, run, one.folded)));
            largest = std::fmax(largest, std::fabs(before.back() - after.back()));
        }
        made.rows.push_back(
            {one.name, text_of(spread_of(before), 6), text_of(spread_of(after), 6), text_of(largest, 9)});
    }
    made.remarks.push_back("Asked: equal to 1e-6 nats.");
    return made;
}

claim_table residual_variance(lab& in) {
    const double whole = std::sqrt(2 * static_cast<double>(in.base().layers));
    const auto all = train_all(in, {{"SwiGLU", [](run_options& o) { with_kind(o, "swiglu"); }},
                                    {"s from 1", [](run_options& o) { with_kind(o, "mort"); }},
                                    {"s from sqrt(2 N_l)",
                                     [=](run_options& o) {
                                         with_kind(o, "mort");
                                         o.scale = whole;  // at step 0 the same as leaving the divisor out
                                     }},
                                    {"without the divisor", [](run_options& o) {
                                         with_kind(o, "modulated(swiglu, undivided_modulator, add)");
                                     }}});
    claim_table made;
    const std::size_t layers = in.base().layers;
    made.columns = {"FFN", "held-out loss"};
    for (std::size_t i = 0; i < layers; ++i) made.columns.push_back("before layer " + std::to_string(i));
    made.columns.emplace_back("behind the last");
    for (const trained& one : all)
        for (const bool is_start : {true, false}) {
            std::vector<std::vector<double>> by_layer(layers + 1);
            for (const finished_run* run : one.runs) {
                const auto model =
                    is_start ? std::make_unique<training_run>(run->options, in.text().tokenizer, in.execute())
                             : in.open(*run);
                look(in, *model);
                for (std::size_t i = 0; i < layers; ++i)
                    by_layer[i].push_back(variance_of(*model->model().rows_of(i).residual));
                by_layer[layers].push_back(variance_of(model->model().last_rows()));
            }
            const std::string name = one.name + (is_start ? ", at the start" : "");
            std::vector<std::string> row{name, is_start ? "" : text_of(spread_of(one.losses()))};
            claim_table::curve curve{name, {}};
            for (std::size_t i = 0; i < by_layer.size(); ++i) {
                const spread s = spread_of(by_layer[i]);
                row.push_back(text_of(s, 4));
                curve.points.push_back({static_cast<double>(i), s.mean, s.deviation});
            }
            made.rows.push_back(std::move(row));
            made.curves.push_back(std::move(curve));
        }
    made.x_axis = "layers behind it";
    made.y_axis = "mean square of the residual stream";
    made.remarks.emplace_back("Mean squares over a batch of held-out text.");
    made.remarks.emplace_back(
        "The first two divide by sqrt(2 N_l). A scale s of the pool that starts at sqrt(2 N_l) in place of 1 "
        "is the formula without the divisor at step 0, and at no later one: s learns, and AdamW's steps are "
        "as large in both, so that what is added moves sqrt(2 N_l) times as fast without the divisor.");
    return made;
}

claim_table router_balance(lab& in) {
    claim_table made;
    made.columns = {"FFN",           "balance loss", "held-out loss", "entropy, share of log E",
                    "busiest share", "even share"};
    std::string remark =
        "Selections over a batch of held-out text, means over the layers. Weights: Switch's of "
        "MoE and StructMoE " +
        text_of(in.base().balance, 3) + ", MoRT's own " + text_of(in.base().mort_balance, 5) +
        ". Losses with less those without:";
    for (const auto& [name, kind] :
         {std::pair{"MoE, 2 of 4", "moe"}, std::pair{"StructMoE", "structmoe"}, std::pair{"MoRT", "mort"}}) {
        std::vector<double> apart;
        for (const bool balanced : {false, true}) {
            const std::string which = kind;
            std::vector<double> losses, entropy, busiest;
            double even = 0;
            for (std::size_t seed = 1; seed <= in.seeds(); ++seed) {
                const finished_run& run = in.run(seed, [&](run_options& o) {
                    with_kind(o, which.c_str());
                    if (!balanced) o.balance = o.mort_balance = 0;
                });
                losses.push_back(run.loss);
                if (balanced)
                    apart[seed - 1] += run.loss;
                else
                    apart.push_back(-run.loss);
                const auto model = in.open(run);
                look(in, *model);
                double mean_entropy = 0, mean_busiest = 0;
                for (std::size_t i = 0; i < in.base().layers; ++i) {
                    const auto rows = model->model().rows_of(i);
                    std::vector<std::int32_t> experts;
                    for (const auto& c : rows.routes) experts.push_back(c.expert);
                    tiffin::routing_statistics counted(rows.experts);
                    counted.add(experts, rows.choices).or_throw();
                    mean_entropy += counted.entropy_share() / static_cast<double>(in.base().layers);
                    mean_busiest += counted.busiest_share() / static_cast<double>(in.base().layers);
                    even = 1 / static_cast<double>(rows.experts);
                }
                entropy.push_back(mean_entropy);
                busiest.push_back(mean_busiest);
            }
            made.rows.push_back({name, balanced ? "yes" : "no", text_of(spread_of(losses)),
                                 text_of(spread_of(entropy), 3), text_of(spread_of(busiest), 3),
                                 text_of(even, 3)});
        }
        const spread of = spread_of(apart);
        remark +=
            std::string(" ") + name + " " + text_of(of.mean) + " +- " + text_of(half_interval(of)) + ";";
    }
    remark.back() = '.';
    made.remarks.push_back(remark + " (95 % intervals, paired by seed.)");
    return made;
}

claim_table angular_spread(lab& in) {
    claim_table made;
    made.columns = {"rows", "mean cosine", "standard deviation", "5 % to 95 %"};
    const auto told = [&](const char* name, const std::vector<std::vector<float>>& seeds, std::size_t width) {
        std::vector<double> mean, deviation, low, high;
        for (std::size_t s = 0; s < seeds.size(); ++s) {
            const tiffin::tensor_view view{
                seeds[s].data(), tiffin::dtype::f32, {seeds[s].size() / width, width}};
            const auto found =
                tiffin::sample_cosines(tiffin::in_memory::view(view).or_throw(), 20000, s + 1).or_throw();
            mean.push_back(found.mean);
            deviation.push_back(found.deviation);
            low.push_back(found.quantile(0.05));
            high.push_back(found.quantile(0.95));
        }
        made.rows.push_back({name, text_of(spread_of(mean), 3), text_of(spread_of(deviation), 3),
                             text_of(spread_of(low), 3) + " to " + text_of(spread_of(high), 3)});
        return mean;
    };
    const std::size_t layer = in.base().layers / 2, width = in.base().d_ff;
    const std::string at = "layers." + std::to_string(layer) + ".ffn.";
    // One occurrence of each id in a batch of the held-out text: both sides have the same tokens.
    std::map<std::int32_t, std::size_t> places;
    const std::size_t looked_at = in.base().batch * in.base().context;
    for (std::size_t t = 0; t < looked_at; ++t) places.emplace(in.text().held_out[t], t);
    const auto table_rows = [&](training_run& run) {
        const auto* const table =
            static_cast<const float*>(run.model().numbers().behind(at).find("stem_embed.weight")->data);
        std::vector<float> rows;
        for (const auto& [id, place] : places) {
            const float* const row = table + static_cast<std::size_t>(id) * width;
            rows.insert(rows.end(), row, row + width);
        }
        return rows;
    };
    const auto products = [&](training_run& run) {
        look(in, run);
        const row_matrix& all = *run.model().rows_of(layer).ffn_input;
        row_matrix x(as_index(places.size()), all.cols());
        Eigen::Index row = 0;
        for (const auto& [id, place] : places) x.row(row++) = all.row(as_index(place));
        const auto* const up =
            static_cast<const float*>(run.model().numbers().behind(at).find("up_proj.weight")->data);
        // A handful of rows: nothing that an Eigen of this file's flags would share with attention's products.
        const row_matrix y =
            x.lazyProduct(Eigen::Map<const row_matrix>(up, as_index(width), x.cols()).transpose());
        return std::vector<float>(y.data(), y.data() + y.size());
    };
    std::array<std::vector<std::vector<float>>, 4> rows;
    for (std::size_t seed = 1; seed <= in.seeds(); ++seed) {
        const finished_run& stem = in.run(seed, [](run_options& o) { with_kind(o, "stem"); });
        const finished_run& dense = in.run(seed, [](run_options& o) { with_kind(o, "swiglu"); });
        const auto at_start = [&](const finished_run& run) {
            return training_run(run.options, in.text().tokenizer, in.execute());
        };
        training_run first_stem = at_start(stem), first_dense = at_start(dense);
        rows[0].push_back(table_rows(first_stem));
        rows[1].push_back(table_rows(*in.open(stem)));
        rows[2].push_back(products(first_dense));
        rows[3].push_back(products(*in.open(dense)));
    }
    const auto start = told("STEM's table, at the start", rows[0], width);
    const auto trained_table = told("STEM's table, trained", rows[1], width);
    told("x W_u^T of SwiGLU, at the start", rows[2], width);
    const auto trained_products = told("x W_u^T of SwiGLU, trained", rows[3], width);
    const auto apart = [](const std::vector<double>& a, const std::vector<double>& b) {
        std::vector<double> differences;
        for (std::size_t i = 0; i < a.size(); ++i) differences.push_back(a[i] - b[i]);
        const spread of = spread_of(differences);
        return text_of(of.mean, 3) + " +- " + text_of(half_interval(of), 3);
    };
    made.remarks.push_back("Mean cosine of the trained table less that of the trained products: " +
                           apart(trained_table, trained_products) + ", less its own at the start: " +
                           apart(trained_table, start) + " (95 % intervals, paired by seed).");
    made.remarks.push_back(
        "Cosines of 20000 pairs of rows of layer " + std::to_string(layer) + ", of the " +
        std::to_string(places.size()) +
        " ids of a batch of held-out text; a spread around 0 is what the paper calls large.");
    return made;
}

claim_table distinct_ids(lab& in) {
    claim_table made;
    made.columns = {"context", "distinct ids", "of the vocabulary", "million table parameters in use",
                    "of all"};
    const std::vector<std::int32_t>& tokens = in.text().learnt;
    claim_table::curve curve{"distinct ids", {}};
    const auto vocabulary = static_cast<double>(in.text().tokenizer.size());
    const double per_id = static_cast<double>(in.base().layers * in.base().d_ff);
    for (std::size_t length = 16; length <= tokens.size() && length <= 65536; length *= 4) {
        std::vector<double> counts;
        const std::size_t windows = std::min<std::size_t>(64, tokens.size() / length);
        for (std::size_t w = 0; w < windows; ++w) {
            const auto from =
                tokens.begin() + static_cast<std::ptrdiff_t>((tokens.size() - length) /
                                                             std::max<std::size_t>(windows - 1, 1) * w);
            counts.push_back(static_cast<double>(
                std::set<std::int32_t>(from, from + static_cast<std::ptrdiff_t>(length)).size()));
        }
        const spread s = spread_of(counts);
        made.rows.push_back({std::to_string(length), text_of(s, 0), text_of(s.mean / vocabulary, 3),
                             text_of(s.mean * per_id / 1e6, 2), text_of(vocabulary * per_id / 1e6, 2)});
        curve.points.push_back({static_cast<double>(length), s.mean, s.deviation});
    }
    made.curves.push_back(std::move(curve));
    made.x_axis = "tokens of context";
    made.y_axis = "distinct ids";
    made.x_is_logarithmic = true;
    made.remarks.push_back("Windows of the text, means and standard deviations; STEM in every layer.");
    return made;
}
