// The layers compared, on a CUDA device, for a program that a CUDA compiler need not read.
#pragma once

#include <tiffin/tensor.hpp>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

// Copies of one layer that together exceed the device's cache, and the text's activations and ids there.
class layers_on_device {
public:
    virtual ~layers_on_device() = default;
    // y of tokens [first, first + count), by the next copy; waits for it.
    virtual void call(std::size_t first, std::size_t count) = 0;
    // The rows of y that the last call wrote.
    [[nodiscard]] virtual std::vector<float> output(std::size_t count) const = 0;
    // The experts of every token of the text.
    [[nodiscard]] virtual std::vector<std::int32_t> routes() = 0;
    [[nodiscard]] virtual std::size_t choices() const = 0;
    [[nodiscard]] virtual std::size_t copies() const = 0;
};

// What a layer is made of, and the text: x (ids, d_model). `batch`: the most tokens of a call.
struct device_job {
    const tiffin::weights& given;
    const std::vector<bool>& tables;  // which of the tensors all copies share
    double dense_bytes;               // of one copy
    const std::vector<float>& x;
    const std::vector<std::int32_t>& ids;
    const std::vector<float>& beside;  // (ids, given_width): rows that calls give beside x
    std::size_t d_model;
    std::size_t batch;
};

// The layer that a text names, one of support/blocks_on_device.hpp. Throws where it is none of these.
std::unique_ptr<layers_on_device> make_layers_on_device(const std::string& composition,
                                                        const device_job& job);
