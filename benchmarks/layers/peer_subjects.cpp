#include "peer_subjects.hpp"

#include "../peers.hpp"
#include "measuring.hpp"

#include <memory>
#include <vector>

namespace tiffin_bench {
namespace {

subject make_peer_subject(const dense_peer_kind& kind, const shape& s) {
    struct state {
        std::vector<page_floats> memory;
        std::unique_ptr<dense_peer> peer;
    };
    const auto held = std::make_shared<state>();
    subject made;
    const std::size_t size = s.d_model * s.d_ff;
    const double bytes = 3 * kind.bytes_per_weight * static_cast<double>(size);
    made.layers = layers_for(bytes);
    // A copy of its own may be one of the same numbers in each layer.
    const std::size_t given = kind.reads_in_place ? made.layers : 1;
    for (std::size_t i = 0; i < 3 * given; ++i)
        held->memory.push_back(random_numbers(size, static_cast<std::uint32_t>(i)));
    const auto tensor = [held, given](std::size_t which) {
        return [memory = std::weak_ptr(held), given, which](std::size_t i) {
            return static_cast<const float*>(memory.lock()->memory[3 * (i % given) + which].data());
        };
    };
    held->peer =
        kind.make({s.d_model, s.d_ff, made.layers}, options().threads, {tensor(0), tensor(1), tensor(2)});
    made.bytes = bytes * static_cast<double>(made.layers) + 12.0 * static_cast<double>(size * given);
    made.warm_up = [held](std::size_t tokens) { held->peer->prepare(tokens); };
    made.run = [held](std::size_t i, const float* x, const std::int32_t*, std::size_t tokens, float* y,
                      const tiffin::executor_ref&) { held->peer->run(i, x, tokens, y); };
    return made;
}

}  // namespace

std::string peer_name(const std::string& library, const std::string& format, const shape& s) {
    return "peer/" + library + "/swiglu/" + format + "/" + name_of(s);
}

void add_peers(const shape& s) {
    for (const dense_peer_kind& kind : dense_peer_kinds()) {
        if (s.d_model % kind.multiple != 0 || s.d_ff % kind.multiple != 0) continue;
        const auto work = [=, bytes = kind.bytes_per_weight](std::size_t tokens) {
            const auto weights = 3 * static_cast<double>(s.d_model * s.d_ff);
            return work_per_call{2 * weights * static_cast<double>(tokens), bytes * weights};
        };
        add_subject(
            peer_name(kind.library, kind.format, s),
            {.make = [=] { return make_peer_subject(kind, s); }, .work = work, .kind = kind.products});
    }
}

}  // namespace tiffin_bench
