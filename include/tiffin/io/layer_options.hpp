// The options of a layer file: strings by name, each to be asked for once.
#pragma once

#include <tiffin/activation/any_activation.hpp>
#include <tiffin/error.hpp>

#include <map>
#include <set>
#include <string>
#include <string_view>

TIFFIN_BEGIN
namespace io {

// The `__metadata__` of a layer file while its block is built. What nobody has asked for when the
// block is complete is an unknown option.
class layer_options {
public:
    explicit layer_options(const std::map<std::string, std::string>& metadata) : metadata_(metadata) {
        known_.insert("format");  // a convention of safetensors' own writers; says nothing of the block
    }

    // The option's text, or null where it is not given.
    const std::string* find(const std::string& key) {
        known_.insert(key);
        const auto it = metadata_.find(key);
        return it == metadata_.end() ? nullptr : &it->second;
    }

    // Sets an activation from the option `activation`; the default stays where it is not given.
    status read(any_activation& phi) {
        const std::string* const name = find("activation");
        if (name == nullptr) return {};
        const auto kind = activation_named(*name);
        if (!kind) {
            std::string all;
            for (const std::string_view known : activation_names)
                all.append(all.empty() ? "" : ", ").append(known);
            return failure{errc::option, "activation", "is '" + *name + "'; known are " + all};
        }
        phi.kind = *kind;
        return {};
    }

    // An error where an option was given that `block` has not asked for.
    [[nodiscard]] status check_all_known(std::string_view block) const {
        for (const auto& [key, value] : metadata_)
            if (!known_.contains(key))
                return failure{
                    errc::option, key,
                    "is not an option of block '" + std::string(block) + "' (its value is '" + value + "')"};
        return {};
    }

private:
    const std::map<std::string, std::string>& metadata_;
    std::set<std::string> known_;
};

}  // namespace io
TIFFIN_END
