// The parts of a mixture, prepared: its router, its experts, and the block that all tokens go through.
#pragma once

#include <tiffin/cuda/engine/rows.hpp>

#include <algorithm>
#include <cstddef>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

TIFFIN_BEGIN

namespace engine_detail {

// Target's mixture class holds these parts; it groups the tokens and mixes the rows (cuda/mixture.hpp).
template <class Target, class Source>
struct mixture_parts {
    static constexpr bool has_shared = part_count<Source> > 0;
    using expert = std::remove_cvref_t<decltype(std::declval<const Source&>().repeated(0))>;

    mixture_parts(const Source& source, const bound_node& bound, const source_sizes& of,
                  typename Target::preparation& how)
        : sizes(of),
          recorded(bound.recorded),
          router(source.router, bound, own_kinds<Source>, of.inputs, how),
          shared(source.parts(), bound, of, how) {
        for (std::size_t e = 0, part = has_shared; part < bound.parts.size(); ++e, ++part)
            experts.emplace_back(source.repeated(e), bound.parts[part], of, how);
    }
    [[nodiscard]] std::size_t workspace_bytes(std::size_t tokens, std::size_t workers) const noexcept {
        std::size_t most =
            std::max(router.workspace_bytes(tokens, workers), shared.workspace_bytes(tokens, workers));
        for (const auto& e : experts) most = std::max(most, e.workspace_bytes(tokens, workers));
        return most;
    }

    // The shared block, where there is one.
    template <class Parts>
    struct shared_rows {
        shared_rows(const Parts&, const bound_node&, const source_sizes&, typename Target::preparation&) {}
        static constexpr std::size_t workspace_bytes(std::size_t, std::size_t) noexcept { return 0; }
    };
    template <class Block>
    struct shared_rows<std::tuple<const Block&>> : rows<Target, Block> {
        shared_rows(const std::tuple<const Block&>& parts, const bound_node& bound, const source_sizes& of,
                    typename Target::preparation& how)
            : rows<Target, Block>(std::get<0>(parts), bound.parts[0], of, how) {}
    };

    source_sizes sizes;
    bool recorded;
    typename Target::template router<detail::router_of<Source>> router;
    shared_rows<parts_of<Source>> shared;
    std::vector<rows<Target, expert>> experts;
};

}  // namespace engine_detail

TIFFIN_END
