// Sums of products where a formula reads them, and what products know of the formula: a function to call.
#pragma once

#include <tiffin/config.hpp>

#include <concepts>
#include <cstddef>
#include <memory>

TIFFIN_BEGIN

namespace cpu_detail {

// The sums of some tokens and some outputs. Adjacent outputs of a weight lie side by side, `outputs` of them at most.
struct product_sums {
    const float* data;
    std::size_t outputs;
    std::size_t token_step;   // numbers from one token's to the next one's
    std::size_t panel_step;   // from adjacent outputs to the next ones
    std::size_t weight_step;  // from one weight's to the next one's
    std::size_t pair_step;    // the same from two weights to the next two, where there are more than three

    // Of weight 0.
    [[nodiscard]] const float* at(std::size_t token, std::size_t output) const noexcept {
        return data + output / outputs * panel_step + token * token_step + output % outputs;
    }
};

// The sums of a place in a view of Count products, a register of each; weights two by two where there are more than three.
template <class Machine, std::size_t Count>
struct register_sums {
    const float* data;
    std::size_t weight_step;
    std::size_t pair_step;

    template <std::size_t Number>
    [[nodiscard]] typename Machine::reg sum() const noexcept {
        if constexpr (Count <= 3)
            return Machine::load_aligned(data + Number * weight_step);
        else
            return Machine::load_aligned(data + Number / 2 * pair_step + Number % 2 * weight_step);
    }
};

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
