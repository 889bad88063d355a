// MoRT's law of compute: the frontier of SwiGLU over five budgets, and MoRT at its optima; MoRT on a mixture.
#include <tiffin/analysis/frontier.hpp>

#include "claims.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <string>
#include <vector>

namespace {

constexpr std::size_t budgets = 5;  // each twice the one before
// Of the compute of a run of the base: the largest budget. All runs together then cost what those of other claims do.
constexpr double largest = 2.0 / 3;
// Rounded to whole steps, fewer would miss a budget by more than 5 %.
constexpr std::size_t least_steps = 10;

// N: the matrices of attention and of the FFNs, and the head, which is the token embedding once more: what a token is
// multiplied by. Norms, tables and their routers are not in it.
double computing_parameters(run_options o, std::size_t vocabulary) {
    o.ffn = "swiglu";
    const model_sizes s = o.sizes(vocabulary);
    const double d = static_cast<double>(o.d_model);
    const double attention = d * static_cast<double>(s.attention.qkv() + s.attention.queries());
    const double ffn = ffn_kind_of(o.ffn).flops(s.ffn) / 2;
    return d * static_cast<double>(vocabulary) + static_cast<double>(o.layers) * (attention + ffn);
}
double tokens_of(const run_options& o) {
    return static_cast<double>(o.steps * o.batch * o.context);
}

// A width of the grid, at the base's depth and proportions.
void narrow(run_options& o, std::size_t twelfths) {
    const std::size_t whole = o.d_model, unit = 2 * o.heads;  // rotations take pairs of each head
    o.d_model = std::max(whole * twelfths / 12 / unit, std::size_t{1}) * unit;
    o.d_ff = std::max((o.d_ff * o.d_model / whole + 4) / 8, std::size_t{1}) * 8;
}

struct grid_point {
    std::size_t twelfths = 0, steps = 0;
    double parameters = 0;
    const finished_run* run = nullptr;  // of the first seed
};
struct budget {
    double flops = 0;
    std::vector<grid_point> grid;
    std::size_t best = 0;  // of the grid
};
// By width the loss falls and then rises: behind three, one that is worse than the best ends the grid of its budget.
std::vector<budget> search(lab& in) {
    static constexpr std::array<std::size_t, 6> widths{{2, 3, 4, 6, 8, 12}};
    const std::size_t vocabulary = in.text().tokenizer.size();
    const double whole = largest * 6 * computing_parameters(in.base(), vocabulary) * tokens_of(in.base());
    std::vector<budget> all;
    for (std::size_t b = 0; b < budgets; ++b) {
        budget one{whole / static_cast<double>(std::size_t{1} << (budgets - 1 - b)), {}, 0};
        for (const std::size_t twelfths : widths) {
            run_options o = in.base();
            narrow(o, twelfths);
            grid_point point{twelfths, 1, computing_parameters(o, vocabulary)};
            o.steps = 1;
            point.steps = static_cast<std::size_t>(one.flops / (6 * point.parameters * tokens_of(o)) + 0.5);
            if (point.steps < least_steps) continue;
            point.run = &in.run(1, [&](run_options& to) {
                to.ffn = "swiglu";
                narrow(to, twelfths);
                to.steps = point.steps;
            });
            one.grid.push_back(point);
            if (point.run->loss < one.grid[one.best].run->loss) one.best = one.grid.size() - 1;
            if (one.grid.size() >= 3 && one.best + 1 < one.grid.size()) break;
        }
        all.push_back(std::move(one));
    }
    return all;
}

// SwiGLU, or MoRT with `chosen` experts per token; its losses at the optima of the budgets that were met.
struct contender {
    std::string name;
    std::size_t chosen = 0;
    std::vector<spread> losses{};
    std::vector<tiffin::frontier_point> points{};
};

std::string flops_text(double flops) {
    char text[32];
    std::snprintf(text, sizeof text, "%.1e", flops);
    return text;
}
std::string with_interval(const tiffin::estimate& e, int digits) {
    if (!std::isfinite(e.low) || !std::isfinite(e.high)) return text_of(e.value, digits);
    return text_of(e.value, digits) + " (" + text_of(e.low, digits) + " to " + text_of(e.high, digits) + ")";
}

}  // namespace

