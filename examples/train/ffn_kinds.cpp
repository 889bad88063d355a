#include "ffn_kinds.hpp"

#include <stdexcept>

const std::vector<ffn_kind>& ffn_kinds() {
    static const std::vector<ffn_kind> all = [] {
        std::vector<ffn_kind> made;
        for (const auto& some : {dense_kinds(), routed_kinds(), modulated_kinds()})
            made.insert(made.end(), some.begin(), some.end());
        return made;
    }();
    return all;
}

const ffn_kind& ffn_kind_of(const std::string& name) {
    std::string names;
    for (const ffn_kind& kind : ffn_kinds()) {
        if (kind.name == name) return kind;
        names += (names.empty() ? "" : ", ") + kind.name;
    }
    throw std::invalid_argument("'" + name + "' is no kind of FFN; known are " + names + ", and none");
}
