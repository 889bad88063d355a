// How the registers of a source's tensors are read on the host.
#pragma once

#include <tiffin/aligned_buffer.hpp>
#include <tiffin/bind/preparation.hpp>
#include <tiffin/engine/view.hpp>
#include <tiffin/tensor.hpp>

#include <cstddef>

TIFFIN_BEGIN

namespace cpu_detail {

// Features of a bank that lie together, so that a group of panels reads one piece of an expert.
inline constexpr std::size_t bank_group = 128;

// How registers of a source's tensors are read.
template <class Machine>
struct host_numbers : Machine {
    using reg = typename Machine::reg;
    struct bank_row {
        const float* first;
        std::size_t step;  // from one rank number's to the next
    };

    static reg load_vector(const float* from, std::size_t feature, std::size_t) noexcept {
        return Machine::load_aligned(from + feature);
    }
    static reg load_given(const float* from, std::size_t count) noexcept {
        return Machine::load(from, count);
    }
    static reg load_bank(const float* from, std::size_t) noexcept { return Machine::load_aligned(from); }
    static bank_row bank(const engine_detail::slot& s, std::size_t expert, std::size_t /*outputs*/,
                         std::size_t feature) noexcept {
        const std::size_t group = feature / bank_group * s.experts + expert;
        return {static_cast<const float*>(s.numbers) + group * s.rank * bank_group + feature % bank_group,
                bank_group};
    }
};

// B (experts, outputs, rank) as (group of features, expert, r, feature), the last group filled with 0.
class packed_bank {
public:
    packed_bank(const tensor_view& b, const preparation& how) {
        const std::size_t experts = b.shape[0], outputs = b.shape[1], rank = b.shape[2];
        const std::size_t groups = (outputs + bank_group - 1) / bank_group;
        numbers_ = aligned_buffer(groups * experts * rank * bank_group * sizeof(float));
        auto* to = numbers_.as<float>();
        for (std::size_t g = 0; g < groups; ++g)
            for (std::size_t e = 0; e < experts; ++e)
                for (std::size_t r = 0; r < rank; ++r)
                    for (std::size_t j = 0; j < bank_group; ++j) {
                        const std::size_t feature = g * bank_group + j;
                        *to++ = feature < outputs
                                    ? load_as_f32(b.data, b.type, (e * outputs + feature) * rank + r)
                                    : 0.0f;
                    }
        how.hold(numbers_.size());
        how.done(b);
    }
    [[nodiscard]] const float* data() const noexcept { return numbers_.as<float>(); }

private:
    aligned_buffer numbers_;
};

}  // namespace cpu_detail

TIFFIN_END
