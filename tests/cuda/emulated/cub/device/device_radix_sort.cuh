// CUB's sort on the emulated device.
#pragma once

#include "../../cuda_runtime.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace cub {

struct DeviceRadixSort {
    static cudaError_t SortPairs(void* memory, std::size_t& bytes, const std::uint32_t* keys,
                                 std::uint32_t* sorted, const std::uint32_t* values, std::uint32_t* in_order,
                                 int count, int, int end_bit, cudaStream_t stream) {
        if (memory == nullptr) {
            bytes = static_cast<std::size_t>(count) * 8 + 1;
            return cudaSuccess;
        }
        if (bytes < static_cast<std::size_t>(count) * 8 + 1) return cudaErrorInvalidValue;
        emulated::enqueue(stream, [=] {
            const std::uint32_t mask = end_bit >= 32 ? ~0u : (1u << end_bit) - 1;
            std::vector<std::pair<std::uint32_t, std::uint32_t>> all;
            for (int i = 0; i < count; ++i) all.emplace_back(keys[i], values[i]);
            std::stable_sort(all.begin(), all.end(), [=](const auto& a, const auto& b) {
                return (a.first & mask) < (b.first & mask);
            });
            for (int i = 0; i < count; ++i) {
                sorted[i] = all[static_cast<std::size_t>(i)].first;
                in_order[i] = all[static_cast<std::size_t>(i)].second;
            }
        });
        return cudaSuccess;
    }
};

}  // namespace cub
