// The outer half B of a low-rank bank, packed for the host.
#pragma once

#include <tiffin/aligned_buffer.hpp>
#include <tiffin/bind/preparation.hpp>
#include <tiffin/tensor.hpp>

#include <cstddef>
#include <vector>

TIFFIN_BEGIN

namespace cpu_detail {

// Features of a bank stored together, so that a group of panels reads one contiguous piece per expert.
inline constexpr std::size_t bank_group = 128;

// B (experts, outputs, rank) as (group of features, expert, r, feature), the last group filled with 0.
class packed_bank {
public:
    packed_bank(const tensor_view& b, const preparation& how) : experts_(b.shape[0]), rank_(b.shape[2]) {
        const std::size_t experts = b.shape[0], outputs = b.shape[1], rank = b.shape[2];
        const std::size_t groups = (outputs + bank_group - 1) / bank_group;
        numbers_ = aligned_buffer(groups * experts * rank * bank_group * sizeof(float));
        auto* to = numbers_.as<float>();
        std::vector<float> row(rank);
        for (std::size_t g = 0; g < groups; ++g)
            for (std::size_t e = 0; e < experts; ++e, to += rank * bank_group)
                for (std::size_t j = 0; j < bank_group; ++j) {
                    const std::size_t feature = g * bank_group + j;
                    if (feature < outputs) read_as_f32(b, (e * outputs + feature) * rank, rank, row.data());
                    for (std::size_t r = 0; r < rank; ++r)
                        to[r * bank_group + j] = feature < outputs ? row[r] : 0.0f;
                }
        how.hold(numbers_.size());
        how.done(b);
    }
    // The values of rank index 0; those of each next index follow bank_group floats later.
    [[nodiscard]] const float* at(std::size_t expert, std::size_t feature) const noexcept {
        const std::size_t group = feature / bank_group * experts_ + expert;
        return numbers_.as<float>() + group * rank_ * bank_group + feature % bank_group;
    }

private:
    std::size_t experts_, rank_;
    aligned_buffer numbers_;
};

}  // namespace cpu_detail

TIFFIN_END
