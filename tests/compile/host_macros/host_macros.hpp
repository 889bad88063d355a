// Words that headers of hosts make macros of, before all of tiffin's headers are read. Other people's headers that tiffin
// reads come first: what they make of these words is not ours.
#include <Eigen/Core>
#include <nlohmann/json.hpp>
#include <xsimd/xsimd.hpp>
#if __has_include(<liburing.h>)
#    include <liburing.h>
#endif
#if __has_include(<mpi.h>)
#    include <mpi.h>
#endif

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <chrono>
#include <cmath>
#include <complex>
#include <concepts>
#include <condition_variable>
#include <cstdint>
#include <cstring>
#include <deque>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <new>
#include <numeric>
#include <optional>
#include <random>
#include <set>
#include <span>
#include <sstream>
#include <string>
#include <thread>
#include <tuple>
#include <type_traits>
#include <unordered_map>
#include <utility>
#include <variant>
#include <vector>

// Qt without QT_NO_KEYWORDS.
#define signals public
#define slots
#define emit
#define foreach(a, b) for (a : b)
#define forever for (;;)
// X11.
#define None 0L
#define Bool int
#define Status int
#define Success 0
#define True 1
#define False 0
#define Always 2
#define Complex 0
#define Unsorted 0
#define Above 0
#define Below 1
// sys/sysmacros.h, sys/param.h, termios.h.
#define major(x) x
#define minor(x) x
#define makedev(x, y) x
#define howmany(x, y) x
#define roundup(x, y) x
#define setbit(a, i) a
#define ECHO 1
// windows.h, objbase.h.
#define near
#define far
#define small char
#define hyper long
#define interface struct
#define IN
#define OUT
#define ERROR 0
#define DELETE 1
// Frameworks of tests and logs.
#define CHECK(x) x
#define LOG(x) x
#define ASSERT(x) x
#define UNUSED(x) x
#define likely(x) x
#define unlikely(x) x
