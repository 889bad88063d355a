#include "claims.hpp"

#include <tiffin/analysis/frontier.hpp>

#include <array>
#include <cmath>
#include <cstdio>
#include <limits>

const std::vector<claim>& claims() {
    static const std::vector<claim> all{
        {1, "fold", "Does folding a trained memory or modulator leave the loss as it is?",
         "MeKi Eq. 10, ReToken Eq. 8", folds_change_nothing},
        {2, "equal_flops", "Do ReToken, MoRT and MeKi lower the loss at equal FLOPs?", "ReToken, MoRT, MeKi",
         modulators_at_equal_flops},
        {3, "gate_or_up", "Is it worse to replace the gate by a table than the up projection?",
         "STEM, Table 3", gate_or_up},
        {4, "edits",
         "Does exchanging the rows of an entity's tokens exchange the facts that the model tells?",
         "STEM, Sec. 3.3", knowledge_edits},
        {5, "delay", "Is a delay of a modulator by one or two layers harmless?", "MoRT, App. C", delays},
        {6, "variance", "What does 1 / sqrt(2 N_l) do to the residual stream?", "MoRT, Eq. 6",
         residual_variance},
        {7, "balance", "Do routers collapse without a balance loss, and not with it?",
         "StructMoE, MoRT Eq. 21", router_balance},
        {8, "angles", "Do trained rows of a table spread more than the rows of x W_u^T?", "STEM, abstract",
         angular_spread},
        {9, "placement",
         "STEM in thirds, halves and all but the first layer, against SwiGLU: loss by tokens, by FLOPs",
         "STEM, Table 3", stem_placement},
        {10, "distinct_ids", "How do the parameters in use grow with the context?", "STEM, abstract",
         distinct_ids},
        {11, "d_mem", "How does the loss fall with the width of MeKi's memory?", "MeKi", memory_width},
        {12, "equal_parameters", "Is StructMoE better than a dense block of as many parameters?", "StructMoE",
         equal_parameters},
        {13, "scale_starts", "Where should the scale of a modulator start?", "ReToken, MoRT App. G",
         scale_starts},
        {14, "resting_rows", "Does it matter whether rows that no token reads decay?",
         "dense AdamW, as the papers have it", resting_rows},
        {15, "isocompute",
         "How much compute does MoRT save on the frontier, and does the frontier keep its slope?",
         "MoRT, Eq. 9 to 15", isocompute},
        {16, "on_a_mixture", "What does MoRT add to a mixture with a shared expert, by eta and rho?",
         "MoRT, Eq. 9 to 15", on_a_mixture}};
    return all;
}

spread spread_of(const std::vector<double>& values) {
    spread made;
    made.count = values.size();
    for (const double v : values) made.mean += v / static_cast<double>(values.size());
    double squares = 0;
    for (const double v : values) squares += (v - made.mean) * (v - made.mean);
    if (values.size() > 1) made.deviation = std::sqrt(squares / static_cast<double>(values.size() - 1));
    return made;
}

double half_interval(const spread& of) {
    if (of.count < 2) return std::numeric_limits<double>::quiet_NaN();
    return tiffin::detail::student_t(of.count - 1) * of.deviation / std::sqrt(static_cast<double>(of.count));
}

double least_seen(const spread& of) {
    // Of the half interval, by the noncentral t distribution, for 1 to 9 degrees of freedom.
    static constexpr std::array<double, 9> more{{1.28, 1.31, 1.34, 1.35, 1.37, 1.38, 1.38, 1.39, 1.39}};
    return half_interval(of) * more[std::min(of.count < 2 ? 0 : of.count - 2, more.size() - 1)];
}

std::string text_of(double value, int digits) {
    if (!std::isfinite(value)) return "-";
    char text[48];
    std::snprintf(text, sizeof text, "%.*f", digits, value);
    return text;
}
std::string text_of(const spread& of, int digits) {
    return of.count < 2 ? text_of(of.mean, digits)
                        : text_of(of.mean, digits) + " +- " + text_of(of.deviation, digits);
}

std::vector<double> trained::losses() const {
    std::vector<double> all;
    for (const finished_run* run : runs) all.push_back(run->loss);
    return all;
}

std::vector<trained> train_all(lab& in, const std::vector<variant>& variants) {
    std::vector<trained> all;
    for (const variant& v : variants) all.push_back({v.name, {}});
    // All variants with one seed before the next: what is stopped early has pairs.
    for (std::size_t seed = 1; seed <= in.seeds(); ++seed)
        for (std::size_t i = 0; i < variants.size(); ++i)
            all[i].runs.push_back(&in.run(seed, variants[i].changed));
    return all;
}

claim_table compare(const std::vector<trained>& all, std::vector<std::size_t> against) {
    claim_table made;
    made.columns = {"FFN",           "MFLOPs per token", "million parameters",
                    "held-out loss", "less that of",     "95 % interval",
                    "power"};
    against.resize(all.size());
    const std::size_t seeds = all.front().runs.size();
    for (std::size_t i = 0; i < all.size(); ++i) {
        const trained &one = all[i], &other = all[against[i]];
        std::vector<double> apart;
        for (std::size_t s = 0; s < seeds; ++s) apart.push_back(one.runs[s]->loss - other.runs[s]->loss);
        const spread of = spread_of(apart);
        const bool is_alone = i == against[i];
        const finished_run& first = *one.runs[0];
        const std::string trained = first.training_flops == first.flops
                                        ? ""
                                        : " (trained: " + text_of(first.training_flops / 1e6, 2) + ")";
        made.rows.push_back(
            {one.name, text_of(first.flops / 1e6, 2) + trained, text_of(first.parameters / 1e6, 2),
             text_of(spread_of(one.losses())), is_alone ? "" : other.name + ": " + text_of(of.mean),
             is_alone ? "" : "+- " + text_of(half_interval(of)), is_alone ? "" : text_of(least_seen(of))});
        claim_table::curve curve{one.name, {}};
        for (std::size_t p = 0; p < one.runs[0]->curve.size(); ++p) {
            std::vector<double> at;
            for (const finished_run* run : one.runs)
                if (p < run->curve.size()) at.push_back(run->curve[p].second);
            curve.points.push_back(
                {one.runs[0]->curve[p].first, spread_of(at).mean, spread_of(at).deviation});
        }
        made.curves.push_back(std::move(curve));
    }
    made.x_axis = "tokens";
    made.y_axis = "held-out loss, nats per token";
    if (seeds > 1)
        made.remarks.push_back(
            "Losses are means of " + std::to_string(seeds) +
            " seeds and their standard deviations. Differences are paired by seed: the same order of the "
            "text, and the same starting values of tensors of the same name. Power: a difference as large "
            "is found at 5 % in four of five such experiments.");
    return made;
}
