// One instruction set's half of the program: layer.cpp, compiled twice.
#pragma once

#include <string>

// Runs STEM on three backends; returns the number of values that differ from plain loops in double.
int run_baseline();
int run_native();

// The registers that xsimd chose there, and the namespace that tiffin lives in there.
std::string registers_of_baseline();
std::string registers_of_native();
std::string tiffin_of_baseline();
std::string tiffin_of_native();
