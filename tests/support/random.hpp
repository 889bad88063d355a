// Random numbers that are the same with every standard library.
#pragma once

#include <cstddef>
#include <cstdint>
#include <random>
#include <span>

namespace tiffin_test {

class random_numbers {
public:
    explicit random_numbers(std::uint32_t seed) : engine_(seed) {}

    // In [-scale, scale), a multiple of scale / 2^23.
    float signed_unit(float scale = 1) {
        return scale * (static_cast<float>(engine_() >> 8) * 0x1p-23f - 1.0f);
    }
    // In [0, n).
    std::size_t below(std::size_t n) { return static_cast<std::size_t>(engine_()) % n; }
    void fill(std::span<float> to, float scale = 1) {
        for (float& v : to) v = signed_unit(scale);
    }

private:
    std::mt19937 engine_;  // its sequence is fixed by the standard; that of the distributions is not
};

}  // namespace tiffin_test
