// A block whose kind is known only at run time, inside others or by itself.
#pragma once

#include <tiffin/backend/binding.hpp>
#include <tiffin/backend/eigen/eigen.hpp>
#include <tiffin/backend/fused/engine.hpp>
#include <tiffin/backend/reference/reference.hpp>
#include <tiffin/backend/simd/simd.hpp>

#include <algorithm>
#include <concepts>
#include <cstddef>
#include <memory>
#include <string>
#include <utility>
#include <vector>

TIFFIN_BEGIN

namespace detail {

// What a block is computed with in a backend: the machine of its fused stages, or the reference.
template <class Backend>
struct machine_of {
    using type = void;
};
template <class Weights, class Tables, class Activations, class Arch>
struct machine_of<simd<Weights, Tables, Activations, Arch>> {
    using type = simd_detail::machine<Weights, Tables, Activations, Arch>;
};
template <>
struct machine_of<eigen> {
    using type = eigen_detail::machine;
};

// How the engines of a backend are made and called. A backend with memory of its own has one of its own.
template <class Backend>
struct engines_of {
    using call = call_arguments;
    struct preparation {};
    template <class Block>
    using engine = fused_detail::engine_of<typename machine_of<Backend>::type, Block>;
    template <class Engines>
    using branches = fused_detail::branches_engine<typename machine_of<Backend>::type, Engines>;

    template <class Block>
    static engine<Block> make(const Block& block, const binding& bound, preparation&) {
        return engine<Block>(block, bound);
    }
};

// A prepared block of any kind in one backend.
template <class Backend>
class any_engine {
public:
    virtual ~any_engine() = default;
    [[nodiscard]] virtual std::size_t workspace_bytes(std::size_t, std::size_t) const noexcept = 0;
    virtual void run(const typename engines_of<Backend>::call& call) const = 0;
};

template <class Backend, class Block>
class held_engine final : public any_engine<Backend> {
public:
    held_engine(const Block& block, const binding& bound, typename engines_of<Backend>::preparation& how)
        : engine_(engines_of<Backend>::make(block, bound, how)) {}
    [[nodiscard]] std::size_t workspace_bytes(std::size_t tokens,
                                              std::size_t workers) const noexcept override {
        return engine_.workspace_bytes(tokens, workers);
    }
    void run(const typename engines_of<Backend>::call& call) const override { engine_.run(call); }

private:
    typename engines_of<Backend>::template engine<Block> engine_;
};

}  // namespace detail

// Any block behind one type, for one backend: stands wherever a block can, `mixture<any_router,
// any_block<simd<>>>` for one.
// Numerics, errors: those of the block held. Cost: a virtual call a call of the layer.
// Precondition of all but construction and assignment: it holds a block.
template <class Backend>
class any_block {
    using engines = detail::engines_of<Backend>;
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
    template <class Machine>
    class engine {
    public:
        engine(const any_block& block, const binding& bound, typename engines::preparation& how)
            : made_(block.held_->make(bound, how)) {}
        engine(const any_block& block, const binding& bound, typename engines::preparation&& how = {})
            : made_(block.held_->make(bound, how)) {}
        [[nodiscard]] std::size_t workspace_bytes(std::size_t tokens, std::size_t workers) const noexcept {
            return made_->workspace_bytes(tokens, workers);
        }
        void run(const typename engines::call& call) const { made_->run(call); }

    private:
        std::unique_ptr<const detail::any_engine<Backend>> made_;
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
        [[nodiscard]] virtual std::unique_ptr<const detail::any_engine<Backend>> make(
            const binding&, typename engines::preparation&) const = 0;
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
        [[nodiscard]] std::unique_ptr<const detail::any_engine<Backend>> make(
            [[maybe_unused]] const binding& bound,
            [[maybe_unused]] typename engines::preparation& how) const override {
            if constexpr (is_reference)
                return nullptr;
            else
                return std::make_unique<const detail::held_engine<Backend, Block>>(block, bound, how);
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
    using engines = detail::engines_of<Backend>;
    template <class Machine>
    using engines_on = std::vector<typename any_block<Backend>::template engine<Machine>>;

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
    template <class Machine>
    class engine : public engines::template branches<engines_on<Machine>> {
        using base = typename engines::template branches<engines_on<Machine>>;

    public:
        engine(const any_parallel& block, const binding& bound, typename engines::preparation& how)
            : base(make(block, bound, how), bound) {}
        engine(const any_parallel& block, const binding& bound, typename engines::preparation&& how = {})
            : base(make(block, bound, how), bound) {}

    private:
        static engines_on<Machine> make(const any_parallel& block, const binding& bound,
                                        typename engines::preparation& how) {
            engines_on<Machine> made;
            for (std::size_t i = 0; i < block.branches_.size(); ++i)
                made.emplace_back(block.branches_[i], bound.parts[i], how);
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
