// The measurements of bench_layers. Each function registers benchmarks of subjects that were added before.
#pragma once

#include "subject.hpp"

#include <string>

namespace tiffin_bench {

// Limits of the machine beside which all are measured.
machine_meter& meter();

// Adds a subject and measures its calls at several numbers of tokens:
//     <name>/tokens:<T>, with the counters roofline, GFLOPs, GBs.
void add_subject(const std::string& name, const subject_maker& maker);

// The time of one subject over another's, call by call in turns:
//     ratio/<above>/over/<below>/tokens:<T>, with the median and the quartiles of the ratios.
// Nothing where either was not added: a peer whose package is not there, a format that a shape does not allow.
void add_ratios(const std::string& above, const std::string& below);

// How a call's time grows with its tokens, from 1 to 32:
//     curve/<name>, with ms_<T>, the median time of T tokens, and `step`, the smallest median of t(T + 1) / t(T),
//     its quartiles, and `step_from`, its T.
void add_curve(const std::string& name);

// What a call of one token takes beyond its tasks, by two executors: overhead/<executor>/<name>.
void add_overhead(const std::string& name);

}  // namespace tiffin_bench
