// Claims that are differences of held-out losses.
#include <tiffin/analysis/cost.hpp>
#include <tiffin/layers.hpp>

#include "claims.hpp"

#include <cmath>

namespace {

variant of_kind(const char* name, std::string kind, std::string where = "all") {
    return {name, [=](run_options& o) {
                o.ffn = kind;
                o.where = where;
            }};
}

}  // namespace

claim_table modulators_at_equal_flops(lab& in) {
    // MeKi's products beside the FFN are not nothing at this width: a wider SwiGLU has the same FLOPs.
    const auto& b = in.base();
    const ffn_sizes sizes = b.sizes(in.text().tokenizer.size()).ffn;
    const double more = ffn_kind_of("meki").folded_flops(sizes) - ffn_kind_of("swiglu").flops(sizes);
    const auto wider = b.d_ff + static_cast<std::size_t>(more / (6 * static_cast<double>(b.d_model)) + 0.5);
    return compare(train_all(in, {of_kind("SwiGLU", "swiglu"),
                                  of_kind("ReToken", "retoken"),
                                  of_kind("MoRT", "mort"),
                                  {"SwiGLU of MeKi's FLOPs",
                                   [=](run_options& o) {
                                       o.ffn = "swiglu";
                                       o.d_ff = wider;
                                   }},
                                  of_kind("MeKi", "meki")}),
                   {0, 0, 0, 0, 3});
}

claim_table gate_or_up(lab& in) {
    return compare(
        train_all(in, {of_kind("SwiGLU", "swiglu"), of_kind("STEM (up)", "stem"),
                       of_kind("STEM (gate)", "stem_gate"), of_kind("STEM hybrid", "stem_hybrid")}),
        {0, 0, 1, 1});
}

claim_table delays(lab& in) {
    // What the last layers send on reaches nobody: beside a delay stands MoRT in the layers before those alone.
    std::string first;
    std::vector<variant> all{of_kind("SwiGLU", "swiglu"), of_kind("MoRT", "mort")};
    for (std::size_t i = 0; i + 2 < in.base().layers; ++i) first += (i != 0 ? "," : "") + std::to_string(i);
    const std::string last_but_one = "," + std::to_string(in.base().layers - 2);
    all.push_back(of_kind("MoRT, not in the last layer", "mort", first + last_but_one));
    all.push_back(of_kind("MoRT delayed by 1", "mort_delay1"));
    all.push_back(of_kind("MoRT, not in the last two", "mort", first));
    all.push_back(of_kind("MoRT delayed by 2", "mort_delay2"));
    claim_table made = compare(train_all(in, all), {0, 0, 0, 2, 0, 4});
    made.remarks.push_back(
        "A delayed residual of the last layers reaches nobody, so that a delay by l has the pools of all "
        "layers but the last l at work: it stands beside MoRT in those layers.");
    return made;
}

claim_table stem_placement(lab& in) {
    const auto all = train_all(
        in, {of_kind("SwiGLU", "swiglu"), of_kind("STEM, thirds", "stem", "thirds"),
             of_kind("STEM, halves", "stem", "halves"), of_kind("STEM, all but 0", "stem", "all-but-0")});
    claim_table made = compare(all);
    // The paper's return on investment, as loss at the FLOPs that the cheapest had in all.
    double least = all[0].runs[0]->training_flops;
    for (const trained& one : all) least = std::fmin(least, one.runs[0]->training_flops);
    made.columns.push_back("loss at the FLOPs of the cheapest");
    for (std::size_t v = 0; v < all.size(); ++v) {
        std::vector<double> at;
        for (const finished_run* run : all[v].runs) {
            const double tokens = run->curve.back().first * least / run->training_flops;
            double loss = run->loss;
            for (std::size_t p = 1; p < run->curve.size(); ++p) {
                const auto& [x0, y0] = run->curve[p - 1];
                const auto& [x1, y1] = run->curve[p];
                if (x0 <= tokens && tokens <= x1) loss = y0 + (y1 - y0) * (tokens - x0) / (x1 - x0);
            }
            at.push_back(loss);
        }
        made.rows[v].push_back(text_of(spread_of(at)));
    }
    made.remarks.push_back(
        "The last column reads each curve where it has spent the FLOPs of the cheapest run. The learning "
        "rate there is not at its end, as it is in the losses before, so it flatters the cheapest.");
    return made;
}

