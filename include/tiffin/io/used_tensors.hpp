// What a reader has used of a model's tensors: what is left of its part, or beside a weight, is refused by name.
#pragma once

#include <tiffin/error.hpp>
#include <tiffin/io/quantised_parts.hpp>

#include <functional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

TIFFIN_BEGIN
namespace io::detail {

// Other parts of the model are in nobody's way.
class used_tensors {
public:
    // `owner`: what has the tensors, in messages, such as "the memory of 'qwen4exp'".
    explicit used_tensors(std::string owner) : owner_(std::move(owner)) {}

    // All tensors whose names begin so are of this part.
    void own(std::string prefix) {
        if (!owns(prefix)) owned_.push_back(std::move(prefix));
    }
    // Of a `<stem>.weight`, all that has the stem is of this part too: scales, zero points, a bias.
    void add(const std::string& name) {
        if (name.ends_with(".weight")) own(name.substr(0, name.rfind('.') + 1));
        used_.insert(name);
    }
    [[nodiscard]] failure unused(std::string_view name) const { return unused_failure(name, owner_); }
    // Errors: errc::unused_tensor for a tensor of this part that has not been used, with its meaning where it is known.
    [[nodiscard]] status check(std::string_view name) const {
        if (!owns(name) || used_.contains(name)) return {};
        return unused(name);
    }

private:
    [[nodiscard]] bool owns(std::string_view name) const {
        for (const std::string& prefix : owned_)
            if (name.starts_with(prefix)) return true;
        return false;
    }

    std::string owner_;
    std::vector<std::string> owned_;
    std::set<std::string, std::less<>> used_;
};

}  // namespace io::detail
TIFFIN_END
