// expect: tiffin needs std::min and std::max: undefine the macros
// fault flags: -Dmax(a,b)=((a)>(b)?(a):(b))
#include <tiffin/config.hpp>
