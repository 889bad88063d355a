// expect: tiffin needs C\+\+20: compile with -std=c\+\+20 or later
// fault flags: -std=c++17
#include <tiffin/tiffin.hpp>
