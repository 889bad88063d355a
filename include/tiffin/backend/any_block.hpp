// A block whose kind is known only at run time, inside others or by itself.
#pragma once

#include <tiffin/backend/any_engine.hpp>
#include <tiffin/backend/binding.hpp>
#include <tiffin/backend/call.hpp>
#include <tiffin/backend/engine/combined.hpp>
#include <tiffin/backend/reference/reference.hpp>

#include <algorithm>
#include <concepts>
#include <cstddef>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

TIFFIN_BEGIN

namespace detail {

// Where the engines of a backend run (see backend/engine/engine_of.hpp); the reference has no engines.
struct no_target {
    using call = call_arguments;
    using preparation = std::tuple<>;
};
template <class Backend>
struct target_of {
    using type = typename Backend::target;
};
template <class Number>
struct target_of<reference<Number>> {
    using type = no_target;
};

}  // namespace detail

// Any block behind one type, for one backend: stands wherever a block can, `mixture<any_router,
// any_block<simd<>>>` for one.
// Numerics, errors: those of the block held. Cost: a virtual call a call of the layer.
// Precondition of all but construction and assignment: it holds a block.
template <class Backend>
class any_block {
    using target = typename detail::target_of<Backend>::type;
    using any_engine = detail::any_engine<typename target::call>;
    struct interface;
    template <class Block>
    struct holder;

public:
    using runtime_block = void;

    any_block() = default;
    template <class Block>
        requires(!std::same_as<Block, any_block> && block_policy<Block>)
    explicit any_block(const Block& block) : held_(std::make_shared<const holder<Block>>(block)) {}

    constexpr std::tuple<> blocks() const noexcept { return {}; }

    result<binding> bind(binder& from, const std::string& prefix, const detail::size_seen& outer) const {
        return held_->bind(from, prefix, outer);
    }
    template <class Target>
    class engine {
    public:
        template <class... Preparation>
        engine(const any_block& block, const binding& bound, Preparation&... how)
            : made_(block.held_->make(bound, {how...})) {}
        [[nodiscard]] std::size_t workspace_bytes(std::size_t tokens, std::size_t workers) const noexcept {
            return made_->workspace_bytes(tokens, workers);
        }
        void run(const typename Target::call& call) const { made_->run(call); }

    private:
        std::unique_ptr<const detail::any_engine<typename Target::call>> made_;
    };
    // In the reference.
    void evaluate(const binding& bound, const token_arguments<double>& token, const double* x, double* y,
                  double* scratch) const {
        held_->evaluate(bound, token, x, y, scratch);
    }
    [[nodiscard]] std::size_t scratch(const binding& bound) const { return held_->scratch(bound); }

private:
    struct interface {
        virtual ~interface() = default;
        virtual result<binding> bind(binder&, const std::string&, const detail::size_seen&) const = 0;
        [[nodiscard]] virtual std::unique_ptr<const any_engine> make(
            const binding&, const typename target::preparation&) const = 0;
        virtual void evaluate(const binding&, const token_arguments<double>&, const double*, double*,
                              double*) const = 0;
        [[nodiscard]] virtual std::size_t scratch(const binding&) const = 0;
    };
    static constexpr bool is_reference = std::same_as<Backend, reference<double>>;

    template <class Block>
    struct holder final : interface {
        explicit holder(const Block& b) : block(b) {}
        result<binding> bind(binder& from, const std::string& prefix,
                             const detail::size_seen& outer) const override {
            return bind_block(block, from, prefix, outer);
        }
        [[nodiscard]] std::unique_ptr<const any_engine> make(
            [[maybe_unused]] const binding& bound,
            [[maybe_unused]] const typename target::preparation& how) const override {
            if constexpr (is_reference) {
                return nullptr;
            } else {
                using held =
                    detail::held_engine<typename target::call, engine_detail::engine_of<target, Block>>;
                return std::apply(
                    [&](auto&... each) -> std::unique_ptr<const any_engine> {
                        return std::make_unique<const held>(block, bound, each...);
                    },
                    how);
            }
        }
        void evaluate([[maybe_unused]] const binding& bound,
                      [[maybe_unused]] const token_arguments<double>& token, [[maybe_unused]] const double* x,
                      [[maybe_unused]] double* y, [[maybe_unused]] double* scratch) const override {
            if constexpr (is_reference) reference_detail::evaluate_block(block, bound, token, x, y, scratch);
        }
        [[nodiscard]] std::size_t scratch([[maybe_unused]] const binding& bound) const override {
            if constexpr (is_reference)
                return reference_detail::block_scratch(block, bound);
            else
                return 0;
        }
        Block block;
    };

    std::shared_ptr<const interface> held_;
};

// parallel<...> with as many branches as are found at run time.
template <class Backend>
class any_parallel {
    template <class Target>
    using engines_on = std::vector<typename any_block<Backend>::template engine<Target>>;

public:
    using runtime_block = void;

    any_parallel() = default;
    explicit any_parallel(std::vector<any_block<Backend>> branches) : branches_(std::move(branches)) {}

    constexpr std::tuple<> blocks() const noexcept { return {}; }

    result<binding> bind(binder& from, const std::string& prefix, const detail::size_seen& outer) const {
        binding bound;
        detail::size_seen told = outer;
        for (std::size_t i = 0; i < branches_.size(); ++i)
            if (status s = detail::bind_branch(branches_[i], i, from, prefix, told, bound); !s)
                return s.failure();
        return bound;
    }
    template <class Target>
    class engine : public engine_detail::branches_engine<Target, engines_on<Target>> {
    public:
        template <class... Preparation>
        engine(const any_parallel& block, const binding& bound, Preparation&... how)
            : engine_detail::branches_engine<Target, engines_on<Target>>(make(block, bound, how...), bound) {}

    private:
        template <class... Preparation>
        static engines_on<Target> make(const any_parallel& block, const binding& bound, Preparation&... how) {
            engines_on<Target> made;
            for (std::size_t i = 0; i < block.branches_.size(); ++i)
                made.emplace_back(block.branches_[i], bound.parts[i], how...);
            return made;
        }
    };
    void evaluate(const binding& bound, const token_arguments<double>& token, const double* x, double* y,
                  double* scratch) const {
        choice<double>* routes = token.routes;
        for (std::size_t i = 0; i < branches_.size(); ++i) {
            token_arguments<double> inner = token;
            inner.routes = bound.parts[i].choices > 0 ? std::exchange(routes, nullptr) : nullptr;
            double* const to = i == 0 ? y : scratch;
            branches_[i].evaluate(bound.parts[i], inner, x, to, scratch + bound.d_model);
            if (i > 0)
                for (std::size_t j = 0; j < bound.d_model; ++j) y[j] += to[j];
        }
    }
    [[nodiscard]] std::size_t scratch(const binding& bound) const {
        std::size_t most = 0;
        for (std::size_t i = 0; i < branches_.size(); ++i)
            most = std::max(most, branches_[i].scratch(bound.parts[i]));
        return bound.d_model + most;
    }

private:
    std::vector<any_block<Backend>> branches_;
};

TIFFIN_END