claim_table isocompute(lab& in) {
    const run_options& base = in.base();
    std::vector<budget> all = search(in);
    claim_table made;
    made.x_axis = "compute, 6 N D";
    made.y_axis = "held-out loss, nats per token";
    made.x_is_logarithmic = true;

    std::string unmet, at_edge, grid;
    for (const budget& b : all) {
        grid += "\n- " + flops_text(b.flops) + " FLOPs: ";
        if (b.grid.empty()) unmet += (unmet.empty() ? "" : ", ") + flops_text(b.flops);
        for (std::size_t i = 0; i < b.grid.size(); ++i) {
            const grid_point& p = b.grid[i];
            grid += (i == 0 ? "" : "; ") + std::to_string(p.run->options.d_model) + ", " +
                    std::to_string(p.steps) + " steps: " + text_of(p.run->loss) +
                    (i == b.best ? " (the best)" : "");
            const std::string name = "SwiGLU, d_model " + std::to_string(p.run->options.d_model);
            auto at = std::find_if(made.curves.begin(), made.curves.end(),
                                   [&](const claim_table::curve& c) { return c.name == name; });
            if (at == made.curves.end()) at = made.curves.insert(at, {name, {}});
            at->points.push_back({b.flops, p.run->loss, 0});
        }
        if (b.grid.empty()) grid += "-";
        if (b.grid.size() > 1 && (b.best == 0 || b.best + 1 == b.grid.size()))
            at_edge += (at_edge.empty() ? "" : ", ") + flops_text(b.flops);
    }
    std::erase_if(all, [](const budget& b) { return b.grid.empty(); });

    std::vector<contender> contenders{{"SwiGLU, the best of the grid"}};
    for (const std::size_t chosen : {std::size_t{1}, base.experts / 2, base.experts})
        if (chosen > contenders.back().chosen)
            contenders.push_back(
                {"MoRT, " + std::to_string(chosen) + " of " + std::to_string(base.experts), chosen});
    std::vector<double> etas;
    for (const budget& b : all) {
        const grid_point& best = b.grid[b.best];
        const auto d_model = static_cast<double>(best.run->options.d_model);
        etas.push_back(static_cast<double>(base.layers * base.experts * in.text().tokenizer.size()) *
                       d_model / best.parameters);
        std::vector<variant> variants;
        for (const contender& c : contenders)
            variants.push_back(
                {c.name, [&](run_options& o) {
                     o.ffn = "swiglu";
                     if (c.chosen != 0)
                         o.ffn = "modulated(swiglu, modulator_pool(l2, sigmoid_topk_renorm(top_k=" +
                                 std::to_string(c.chosen) + "), num_layers=" + std::to_string(o.layers) +
                                 "), add)";
                     narrow(o, best.twelfths);
                     o.steps = best.steps;
                 }});
        const std::vector<trained> runs = train_all(in, variants);
        for (std::size_t c = 0; c < contenders.size(); ++c) {
            contenders[c].losses.push_back(spread_of(runs[c].losses()));
            contenders[c].points.push_back({b.flops, contenders[c].losses.back().mean});
        }
    }

    made.columns = {"FFN", "rho"};
    for (const budget& b : all) made.columns.push_back("loss at " + flops_text(b.flops));
    for (const char* const name : {"slope p", "loss factor", "compute saved", "gamma"})
        made.columns.emplace_back(name);
    std::vector<tiffin::gain_measurement> measured;
    std::string apart, unfitted;
    for (const contender& c : contenders) {
        const double rho = static_cast<double>(c.chosen) / static_cast<double>(base.experts);
        std::vector<std::string> row{c.name, c.chosen == 0 ? "" : text_of(rho, 2)};
        claim_table::curve curve{c.name, {}};
        for (std::size_t b = 0; b < all.size(); ++b) {
            row.push_back(text_of(c.losses[b]));
            curve.points.push_back({all[b].flops, c.losses[b].mean, c.losses[b].deviation});
        }
        made.curves.push_back(std::move(curve));
        const auto frontier = tiffin::fit_frontier(c.points);
        if (!frontier) unfitted = frontier.failure().message();
        row.push_back(frontier ? with_interval(frontier->exponent, 3) : "-");
        const auto shift = tiffin::fit_shift(contenders[0].points, c.points);
        if (!shift) unfitted = shift.failure().message();
        if (c.chosen == 0 || !shift) {
            row.insert(row.end(), 3, c.chosen == 0 ? "" : "-");
        } else {
            row.push_back(with_interval(shift->loss_factor(), 3));
            row.push_back(with_interval(shift->compute_saved, 2));
            const std::size_t first = measured.size();
            for (std::size_t b = 0; b < all.size(); ++b)
                measured.push_back(
                    {etas[b], rho, c.points[b].loss / contenders[0].points[b].loss, shift->exponent.value});
            const auto gamma = tiffin::fit_gamma(std::span(measured).subspan(first)).or_throw();
            row.push_back(with_interval(gamma[0].gamma, 3));
            apart += (apart.empty() ? "" : "; ") + c.name + ": " + with_interval(shift->exponents_apart, 3);
        }
        made.rows.push_back(std::move(row));
    }

    std::string optima;
    for (std::size_t b = 0; b < all.size(); ++b) {
        const grid_point& best = all[b].grid[all[b].best];
        optima += (b == 0 ? "" : "; ") + flops_text(all[b].flops) +
                  " FLOPs: " + text_of(best.parameters / 1e6, 3) + " million, " +
                  text_of(tokens_of(best.run->options) / 1e6, 3) + " million, " + text_of(etas[b], 1);
    }
    made.remarks.push_back(
        "Compute is 6 N D: N counts the matrices of attention and FFNs and the head, which is the token "
        "embedding; D counts tokens. MoRT's rows and its router are not in it, as in the paper. "
        "N, D and eta at the optima: " +
        optima + ".");
    made.remarks.push_back(
        "Grid, held-out losses of SwiGLU with the first seed by d_model, d_ff in proportion, " +
        std::to_string(base.layers) +
        " layers; wider ones are left out behind one that is worse than the best:\n" + grid);
    if (!unmet.empty())
        made.remarks.push_back("No model of the grid meets " + unmet + " FLOPs in " +
                               std::to_string(least_steps) + " steps or more: left out.");
    if (!at_edge.empty())
        made.remarks.push_back("The best lies at the edge of the grid at " + at_edge +
                               " FLOPs: a size beyond it may be better.");
    made.remarks.push_back(
        "Losses are means of " + std::to_string(in.seeds()) +
        " seeds and their standard deviations; MoRT has the backbone and the steps of the best SwiGLU, and "
        "no grid of its own. In brackets: 95 % intervals by Student's t over the budgets' mean losses. The "
        "loss factor and the compute saved are those of two frontiers with one slope; gamma is fitted to the "
        "budgets' loss factors and their eta. The law has no irreducible loss.");
    if (!apart.empty()) made.remarks.push_back("MoRT's slope less SwiGLU's: " + apart + ".");
    if (!unfitted.empty()) made.remarks.push_back("Not fitted: " + unfitted + ".");
    return made;
}

