// Memory of the host that a device reads over the bus.
#pragma once

#include <tiffin/cuda/runtime.hpp>

#include <cstddef>
#include <string>
#include <utility>

TIFFIN_BEGIN

namespace cuda_detail {

// Memory of the host that the device may read: the caller's, registered, or our own.
class registered_memory {
public:
    registered_memory() = default;
    static result<registered_memory> make(const void* data, std::size_t bytes, const char* where) {
        registered_memory made;
        void* const host = const_cast<void*>(data);
        if (const cudaError_t code = cudaHostRegister(host, bytes, cudaHostRegisterMapped);
            code != cudaSuccess) {
            static_cast<void>(cudaGetLastError());
            return refused(code, where, "cannot register " + std::to_string(bytes) + " bytes");
        }
        made.host_ = host;
        if (status s = checked(cudaHostGetDevicePointer(&made.device_, host, 0), where); !s)
            return s.failure();
        return {std::move(made)};
    }
    static result<registered_memory> make(std::size_t bytes, const char* where) {
        registered_memory made;
        if (const cudaError_t code = cudaHostAlloc(&made.host_, bytes, cudaHostAllocMapped);
            code != cudaSuccess) {
            static_cast<void>(cudaGetLastError());
            return refused(code, where, "no " + std::to_string(bytes) + " bytes of host memory");
        }
        made.own_ = true;
        if (status s = checked(cudaHostGetDevicePointer(&made.device_, made.host_, 0), where); !s)
            return s.failure();
        return {std::move(made)};
    }
    registered_memory(registered_memory&& other) noexcept { swap(other); }
    registered_memory& operator=(registered_memory&& other) noexcept {
        registered_memory(std::move(other)).swap(*this);
        return *this;
    }
    ~registered_memory() {
        if (host_ != nullptr) static_cast<void>(own_ ? cudaFreeHost(host_) : cudaHostUnregister(host_));
    }
    void swap(registered_memory& other) noexcept {
        std::swap(host_, other.host_);
        std::swap(device_, other.device_);
        std::swap(own_, other.own_);
    }
    [[nodiscard]] std::byte* host() const noexcept { return static_cast<std::byte*>(host_); }
    [[nodiscard]] const std::byte* device() const noexcept { return static_cast<const std::byte*>(device_); }

private:
    void* host_ = nullptr;
    void* device_ = nullptr;
    bool own_ = false;
};

}  // namespace cuda_detail

TIFFIN_END
