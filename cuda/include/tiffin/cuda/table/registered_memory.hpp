// Host memory that a device reads over the bus.
#pragma once

#include <tiffin/cuda/runtime.hpp>

#include <cstddef>
#include <string>
#include <utility>

TIFFIN_BEGIN

namespace cuda_detail {

// Host memory that the device may read: the caller's, already pinned or registered for the lifetime of this object, or
// allocated here.
class registered_memory {
public:
    registered_memory() = default;
    static result<registered_memory> make(const void* data, std::size_t bytes, const char* where) {
        registered_memory made;
        void* const host = const_cast<void*>(data);
        // CUDA does not register memory twice.
        if (!place_of(data).pinned || !place_of(static_cast<const std::byte*>(data) + bytes - 1).pinned) {
            if (status s = pin(host, bytes, where); !s) return s.failure();
            made.held_ = held::registered;
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
        made.held_ = held::own;
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
        if (held_ == held::registered) static_cast<void>(cudaHostUnregister(host_));
        if (held_ == held::own) static_cast<void>(cudaFreeHost(host_));
    }
    void swap(registered_memory& other) noexcept {
        std::swap(host_, other.host_);
        std::swap(device_, other.device_);
        std::swap(held_, other.held_);
    }
    [[nodiscard]] std::byte* host() const noexcept { return static_cast<std::byte*>(host_); }
    [[nodiscard]] const std::byte* device() const noexcept { return static_cast<const std::byte*>(device_); }

private:
    enum class held { by_others, registered, own };

    static status pin(void* host, std::size_t bytes, const char* where) {
        int device = 0, reads_only = 0;
        if (status s = checked(cudaGetDevice(&device), where); !s) return s;
        if (status s = checked(
                cudaDeviceGetAttribute(&reads_only, cudaDevAttrHostRegisterReadOnlySupported, device), where);
            !s)
            return s;
        // A read-only mapped file has to be registered as read-only.
        unsigned flags = cudaHostRegisterMapped;
        if (reads_only != 0) flags |= cudaHostRegisterReadOnly;
        return checked(cudaHostRegister(host, bytes, flags), where,
                       "cannot register " + std::to_string(bytes) + " bytes");
    }

    void* host_ = nullptr;
    void* device_ = nullptr;
    held held_ = held::by_others;
};

}  // namespace cuda_detail

TIFFIN_END