// MoRT on a mixture with a shared expert, whose three experts at work have the dense FFN's FLOPs. The pool has as many
// modulators as the mixture has experts, so that more of them are a larger eta.
claim_table on_a_mixture(lab& in) {
    constexpr std::size_t at_work = 3;  // two of the mixture, and the shared one
    const run_options& base = in.base();
    struct point {
        std::size_t experts, chosen;
    };
    std::vector<point> points;
    std::vector<variant> variants;
    std::vector<std::size_t> against;
    for (const std::size_t experts : {base.experts, 2 * base.experts}) {
        const std::size_t mixture = points.size();
        for (const std::size_t chosen : {std::size_t{0}, std::size_t{1}, experts / 2, experts}) {
            const std::string name = "2 of " + std::to_string(experts) + " experts and a shared one";
            points.push_back({experts, chosen});
            against.push_back(mixture);
            variants.push_back(
                {chosen == 0 ? name
                             : "the same, MoRT " + std::to_string(chosen) + " of " + std::to_string(experts),
                 [=](run_options& o) {
                     const std::string ffn = "mixture(softmax_topk(top_k=2), swiglu, swiglu)";
                     o.ffn = chosen == 0
                                 ? ffn
                                 : "modulated(" + ffn + ", modulator_pool(l2, sigmoid_topk_renorm(top_k=" +
                                       std::to_string(chosen) + "), num_layers=" + std::to_string(o.layers) +
                                       "), add)";
                     o.experts = experts;
                     o.d_ff = (o.d_ff / at_work + 4) / 8 * 8;
                 }});
        }
    }
    const std::vector<trained> all = train_all(in, variants);
    claim_table made = compare(all, against);
    run_options dense = base;
    dense.d_ff = at_work * ((base.d_ff / at_work + 4) / 8 * 8);
    const std::size_t vocabulary = in.text().tokenizer.size();
    const double parameters = computing_parameters(dense, vocabulary);
    for (const char* const name : {"eta", "rho", "loss factor"}) made.columns.emplace_back(name);
    for (std::size_t i = 0; i < points.size(); ++i) {
        const auto& [experts, chosen] = points[i];
        if (chosen == 0) {
            made.rows[i].insert(made.rows[i].end(), 3, "");
            continue;
        }
        std::vector<double> factors;
        for (std::size_t seed = 0; seed < in.seeds(); ++seed)
            factors.push_back(all[i].runs[seed]->loss / all[against[i]].runs[seed]->loss);
        const double rows = static_cast<double>(base.layers * experts * vocabulary * base.d_model);
        made.rows[i].push_back(text_of(rows / parameters, 1));
        made.rows[i].push_back(text_of(static_cast<double>(chosen) / static_cast<double>(experts), 2));
        made.rows[i].push_back(text_of(spread_of(factors)));
    }
    made.remarks.push_back(
        "eta is the pool's numbers over the " + text_of(parameters / 1e6, 3) +
        " million parameters that a token is multiplied by, those of experts at work and the head among "
        "them; rho is the share of the pool that a token reads. Loss factors are paired by seed.");
    return made;
}
