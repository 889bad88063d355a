// expect: tiffin needs std::min and std::max: undefine the macros
// fault flags: -Dmin=minimum
#include <tiffin/config.hpp>
