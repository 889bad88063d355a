// Writable memory of the caller, by tensor name.
#pragma once

#include <tiffin/config.hpp>
#include <tiffin/tensor.hpp>

#include <string>
#include <string_view>
#include <utility>
#include <vector>

TIFFIN_BEGIN

// Destinations by tensor name: for gradients to accumulate, initial values to write, weights that an optimizer updates.
// Views only; the memory is the caller's. Cost: find() is a linear search.
//
//     tiffin::named_memory<float> values;
//     values.add("down_proj.weight", down.data(), {d_model, d_ff});
template <class Number>
class named_memory {
public:
    struct entry {
        std::string name;
        Number* data;
        tiffin::shape shape;
    };
    named_memory& add(std::string name, Number* data, tiffin::shape sizes) {
        entries_.push_back({std::move(name), data, sizes});
        return *this;
    }
    [[nodiscard]] const std::vector<entry>& entries() const noexcept { return entries_; }
    // Null if there is no entry of that name.
    [[nodiscard]] const entry* find(std::string_view name) const noexcept {
        for (const entry& e : entries_)
            if (e.name == name) return &e;
        return nullptr;
    }

private:
    std::vector<entry> entries_;
};

TIFFIN_END
