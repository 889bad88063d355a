// Sums of products where a formula reads them, and what products know of the formula: a function to call.
#pragma once

#include <tiffin/config.hpp>

#include <concepts>
#include <cstddef>
#include <memory>

TIFFIN_BEGIN

namespace cpu_detail {

// The sums of some tokens and some outputs of a weight. Adjacent outputs lie side by side, `outputs` of them at most.
struct weight_sums {
    const float* data;
    std::size_t outputs;
    std::size_t token_step;  // numbers from one token's to the next one's
    std::size_t panel_step;  // from adjacent outputs to the next ones

    [[nodiscard]] const float* at(std::size_t token, std::size_t output) const noexcept {
        return data + output / outputs * panel_step + token * token_step + output % outputs;
    }
};

// Of several weights, which are multiplied two by two.
struct product_sums {
    weight_sums first;        // weight 0
    std::size_t weight_step;  // from it to weight 1
    std::size_t pair_step;    // from two weights to the next two
    weight_sums last;         // of an odd number of weights the last, where it is not the first
};

// Outputs that are finished together: at most so many; and numbers of a block that a formula is evaluated over.
inline constexpr std::size_t finished_at_once = 256, block_numbers = 1024;

// What is done with sums as soon as they are there: finish(first token, tokens, first output, outputs, sums), on any
// thread, for every token and output once. A reference: it must outlive the products' run.
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
