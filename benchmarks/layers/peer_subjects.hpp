// The same block in other libraries, as subjects.
#pragma once

#include "subject.hpp"

#include <string>

namespace tiffin_bench {

std::string peer_name(const std::string& library, const std::string& format, const shape& s);

// All peers of this build: peer/<library>/swiglu/<format>/<d>x<f>.
void add_peers(const shape& s);

}  // namespace tiffin_bench
