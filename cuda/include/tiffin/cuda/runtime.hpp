// The CUDA runtime with this library's errors: device memory, memory locations, kernel launches.
#pragma once

#include <tiffin/error.hpp>

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>

TIFFIN_BEGIN

namespace cuda_detail {

// A CUDA error as a failure, with CUDA's message.
inline failure refused(cudaError_t code, std::string where, const std::string& what = "") {
    return {
        errc::device, std::move(where),
        what + (what.empty() ? "" : ": ") + cudaGetErrorString(code) + " (" + cudaGetErrorName(code) + ")"};
}
inline status checked(cudaError_t code, const char* where, const std::string& what = "") {
    if (code == cudaSuccess) return {};
    static_cast<void>(cudaGetLastError());  // clears the error, so that the next call does not report it
    return refused(code, where, what);
}

// The location of memory: a device, or the host; a device can read pinned host memory.
struct memory_place {
    bool device = false;
    bool pinned = false;
    int number = 0;
    cudaError_t unknown = cudaSuccess;  // the error of the query, if any
};
inline memory_place place_of(const void* data) noexcept {
    cudaPointerAttributes found{};
    if (data == nullptr) return {};
    if (const cudaError_t code = cudaPointerGetAttributes(&found, data); code != cudaSuccess) {
        static_cast<void>(cudaGetLastError());
        return {false, false, 0, code};
    }
    return {found.type == cudaMemoryTypeDevice || found.type == cudaMemoryTypeManaged,
            found.type == cudaMemoryTypeHost, found.device};
}
// Whether memory is that of this device.
inline bool lies_on(int device, const void* data) noexcept {
    const memory_place place = place_of(data);
    return place.device && place.number == device;
}

// Bytes on the current device; uninitialised.
class device_memory {
public:
    device_memory() = default;
    static result<device_memory> make(std::size_t bytes, const char* where) {
        device_memory made;
        if (bytes == 0) return {std::move(made)};
        const cudaError_t code = cudaMalloc(&made.data_, bytes);
        if (code != cudaSuccess) {
            static_cast<void>(cudaGetLastError());
            return refused(code, where, "no " + std::to_string(bytes) + " bytes on the device");
        }
        made.size_ = bytes;
        return {std::move(made)};
    }
    device_memory(device_memory&& other) noexcept { swap(other); }
    device_memory& operator=(device_memory&& other) noexcept {
        device_memory(std::move(other)).swap(*this);
        return *this;
    }
    ~device_memory() {
        if (data_ != nullptr) static_cast<void>(cudaFree(data_));
    }
    void swap(device_memory& other) noexcept {
        std::swap(data_, other.data_);
        std::swap(size_, other.size_);
    }
    [[nodiscard]] std::byte* data() const noexcept { return static_cast<std::byte*>(data_); }
    template <class T>
    [[nodiscard]] T* as() const noexcept {
        return static_cast<T*>(data_);
    }
    [[nodiscard]] std::size_t size() const noexcept { return size_; }

private:
    void* data_ = nullptr;
    std::size_t size_ = 0;
};

// The launches of a call on its stream. After the first error nothing more is launched.
class launches {
public:
    explicit launches(cudaStream_t stream) noexcept : stream_(stream) {}
    [[nodiscard]] cudaStream_t stream() const noexcept { return stream_; }
    [[nodiscard]] bool going() const noexcept { return refusal_ == cudaSuccess; }
    [[nodiscard]] status outcome() const { return checked(refusal_, where_); }

    template <class... Parameters, class... Arguments>
    void kernel(std::size_t blocks, unsigned threads, void (*entry)(Parameters...),
                const Arguments&... arguments) noexcept {
        if (blocks == 0 || !going()) return;
        if (blocks > 0x7FFFFFFFu) return refuse(cudaErrorInvalidConfiguration, "launch");
        cudaLaunchConfig_t config{};
        config.gridDim = dim3(static_cast<unsigned>(blocks));
        config.blockDim = dim3(threads);
        config.stream = stream_;
        refuse(cudaLaunchKernelEx(&config, entry, Parameters(arguments)...), "launch");
    }
    // Keeps the first error of a CUDA call.
    void refuse(cudaError_t code, const char* where) noexcept {
        if (!going() || code == cudaSuccess) return;
        refusal_ = code;
        where_ = where;
    }

private:
    cudaStream_t stream_;
    cudaError_t refusal_ = cudaSuccess;
    const char* where_ = "";
};

}  // namespace cuda_detail

TIFFIN_END
