// What is wrong with a call on the device, as far as the host can tell.
#pragma once

#include <tiffin/backend/call_checks.hpp>
#include <tiffin/cuda/call.hpp>
#include <tiffin/error.hpp>

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <string>
#include <type_traits>

TIFFIN_BEGIN

namespace cuda_detail {

// What Format's numbers are given as: their bits, or CUDA's type of their size.
template <class T, class Format>
concept number_of = std::same_as<T, typename Format::storage> ||
    (std::is_class_v<T> && !std::same_as<typename Format::storage, float> &&
     sizeof(T) == sizeof(typename Format::storage) && alignof(T) == alignof(typename Format::storage));

inline status check_stream([[maybe_unused]] cudaStream_t stream, [[maybe_unused]] int device) {
#if CUDART_VERSION >= 12080
    int of_stream = device;
    if (status s = checked(cudaStreamGetDevice(stream, &of_stream), "stream"); !s) return s;
    if (of_stream != device)
        return failure{errc::device, "stream",
                       "is of device " + std::to_string(of_stream) + "; the layer is on device " +
                           std::to_string(device)};
#endif
    return {};
}

// Whether memory can be allocated and copied now.
inline status check_idle(cudaStream_t stream) {
    cudaStreamCaptureStatus capture{};
    if (status s = checked(cudaStreamIsCapturing(stream, &capture), "stream"); !s) return s;
    if (capture == cudaStreamCaptureStatusNone) return {};
    return refused(cudaErrorStreamCaptureUnsupported, "stream",
                   "a graph is being captured on it; prepare layers before");
}

inline status check_memory(const void* data, const char* name, int device) {
    const memory_place place = place_of(data);
    if (!place.device)
        return refused(cudaErrorInvalidDevicePointer, name,
                       "is memory of the host; a layer on the device reads and writes device memory");
    if (place.number != device)
        return failure{errc::device, name,
                       "lies on device " + std::to_string(place.number) + "; the layer is on device " +
                           std::to_string(device)};
    return {};
}

// A matrix of a call with rows of a width of its own.
template <class T>
status check_rows(const matrix_view<T>& given, const char* name, std::size_t rows, std::size_t width,
                  int device) {
    if (status s = detail::check_matrix(given, name, rows, width); !s) return s;
    return rows == 0 ? status{} : check_memory(given.data, name, device);
}

template <class A, class B>
bool views_overlap(const matrix_view<A>& a, const matrix_view<B>& b) noexcept {
    return detail::ranges_overlap(a.data, detail::extent_of(a.rows, a.cols, a.stride) * sizeof(A), b.data,
                                  detail::extent_of(b.rows, b.cols, b.stride) * sizeof(B));
}

// Everything but the token ids' values and what is in gathered indices, which the device looks at.
template <codec Format>
status check_device_call(const call_needs& needs, int device,
                         const matrix_view<const typename Format::storage>& x,
                         const device_inputs<Format>& inputs,
                         const matrix_view<typename Format::storage>& y) {
    int current = 0;
    if (status s = checked(cudaGetDevice(&current), "device"); !s) return s;
    if (current != device)
        return failure{errc::device, "device",
                       "the current device is " + std::to_string(current) + "; the layer is on device " +
                           std::to_string(device)};
    if (status s = check_rows(x, "x", x.rows, needs.d_model, device); !s) return s;
    if (status s = check_rows(y, "y", x.rows, needs.d_model, device); !s) return s;
    const auto& ids = inputs.token_ids;
    if (status s = detail::check_ids_given(needs, ids.size(), x.rows); !s) return s;
    if (!ids.empty())
        if (status s = check_memory(ids.data(), "token_ids", device); !s) return s;
    if (needs.residual) {
        if (status s = check_rows(inputs.residual, "residual", x.rows, needs.d_model, device); !s) return s;
        if (views_overlap(inputs.residual, y)) return failure{errc::overlap, "y", "overlaps residual"};
    }
    if (needs.given_width != 0) {
        if (status s =
                check_rows(inputs.per_layer_input, "per_layer_input", x.rows, needs.given_width, device);
            !s)
            return s;
        if (views_overlap(inputs.per_layer_input, y))
            return failure{errc::overlap, "y", "overlaps per_layer_input"};
    }
    if (status s = detail::check_carried(needs, inputs.carried, x.rows); !s) return s;
    if (needs.delay != 0 && x.rows > 0)
        if (status s = check_memory(inputs.carried->slot(x.rows).data, "carried", device); !s) return s;
    for (const gathered_table& table : needs.gathered) {
        if (status s = detail::check_gathered_form(table, inputs.gathered, x.rows); !s) return s;
        const gathered_rows& rows = inputs.gathered[table.number - 1];
        if (x.rows == 0) continue;
        if (status s = check_memory(rows.data, table.name.c_str(), device); !s) return s;
        if (status s = check_memory(rows.index.data(), table.name.c_str(), device); !s) return s;
    }
    if (inputs.routes != nullptr && needs.choices > 0)
        if (status s = check_memory(inputs.routes, "routes", device); !s) return s;
    if (views_overlap(x, y)) return failure{errc::overlap, "y", "overlaps x"};
    return {};
}

// What the device noted of an id, in the words of the other backends.
inline failure refusal_of(const call_needs& needs, unsigned long long key) {
    const auto id = static_cast<std::int32_t>(static_cast<std::uint32_t>(key));
    const std::string position = std::to_string(key >> 32 & 0x7FFFFFFFull);
    if (key >> 63 != 0)
        return {errc::token_id, needs.gathered.empty() ? "gathered" : needs.gathered[0].name,
                "index[" + position + "] = " + std::to_string(id) + " lies outside its gathered rows"};
    for (const table_size& table : needs.tables)
        if (id < 0 || static_cast<std::size_t>(id) >= table.vocab)
            return {errc::token_id, table.name,
                    "token_ids[" + position + "] = " + std::to_string(id) + " lies outside its " +
                        std::to_string(table.vocab) + " rows"};
    return {errc::token_id, "token_ids", "token_ids[" + position + "] = " + std::to_string(id)};
}

}  // namespace cuda_detail

TIFFIN_END
