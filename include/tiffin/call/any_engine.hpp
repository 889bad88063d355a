// An engine of any kind behind one type: code that is common to all blocks is compiled once.
#pragma once

#include <tiffin/config.hpp>

#include <cstddef>
#include <utility>

TIFFIN_BEGIN

namespace detail {

// Call: the arguments of one run of a backend's engines.
template <class Call>
class any_engine {
public:
    virtual ~any_engine() = default;
    [[nodiscard]] virtual std::size_t workspace_bytes(std::size_t tokens,
                                                      std::size_t workers) const noexcept = 0;
    virtual void run(const Call& call) const = 0;
};

template <class Call, class Engine>
class engine_adapter final : public any_engine<Call> {
public:
    template <class... Given>
    explicit engine_adapter(Given&&... given) : engine_(std::forward<Given>(given)...) {}
    [[nodiscard]] std::size_t workspace_bytes(std::size_t tokens,
                                              std::size_t workers) const noexcept override {
        return engine_.workspace_bytes(tokens, workers);
    }
    void run(const Call& call) const override { engine_.run(call); }

private:
    Engine engine_;
};

}  // namespace detail

TIFFIN_END
