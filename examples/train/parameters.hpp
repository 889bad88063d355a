// The numbers of a model by name: what learns, and the integers that go with it.
#pragma once

#include <tiffin/aligned_buffer.hpp>
#include <tiffin/named_memory.hpp>
#include <tiffin/tensor.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <string>
#include <string_view>
#include <utility>

class parameters {
public:
    struct tensor {
        std::string name;
        tiffin::dtype type;  // F32, or I32 for what does not learn
        tiffin::shape shape;
        tiffin::aligned_buffer memory;
    };

    // Zeroed. Names are given once.
    float* add(std::string name, const tiffin::shape& sizes) {
        return static_cast<float*>(add(std::move(name), tiffin::dtype::f32, sizes));
    }
    std::int32_t* add_integers(std::string name, const tiffin::shape& sizes) {
        return static_cast<std::int32_t*>(add(std::move(name), tiffin::dtype::i32, sizes));
    }

    [[nodiscard]] const std::deque<tensor>& all() const { return tensors_; }
    // Numbers that learn.
    [[nodiscard]] std::size_t count() const {
        std::size_t n = 0;
        for (const tensor& t : tensors_)
            if (t.type == tiffin::dtype::f32) n += t.shape.elements();
        return n;
    }
    // Those whose names begin with `prefix`, without it: the weights of a layer.
    [[nodiscard]] tiffin::weights behind(std::string_view prefix) const {
        tiffin::weights some;
        for (const tensor& t : tensors_)
            if (t.name.starts_with(prefix))
                some.add(t.name.substr(prefix.size()), tiffin::tensor_view{t.memory.data(), t.type, t.shape});
        return some;
    }
    // All that learns, by whole names.
    [[nodiscard]] tiffin::named_memory<float> memory() {
        tiffin::named_memory<float> all;
        for (tensor& t : tensors_)
            if (t.type == tiffin::dtype::f32) all.add(t.name, t.memory.as<float>(), t.shape);
        return all;
    }

private:
    void* add(std::string name, tiffin::dtype type, const tiffin::shape& sizes) {
        const std::size_t bytes = sizes.elements() * tiffin::size_of(type);
        tensor& made =
            tensors_.emplace_back(tensor{std::move(name), type, sizes, tiffin::aligned_buffer(bytes)});
        std::fill_n(made.memory.data(), bytes, std::byte{0});
        return made.memory.data();
    }
    std::deque<tensor> tensors_;
};
