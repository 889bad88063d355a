#include "subject.hpp"

#include <unistd.h>

#include <algorithm>
#include <list>
#include <random>
#include <utility>

namespace tiffin_bench {

bench_options& options() {
    static bench_options only;
    return only;
}

std::map<std::string, subject_maker>& subject_makers() {
    static std::map<std::string, subject_maker> makers;
    return makers;
}

subject& subject_named(const std::string& name) {
    static std::list<std::pair<std::string, subject>> made;
    for (auto it = made.begin(); it != made.end(); ++it)
        if (it->first == name) {
            made.splice(made.begin(), made, it);
            return made.front().second;
        }
    const double most =
        0.5 * static_cast<double>(sysconf(_SC_PHYS_PAGES)) * static_cast<double>(sysconf(_SC_PAGE_SIZE));
    double total = 0;
    for (const auto& entry : made) total += entry.second.bytes;
    // One stays, as two are compared.
    while (made.size() > 1 && total > most) {
        total -= made.back().second.bytes;
        made.pop_back();
    }
    made.emplace_front(name, subject_makers().at(name).make());
    return made.front().second;
}

std::size_t layers_for(double dense_bytes) {
    if (options().layers > 0) return options().layers;
    const double enough = 3.0 * static_cast<double>(last_level_cache_bytes());
    return std::clamp<std::size_t>(static_cast<std::size_t>(enough / dense_bytes) + 1, 2, 64);
}

page_floats random_numbers(std::size_t count, std::uint32_t seed) {
    page_floats numbers(count);
    std::minstd_rand engine(seed + 1);
    for (std::size_t i = 0; i < count; ++i)
        numbers.data()[i] = (static_cast<float>(engine()) / 2147483648.0f - 0.5f) * 0.05f;
    return numbers;
}

}  // namespace tiffin_bench
