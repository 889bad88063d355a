// Tokens sorted by chosen expert, on the device.
#pragma once

#include <tiffin/cuda/call.hpp>
#include <tiffin/cuda/engine/view.hpp>
#include <tiffin/cuda/kernels.hpp>
#include <tiffin/format/concepts.hpp>

#include <cub/device/device_radix_sort.cuh>

#include <bit>
#include <cstddef>
#include <cstdint>

TIFFIN_BEGIN

namespace cuda_detail {

using engine_detail::chosen_experts;

struct key_body {
    chosen_experts chosen;
    token_range tokens;
    std::uint32_t none;  // the key of entries beyond the last token
    std::uint32_t* keys;
    std::uint32_t* entries;

    __device__ void operator()(std::size_t i) const {
        const std::size_t t = i / chosen.choices;
        keys[i] = tokens.has(t) ? static_cast<std::uint32_t>(chosen.of(t)[i % chosen.choices].expert) : none;
        entries[i] = static_cast<std::uint32_t>(i);
    }
};

// One thread more than there are keys: each writes the starts of the experts between two keys.
struct start_body {
    const std::uint32_t* keys;
    std::size_t count;
    std::uint32_t experts;
    std::uint32_t* starts;

    __device__ void operator()(std::size_t i) const {
        const std::uint32_t after = i == 0 ? 0 : keys[i - 1] + 1;
        const std::uint32_t until = i == count ? experts : keys[i];
        for (std::uint32_t e = after; e <= until && e <= experts; ++e)
            starts[e] = static_cast<std::uint32_t>(i);
    }
};

// Entries token * choices + choice, sorted by expert, stable within one. (A template, so that CUB is compiled only
// where there is a router.)
template <codec Format>
struct grouped_entries {
    std::uint32_t* order;
    std::uint32_t* starts;  // (experts + 1)
    std::uint32_t* keys;
    std::uint32_t* sorted_keys;
    std::uint32_t* entries;
    std::byte* sorting;
    std::size_t sorting_bytes;

    static grouped_entries lay_out(device_arena& areas, std::size_t count, std::size_t experts) noexcept {
        grouped_entries g{};
        g.order = areas.take<std::uint32_t>(count);
        g.starts = areas.take<std::uint32_t>(experts + 1);
        g.keys = areas.take<std::uint32_t>(count);
        g.sorted_keys = areas.take<std::uint32_t>(count);
        g.entries = areas.take<std::uint32_t>(count);
        g.sort(nullptr, g.sorting_bytes, count, experts, nullptr);
        g.sorting = areas.take<std::byte>(g.sorting_bytes);
        return g;
    }
    void fill(launches& out, const chosen_experts& chosen, const token_range& tokens,
              std::size_t experts) const noexcept {
        const std::size_t count = tokens.most * chosen.choices;
        const auto most = static_cast<std::uint32_t>(experts);
        for_elements(out, count, key_body{chosen, tokens, most, keys, entries});
        std::size_t bytes = sorting_bytes;
        if (count > 0 && out.going())
            out.refuse(sort(sorting, bytes, count, experts, out.stream()), "cub::DeviceRadixSort");
        for_elements(out, count + 1, start_body{sorted_keys, count, most, starts});
    }

private:
    cudaError_t sort(std::byte* memory, std::size_t& bytes, std::size_t count, std::size_t experts,
                     cudaStream_t stream) const noexcept {
        const int bits = static_cast<int>(std::bit_width(experts));
        return cub::DeviceRadixSort::SortPairs(memory, bytes, keys, sorted_keys, entries, order,
                                               static_cast<int>(count), 0, bits, stream);
    }
};

}  // namespace cuda_detail

TIFFIN_END
