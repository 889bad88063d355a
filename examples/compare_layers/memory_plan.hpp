// Which layers are in memory together, so that all of them need no more than a limit.
#pragma once

#include <algorithm>
#include <cstddef>
#include <vector>

// Bytes of a layer: while it is made (its tensors as given and packed) and when it is ready. `read`: those of a
// call of one token.
struct layer_bytes {
    double making = 0, held = 0, read = 0;
};

struct memory_plan {
    struct group {
        std::vector<std::size_t> layers;  // beside the first of all, which is held all the time
        double held = 0;
        double sweep =
            0;  // bytes of other memory that are read in a round, to have the layers out of the caches
    };
    std::vector<group> groups;
    double peak = 0;        // of all
    bool all_swept = true;  // whether a round reads `to_read` in every group

    // `others`: bytes of everything else. `to_read`: bytes that are to be read between two calls of a layer.
    // A layer that exceeds the limit by itself is alone beside the first.
    static memory_plan of(const std::vector<layer_bytes>& layers, double others, double to_read,
                          double limit) {
        memory_plan plan;
        const layer_bytes& first = layers[0];
        plan.peak = others + first.making;
        double read = 0;
        const auto close = [&] {
            group& last = plan.groups.back();
            last.held += others + first.held;
            const double missing = std::max(0.0, to_read - read);
            last.sweep = std::min(missing, std::max(0.0, std::max(limit, plan.peak) - last.held));
            plan.all_swept = plan.all_swept && last.sweep >= missing;
            plan.peak = std::max(plan.peak, last.held + last.sweep);
        };
        for (std::size_t i = 1; i < layers.size(); ++i) {
            // With a layer that reads less than it holds there may be no room left for the sweep.
            const auto fits = [&] {
                if (plan.groups.empty()) return false;
                const double held = others + first.held + plan.groups.back().held;
                const double missing = std::max(0.0, to_read - read - layers[i].read);
                return held + std::max(layers[i].making, layers[i].held + missing) <= limit;
            };
            if (!fits()) {
                if (!plan.groups.empty()) close();
                plan.groups.emplace_back();
                read = first.read;
            }
            group& last = plan.groups.back();
            plan.peak = std::max(plan.peak, others + first.held + last.held + layers[i].making);
            last.layers.push_back(i);
            last.held += layers[i].held;
            read += layers[i].read;
        }
        if (plan.groups.empty()) {
            plan.groups.emplace_back();
            read = first.read;
        }
        close();
        return plan;
    }
};
