// expect: tiffin needs NaN, infinities and the order of additions: compile without -ffast-math
// fault flags: -ffast-math
#include <tiffin/config.hpp>
