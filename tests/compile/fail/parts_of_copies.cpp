// expect: tiffin: parts\(\) returns copies of the parts: write std::tuple<const Part
#include <tiffin/plan/lower.hpp>
#include <tiffin/source/dense.hpp>

#include <tuple>

struct doubled {
    tiffin::dense input{};
#ifdef TIFFIN_EXPECT_PASS
    constexpr std::tuple<const tiffin::dense&> parts() const noexcept {
        return {input};
    }
#else
    constexpr std::tuple<tiffin::dense> parts() const noexcept {
        return {input};
    }
#endif
    static constexpr double flops() noexcept {
        return 1;
    }
    auto operator()(const auto& v) const {
        return v + v;
    }
};

const tiffin::plan_node plan = tiffin::lower(doubled{});
