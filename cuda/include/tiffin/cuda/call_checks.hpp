// The checks of a device call that the host can make.
#pragma once

#include <tiffin/call/call_checks.hpp>
#include <tiffin/cuda/call.hpp>
#include <tiffin/error.hpp>
#include <tiffin/format/concepts.hpp>

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <string>

struct __nv_bfloat16;  // of cuda_bf16.h
struct __half;         // of cuda_fp16.h

TIFFIN_BEGIN

namespace cuda_detail {

// The element types of Format: its storage bits, or CUDA's type.
template <class T, class Format>
concept number_of = std::same_as<T, typename Format::storage> ||
                    (std::same_as<Format, bf16>&& std::same_as<T, ::__nv_bfloat16>) ||
                    (std::same_as<Format, f16> && std::same_as<T, ::__half>);

inline status is_captured(cudaStream_t stream, bool& captured) {
    cudaStreamCaptureStatus now{};
    if (status s = checked(cudaStreamIsCapturing(stream, &now), "stream"); !s) return s;
    captured = now != cudaStreamCaptureStatusNone;
    return {};
}

// CUDA cannot report the device of a stream that is being captured: the query would end the capture.
inline status check_stream([[maybe_unused]] cudaStream_t stream, [[maybe_unused]] int device) {
#if CUDART_VERSION >= 12080
    bool captured = false;
    if (status s = is_captured(stream, captured); !s || captured) return s;
    int of_stream = device;
    if (status s = checked(cudaStreamGetDevice(stream, &of_stream), "stream"); !s) return s;
    if (of_stream != device)
        return failure(errc::device, "stream", "is of device ", of_stream, "; the layer is on device ",
                       device);
#endif
    return {};
}

// Whether the host can allocate memory, copy, and wait for the stream now.
inline status check_idle(cudaStream_t stream) {
    bool captured = false;
    if (status s = is_captured(stream, captured); !s || !captured) return s;
    return refused(cudaErrorStreamCaptureUnsupported, "stream",
                   "a graph is being captured on it; prepare layers and wait for them before or after");
}

inline status check_current(int device) {
    int current = 0;
    if (status s = checked(cudaGetDevice(&current), "device"); !s) return s;
    if (current == device) return {};
    return failure(errc::device, "device", "the current device is ", current, "; the layer is on device ",
                   device);
}

inline status check_memory(const void* data, const char* name, int device) {
    const memory_place place = place_of(data);
    if (place.unknown != cudaSuccess && place.unknown != cudaErrorInvalidValue)
        return refused(place.unknown, name, "cannot be looked at");
    if (!place.device)
        return refused(cudaErrorInvalidDevicePointer, name,
                       "is memory of the host; a layer on the device reads and writes device memory");
    if (place.number != device)
        return failure(errc::device, name, "lies on device ", place.number, "; the layer is on device ",
                       device);
    return {};
}

// A matrix of a call: its shape, and that it is in device memory.
template <class T>
status check_rows(const matrix_view<T>& given, const char* name, std::size_t rows, std::size_t width,
                  int device) {
    if (status s = detail::check_matrix(given, name, rows, width); !s) return s;
    return rows == 0 ? status{} : check_memory(given.data, name, device);
}

// Checks all but the token ids' values and gathered indices, which are checked on the device.
template <codec Format>
status check_device_call(const call_needs& needs, int device,
                         const matrix_view<const typename Format::storage>& x,
                         const device_inputs<Format>& inputs,
                         const matrix_view<typename Format::storage>& y) {
    if (status s = check_current(device); !s) return s;
    if (status s = check_rows(x, "x", x.rows, needs.d_model, device); !s) return s;
    if (status s = check_rows(y, "y", x.rows, needs.d_model, device); !s) return s;
    const auto& ids = inputs.token_ids;
    if (status s = detail::check_ids_given(needs, ids.size(), x.rows); !s) return s;
    if (!ids.empty())
        if (status s = check_memory(ids.data(), "token_ids", device); !s) return s;
    if (needs.residual) {
        if (status s = check_rows(inputs.residual, "residual", x.rows, needs.d_model, device); !s) return s;
        if (!detail::is_same_matrix(inputs.residual, y) && detail::matrices_overlap(inputs.residual, y))
            return failure(errc::overlap, "y", "overlaps residual and is not the residual itself");
    }
    if (needs.given_width != 0) {
        if (status s =
                check_rows(inputs.per_layer_input, "per_layer_input", x.rows, needs.given_width, device);
            !s)
            return s;
        if (detail::matrices_overlap(inputs.per_layer_input, y))
            return failure(errc::overlap, "y", "overlaps per_layer_input");
    }
    if (status s = detail::check_carried(needs, inputs.carried, x.rows); !s) return s;
    if (needs.delay != 0 && x.rows > 0)
        if (status s = check_memory(inputs.carried->slot(x.rows).data, "carried", device); !s) return s;
    for (const gathered_table& table : needs.gathered) {
        if (status s = detail::check_gathered_form(table, inputs.gathered, x.rows); !s) return s;
        const gathered_rows& rows = inputs.gathered[table.number - 1];
        if (x.rows == 0) continue;
        if (rows.count == 0) return failure(errc::size, table.name, "was gathered as no rows at all");
        if (status s = detail::check_gathered_memory(table, rows, y); !s) return s;
        if (status s = check_memory(rows.data, table.name.c_str(), device); !s) return s;
        if (status s = check_memory(rows.index.data(), table.name.c_str(), device); !s) return s;
    }
    if (status s = detail::check_routes_given(needs, inputs.routes.size(), x.rows); !s) return s;
    if (!inputs.routes.empty())
        if (status s = check_memory(inputs.routes.data(), "routes", device); !s) return s;
    return detail::check_overlap(x, inputs, y);
}

// Clears the key that was read, no other: a call on another stream may have noted a smaller position since.
struct forget_body {
    refused_ids refused;
    unsigned long long seen;

    __device__ void operator()(std::size_t) const { atomicCAS(refused.key, seen, refused_ids::none); }
};
// Waits for the stream; then reads and clears the noted id.
inline status take_refused(const refused_ids& refused, unsigned long long& key, cudaStream_t stream) {
    const auto ended = [&] { return checked(cudaStreamSynchronize(stream), "synchronise"); };
    if (status s = check_idle(stream); !s) return s;
    if (status s = checked(cudaMemcpyAsync(&key, refused.key, sizeof key, cudaMemcpyDeviceToHost, stream),
                           "synchronise");
        !s)
        return s;
    if (status s = ended(); !s || key == refused_ids::none) return s;
    launches out(stream);
    for_elements(out, 1, forget_body{refused, key});
    if (status s = out.outcome(); !s) return s;
    return ended();
}

// The error for an id noted on the device, with the message of the other backends.
inline failure refusal_of(const call_needs& needs, unsigned long long key) {
    const auto id = static_cast<std::int32_t>(static_cast<std::uint32_t>(key));
    const std::string position = std::to_string(key >> 32 & 0x7FFFFFFFull);
    if (key >> 63 != 0)
        return {errc::token_id, needs.gathered.size() == 1 ? needs.gathered[0].name : "gathered",
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
