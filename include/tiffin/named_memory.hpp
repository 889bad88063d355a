// Memory of the caller's that is written to, by the names of tensors.
#pragma once

#include <tiffin/config.hpp>
#include <tiffin/tensor.hpp>

#include <string>
#include <string_view>
#include <utility>
#include <vector>

TIFFIN_BEGIN

// Where gradients are added up, starting values are written, an optimizer changes weights: names, pointers and shapes.
// Views only; the memory is the caller's. Cost: find() looks at one name after the other.
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
    // Null where there is none of that name.
    [[nodiscard]] const entry* find(std::string_view name) const noexcept {
        for (const entry& e : entries_)
            if (e.name == name) return &e;
        return nullptr;
    }

private:
    std::vector<entry> entries_;
};

TIFFIN_END
