// The papers' claims, each as a question to models that were trained for it.
#pragma once

#include "lab.hpp"

#include <string>
#include <vector>

// What came out, to be printed, and written as Markdown and CSV.
struct claim_table {
    std::vector<std::string> columns;
    std::vector<std::vector<std::string>> rows;
    std::vector<std::string> remarks;  // a sentence each
    // For the picture: named curves, (x, y) with the spread of y.
    struct point {
        double x, y, spread;
    };
    struct curve {
        std::string name;
        std::vector<point> points;
    };
    std::vector<curve> curves;
    std::string x_axis, y_axis;
    bool x_is_logarithmic = false;
};

struct claim {
    int number;
    const char* name;      // of its files
    const char* question;  // a sentence
    const char* source;
    claim_table (*answer)(lab&);
};

// In the order of their numbers.
const std::vector<claim>& claims();

// ---- what several claims are made of ----

struct spread {
    double mean = 0, deviation = 0;
    std::size_t count = 0;
};
spread spread_of(const std::vector<double>& values);
// Half the 95 % interval of a mean (Student's t); NaN of a single value.
double half_interval(const spread& of);
// The least mean that a test at 5 % would find to differ from 0 with a chance of 80 %; NaN of a single value.
double least_seen(const spread& of);
std::string text_of(double value, int digits = 4);
std::string text_of(const spread& of, int digits = 4);

// A variant of the base, trained with every seed.
struct variant {
    std::string name;
    std::function<void(run_options&)> changed;
};
struct trained {
    std::string name;
    std::vector<const finished_run*> runs;  // by seed
    [[nodiscard]] std::vector<double> losses() const;
};
std::vector<trained> train_all(lab& in, const std::vector<variant>& variants);
// Held-out losses; what `against[i]` names of them is taken from i's, by seed (empty: the first from each other one);
// curves of the loss by tokens.
claim_table compare(const std::vector<trained>& all, std::vector<std::size_t> against = {});

// Each in the file that its subject names.
claim_table folds_change_nothing(lab&);
claim_table modulators_at_equal_flops(lab&);
claim_table gate_or_up(lab&);
claim_table knowledge_edits(lab&);
claim_table delays(lab&);
claim_table residual_variance(lab&);
claim_table router_balance(lab&);
claim_table angular_spread(lab&);
claim_table stem_placement(lab&);
claim_table distinct_ids(lab&);
claim_table memory_width(lab&);
claim_table equal_parameters(lab&);
claim_table scale_starts(lab&);
claim_table resting_rows(lab&);
claim_table isocompute(lab&);
claim_table on_a_mixture(lab&);
