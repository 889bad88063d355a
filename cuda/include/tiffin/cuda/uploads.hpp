// The copies of a block's tensors to the device.
#pragma once

#include <tiffin/bind/stored_numbers.hpp>
#include <tiffin/bind/tensor_checks.hpp>
#include <tiffin/cuda/blas.hpp>
#include <tiffin/cuda/runtime.hpp>
#include <tiffin/format/concepts.hpp>
#include <tiffin/tensor.hpp>

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

TIFFIN_BEGIN

namespace cuda_detail {

// Makes a tensor readable by the host: in place, or copied to `memory`.
inline status bring_to_host(tensor_view& given, std::vector<std::byte>& memory, const std::string& name) {
    const bool scales_there = given.scales.data != nullptr && place_of(given.scales.data).device;
    if (!place_of(given.data).device && !scales_there) return {};
    if (given.scales.any())
        return failure(errc::dtype, name,
                       "is in device memory and has scales, which the host multiplies it by; give "
                       "both in host memory");
    memory.resize(bytes_of(given.type, given.shape.elements()));
    const void* const there = std::exchange(given.data, memory.data());
    return checked(cudaMemcpy(memory.data(), there, memory.size(), cudaMemcpyDeviceToHost), "weights", name);
}

// Copies tensors to the current device in the requested format; those that are there in it already are read in place.
// After the first error nothing more is copied, and pointers are null.
class uploads {
public:
    uploads(blas& by, int device) noexcept : blas_(&by), device_(device) {}

    // The cuBLASLt handle for dense products.
    [[nodiscard]] blas& products_by() const noexcept { return *blas_; }
    [[nodiscard]] const status& outcome() const noexcept { return outcome_; }
    // The memory of all copies.
    [[nodiscard]] std::vector<device_memory> take() noexcept { return std::move(held_); }

    // The tensor's values as Format; null where it was not given.
    template <codec Format>
    const typename Format::storage* numbers(const tensor_view& given) {
        using storage = typename Format::storage;
        if (given.data == nullptr || !outcome_) return nullptr;
        if (lies_on(device_, given.data) && is_stored_as<Format>(given.type) && !given.scales.any() &&
            reinterpret_cast<std::uintptr_t>(given.data) % alignof(storage) == 0)
            return static_cast<const storage*>(given.data);
        std::vector<std::byte> memory;
        const stored_numbers converted(on_host(given, memory), describe(Format{}), alignof(storage));
        return copy(reinterpret_cast<const storage*>(converted.data()), given.shape.elements());
    }
    // The same of a bank (experts, outputs, rank), transposed to (experts, rank, outputs): neighbouring threads compute
    // neighbouring outputs, so that their reads are adjacent.
    template <codec Format>
    const typename Format::storage* bank(const tensor_view& given) {
        if (given.data == nullptr || !outcome_) return nullptr;
        using storage = typename Format::storage;
        std::vector<std::byte> memory;
        const stored_numbers converted(on_host(given, memory), describe(Format{}), alignof(storage));
        const auto* const from = reinterpret_cast<const storage*>(converted.data());
        const std::size_t outputs = given.shape[1], rank = given.shape[2];
        std::vector<storage> turned(given.shape.elements());
        for (std::size_t i = 0; i < turned.size(); ++i) {
            const std::size_t expert = i / (outputs * rank), output = i / rank % outputs;
            turned[(expert * rank + i % rank) * outputs + output] = from[i];
        }
        return copy(turned.data(), turned.size());
    }
    // A scalar, which stays on the host.
    float scalar(const tensor_view& given) { return load_as_f32(given, 0); }
    // Copies host values. Null for none.
    template <class T>
    const T* copy(const T* from, std::size_t count) {
        if (count == 0 || !outcome_) return nullptr;
        auto memory = device_memory::make(count * sizeof(T), "weights");
        if (!memory) {
            note(memory.failure());
            return nullptr;
        }
        held_.push_back(*std::move(memory));
        note(checked(cudaMemcpy(held_.back().data(), from, count * sizeof(T), cudaMemcpyHostToDevice),
                     "weights"));
        return outcome_ ? held_.back().as<T>() : nullptr;
    }

private:
    tensor_view on_host(tensor_view given, std::vector<std::byte>& memory) {
        note(bring_to_host(given, memory, ""));
        return given;
    }
    void note(status s) { static_cast<void>(outcome_ = std::move(s)); }

    blas* blas_;
    int device_;
    status outcome_;
    std::vector<device_memory> held_;
};

// The given tensors, with those that prepare() reads copied to the host. Floating-point tensors on the device in
// `format` stay there, except single values.
class readable_weights {
public:
    static result<readable_weights> make(const weights& given, dtype format, int device) {
        readable_weights made;
        for (const weights::entry& e : given.entries()) {
            tensor_view t = e.tensor;
            const bool stays =
                t.type == format && !t.scales.any() && t.shape.elements() > 1 && lies_on(device, t.data);
            if (stays) made.staying_.push_back(e.name);
            if (t.data != nullptr && !stays)
                if (status s = bring_to_host(t, made.copies_.emplace_back(), e.name); !s) return s.failure();
            made.weights_.add(e.name, t);
        }
        return {std::move(made)};
    }
    [[nodiscard]] const weights& get() const noexcept { return weights_; }
    // Those that stay on the device.
    [[nodiscard]] const std::vector<std::string>& staying() const noexcept { return staying_; }

private:
    weights weights_;
    std::vector<std::string> staying_;
    std::vector<std::vector<std::byte>> copies_;
};

}  // namespace cuda_detail

TIFFIN_END