claim_table memory_width(lab& in) {
    std::vector<variant> all{of_kind("SwiGLU", "swiglu")};
    for (const std::size_t width : {8u, 16u, 32u, 64u})
        all.push_back({"MeKi, d_mem " + std::to_string(width), [width](run_options& o) {
                           o.ffn = "meki";
                           o.d_mem = width;
                       }});
    return compare(train_all(in, all));
}

// f' = (2 d f - d L (r + 1)) / (2 d + L r), of an MLP of width f.
claim_table equal_parameters(lab& in) {
    const auto& b = in.base();
    const auto wide = b.d_ff + b.d_ff / 2;  // two matrices for SwiGLU's three
    std::vector<variant> all{{"MLP, d_ff " + std::to_string(wide), [=](run_options& o) {
                                  o.ffn = "mlp";
                                  o.d_ff = wide;
                              }}};
    for (const std::size_t rank : {std::size_t{1}, std::size_t{4}, b.rank}) {
        const double d = static_cast<double>(b.d_model), L = static_cast<double>(b.bank),
                     r = static_cast<double>(rank), f = static_cast<double>(wide);
        const double left = (2 * d * f - d * L * (r + 1)) / (2 * d + L * r);
        if (left < 1 || (rank == b.rank && rank <= 4)) continue;
        const auto narrower = static_cast<std::size_t>(left);
        all.push_back({"StructMoE of rank " + std::to_string(rank) + ", d_ff " + std::to_string(narrower),
                       [=](run_options& o) {
                           o.ffn = "structmoe";
                           o.d_ff = narrower;
                           o.rank = rank;
                       }});
    }
    claim_table made = compare(train_all(in, all));
    made.remarks.push_back(std::to_string(b.bank) + " experts per bank.");
    return made;
}

// The papers do not say where s starts; their heat maps of trained ones stay well below 1.
claim_table scale_starts(lab& in) {
    std::vector<variant> all;
    for (const auto& [name, kind] : {std::pair{"ReToken", "retoken"}, std::pair{"MoRT", "mort"}})
        for (const double start : {1.0, 0.1, 0.0}) {
            const std::string which = kind;
            all.push_back({std::string(name) + ", s from " + text_of(start, 1), [=](run_options& o) {
                               o.ffn = which;
                               o.scale = start;
                           }});
        }
    const auto trained_all = train_all(in, all);
    claim_table made = compare(trained_all, {0, 0, 0, 3, 3, 3});
    made.columns.push_back("mean size of s at the end");
    for (std::size_t v = 0; v < all.size(); ++v) {
        std::vector<double> means;
        for (const finished_run* run : trained_all[v].runs) {
            double sum = 0, count = 0;
            const auto model = in.open(*run);
            for (const parameters::tensor& t : model->model().numbers().all()) {
                if (!t.name.ends_with(".ffn.scale")) continue;
                const auto* const s =
                    static_cast<const float*>(model->model().numbers().behind("").find(t.name)->data);
                for (std::size_t i = 0; i < t.shape.elements(); ++i) sum += std::fabs(s[i]);
                count += static_cast<double>(t.shape.elements());
            }
            means.push_back(sum / count);
        }
        made.rows[v].push_back(text_of(spread_of(means)));
    }
    return made;
}

claim_table resting_rows(lab& in) {
    std::vector<variant> all;
    for (const auto& [name, kind] :
         {std::pair{"STEM", "stem"}, std::pair{"ReToken", "retoken"}, std::pair{"MoRT", "mort"}})
        for (const std::size_t decays : {0u, 1u}) {
            const std::string which = kind;
            all.push_back(
                {std::string(name) + (decays != 0 ? ", all rows decay" : ", rows rest"), [=](run_options& o) {
                     o.ffn = which;
                     o.resting_rows_decay = decays;
                 }});
        }
    return compare(train_all(in, all), {0, 0, 2, 2, 4, 4});
}
