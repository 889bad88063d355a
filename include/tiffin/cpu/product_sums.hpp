// Sums of products as a formula reads them, and the epilogue that products call.
#pragma once

#include <tiffin/config.hpp>

#include <concepts>
#include <cstddef>
#include <memory>

TIFFIN_BEGIN

namespace cpu_detail {

// The sums of some tokens and outputs of one weight, in panels of at most `outputs` adjacent, contiguous outputs.
struct weight_sums {
    const float* data;
    std::size_t outputs;
    std::size_t token_step;  // floats from one token to the next
    std::size_t panel_step;  // floats from one panel to the next

    [[nodiscard]] const float* at(std::size_t token, std::size_t output) const noexcept {
        return data + output / outputs * panel_step + token * token_step + output % outputs;
    }
};

// The sums of several weights, which are multiplied in pairs.
struct product_sums {
    weight_sums first;        // weight 0
    std::size_t weight_step;  // floats from weight 0 to weight 1
    std::size_t pair_step;    // floats from one pair of weights to the next
    weight_sums last;         // of the last weight of an odd number, where it is not the first
};

// Most outputs that are finished together; most values of a block that a formula is evaluated over.
inline constexpr std::size_t finished_at_once = 256, block_numbers = 1024;

// An epilogue, called as soon as sums are complete: finish(first token, tokens, first output, outputs, sums), on any
// thread, once for every token and output. A reference: the function must outlive the products' run.
class epilogue_ref {
public:
    template <class Finish>
        requires(!std::same_as<Finish, epilogue_ref>)
    epilogue_ref(const Finish& finish)
    noexcept
        : object_(std::addressof(finish)),
          call_([](const void* object, std::size_t token, std::size_t tokens, std::size_t output,
                   std::size_t outputs, const product_sums& sums) noexcept {
              (*static_cast<const Finish*>(object))(token, tokens, output, outputs, sums);
          }) {}
    void operator()(std::size_t token, std::size_t tokens, std::size_t output, std::size_t outputs,
                    const product_sums& sums) const noexcept {
        call_(object_, token, tokens, output, outputs, sums);
    }

private:
    const void* object_;
    void (*call_)(const void*, std::size_t, std::size_t, std::size_t, std::size_t,
                  const product_sums&) noexcept;
};

}  // namespace cpu_detail

TIFFIN_END
