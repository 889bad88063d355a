// AdamW for dense tensors and table rows, with one gradient clipping for both.
#pragma once

#include <tiffin/error.hpp>
#include <tiffin/executor/checked_executor.hpp>
#include <tiffin/learn/adamw_update.hpp>
#include <tiffin/learn/learning_rows.hpp>
#include <tiffin/named_memory.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

TIFFIN_BEGIN

// Adam with decoupled weight decay, over the tensors of any number of layers.
//   g <- g min(1, clip / |all gradients|),  m <- b1 m + (1 - b1) g,  v <- b2 v + (1 - b2) g^2,
//   w <- w - rate (decay w + m / (1 - b1^t) / (sqrt(v / (1 - b2^t)) + eps))
// t counts the steps. A row of a table or a pool is updated in a step only if a token has read it: t is then the row's
// own count, and its moments and its decay pause in other steps. (Dense AdamW decays rows that no token used; so does
// adamw_options::resting_rows_decay, at the cost of a pass over the tables per step.)
// Tensors of one axis (norms, biases, scales) are not decayed, as is usual, unless add() is called with `decays`.
// Numerics: weights, gradients, moments in the backend's number; the norm in double. Bit-identical for any threads.
// Lifetime: values, gradients and layers must outlive it; a layer must not be moved.
// Errors: see add() and step(). Cost: two moments per element; step() reads every gradient twice, without allocation.
// Source: Loshchilov and Hutter, arXiv 1711.05101.
template <trains Backend>
class adamw {
    using machine = typename training_machine<Backend>::type;

public:
    using number = typename machine::number;

    explicit adamw(adamw_options options = {}) : options_(options) {}

    // Adds a tensor and its gradient, of the same shape. Its moments are named after it.
    void add(std::string name, number* values, const number* gradient, const tiffin::shape& sizes,
             bool decays) {
        const std::size_t n = sizes.elements();
        tensors_.push_back({std::move(name),
                            sizes,
                            decays,
                            values,
                            gradient,
                            std::vector<number>(n),
                            std::vector<number>(n),
                            {},
                            {},
                            nullptr});
        make_room(pieces_of(n, dense_piece));
    }
    // Adds table rows that are not all in memory and are written back after step(): see stored_table. Not visited by
    // visit_state(). `gradients` and `rows` must outlive the optimizer.
    // Errors: errc::shape where the numbers of experts or the widths differ.
    status add(std::string name, const row_gradients<number>& gradients, learning_rows<number>& rows) {
        if (gradients.experts() != rows.experts() || gradients.width() != rows.width())
            return failure(errc::shape, name, "has gradients of ", gradients.experts(), " experts' rows of ",
                           gradients.width(), " numbers; the rows that learn are of ", rows.experts(),
                           " and ", rows.width());
        tensors_.push_back({std::move(name), {}, true, nullptr, nullptr, {}, {}, {}, {}, &rows});
        tensors_.back().from = &gradients;
        make_room(pieces_of(gradients.capacity(), row_piece));
        return {};
    }
    // The same, with the layer's own gradients of the table `table`. Errors: errc::missing_tensor where it trains none.
    status add(const std::string& prefix, const trainable_layer<number>& layer, std::string_view table,
               learning_rows<number>& rows) {
        const std::string name = prefix + std::string(table);
        const auto trained = layer_row_gradients<number>::of(layer, table);
        if (!trained) return failure(errc::missing_tensor, name, trained.failure().what);
        auto from = std::make_unique<layer_row_gradients<number>>(*trained);
        if (status s = add(name, *from, rows); !s) return s;
        tensors_.back().own_gradients = std::move(from);
        return {};
    }
    // Adds all tensors that the layer trains, or those that `takes` selects; their values are named `prefix` + name.
    // Errors: errc::missing_tensor, errc::shape; nothing is added then.
    status add(const std::string& prefix, const trainable_layer<number>& layer,
               const named_memory<number>& values,
               const std::function<bool(std::string_view name)>& takes = {}) {
        auto gradients = layer.gradients();
        if (takes) std::erase_if(gradients, [&](const auto& g) { return !takes(g.name); });
        for (const auto& g : gradients) {
            const auto* const at = values.find(prefix + std::string(g.name));
            if (at == nullptr)
                return failure(errc::missing_tensor, prefix + std::string(g.name),
                               "is trained, and has no memory that can be written");
            if (!(at->shape == g.shape))
                return failure(errc::shape, at->name, "has shape ", to_string(at->shape), "; the layer's is ",
                               to_string(g.shape));
        }
        for (const auto& g : gradients) {
            const auto& at = *values.find(prefix + std::string(g.name));
            if (g.rows == nullptr) {
                add(at.name, at.data, g.data, at.shape, at.shape.rank() > 1);
                continue;
            }
            auto from = std::make_unique<layer_row_gradients<number>>(layer, *g.rows);
            auto rows = std::make_unique<rows_in_memory<number>>(
                at.data, from->experts(), at.shape[at.shape.rank() - 2], from->width());
            if (status s = add(at.name, *from, *rows); !s) return s;
            tensor& made = tensors_.back();
            made.sizes = at.shape;
            made.own_gradients = std::move(from);
            made.own_rows = std::move(rows);
        }
        return {};
    }

    // One step on the current gradients, which are not cleared. Where rows are sharded over ranks, over_ranks(x) is the
    // sum of x over the ranks, for the norm; dense gradients are then the same on all ranks.
    // Errors: errc::value, with the tensor's name, where a gradient is NaN or infinite, or where its square is;
    //   errc::token_id for an id whose row is not loaded, errc::size for more ids than the gradients have room for.
    //   Nothing is changed then. errc::executor where the executor did not run each task once: values may have changed.
    status step(double rate, executor_ref execute = serially,
                const std::function<double(double)>& over_ranks = {});

    // The norm of all gradients in the last step, before clipping.
    [[nodiscard]] double gradient_norm() const noexcept { return norm_; }
    [[nodiscard]] std::uint64_t steps() const noexcept { return steps_; }
    // The tensors of a checkpoint beside the weights: visit(name, dtype, shape, void*) for the moments and the row step
    // counts. steps() belongs to the checkpoint too.
    template <class Visit>
    void visit_state(const Visit& visit) {
        constexpr dtype type = train_detail::parameter<number>::own_type();
        for (tensor& t : tensors_) {
            if (t.rows != nullptr && t.own_rows == nullptr) continue;
            std::vector<number>& first = t.own_rows ? t.own_rows->first : t.first;
            std::vector<number>& second = t.own_rows ? t.own_rows->second : t.second;
            visit(t.name + ".first_moment", type, t.sizes, static_cast<void*>(first.data()));
            visit(t.name + ".second_moment", type, t.sizes, static_cast<void*>(second.data()));
            if (t.own_rows)
                visit(t.name + ".row_steps", dtype::i32, tiffin::shape(t.own_rows->steps.size()),
                      static_cast<void*>(t.own_rows->steps.data()));
        }
    }
    void set_steps(std::uint64_t steps) noexcept { steps_ = steps; }

private:
    struct tensor {
        std::string name;
        tiffin::shape sizes;
        bool decays;
        number* values;  // dense
        const number* gradient;
        std::vector<number> first, second;
        std::unique_ptr<row_gradients<number>> own_gradients;  // of rows: the layer's
        std::unique_ptr<rows_in_memory<number>> own_rows;
        learning_rows<number>* rows;  // null: dense
        const row_gradients<number>* from = nullptr;
    };
    static constexpr std::size_t dense_piece = 16384, row_piece = 16;
    static constexpr std::size_t pieces_of(std::size_t n, std::size_t piece) {
        return (n + piece - 1) / piece;
    }
    static std::size_t pieces_of(const tensor& t) {
        return t.rows != nullptr ? pieces_of(t.from->size(), row_piece)
                                 : pieces_of(t.sizes.elements(), dense_piece);
    }
    static status check_rows(const tensor& t) {
        if (t.from->size() > t.from->capacity())
            return failure(errc::size, t.name, "has gradients of ", t.from->size(), " ids; ",
                           t.from->capacity(), " are the most that were announced");
        for (std::size_t n = 0; n < t.from->size(); ++n)
            if (!t.rows->has(t.from->id(n)))
                return failure(errc::token_id, t.name, "has a gradient of id ", t.from->id(n),
                               ", whose row is not there");
        return {};
    }
    void make_room(std::size_t pieces) {
        pieces_ += pieces;
        piece_sums_.resize(pieces_);
    }
    // Calls use(gradient, count, numbers) for each contiguous range of piece i. numbers(): its values and moments.
    template <class Use>
    static void in_piece(tensor& t, std::size_t i, const Use& use) {
        if (t.rows == nullptr) {
            const std::size_t begin = i * dense_piece;
            use(t.gradient + begin, std::min(dense_piece, t.sizes.elements() - begin), [&] {
                return learning_row<number>{t.values + begin, t.first.data() + begin, t.second.data() + begin,
                                            nullptr};
            });
            return;
        }
        for (std::size_t n = i * row_piece; n < std::min(t.from->size(), (i + 1) * row_piece); ++n)
            for (std::size_t e = 0; e < t.from->experts(); ++e)
                if (const number* const g = t.from->row(n, e); g != nullptr)
                    use(g, t.from->width(), [&] { return t.rows->at(e, t.from->id(n)); });
    }
    // Calls task(tensor, piece, index among all pieces) for every piece, some at a time.
    template <class Task>
    status each_piece(executor_ref execute, const Task& task) {
        const std::size_t workers = std::max<std::size_t>(execute.concurrency(), 1);
        const auto work = [&](std::size_t worker) {
            std::size_t at = 0;
            for (tensor& t : tensors_)
                for (std::size_t i = 0, n = pieces_of(t); i < n; ++i, ++at)
                    if (at % workers == worker) task(t, i, at);
        };
        return detail::run_each_once(execute, workers, task_ref(work));
    }

    adamw_options options_;
    std::vector<tensor> tensors_;
    std::size_t pieces_ = 0;  // the most per step
    std::vector<double> piece_sums_;
    double norm_ = 0;
    std::uint64_t steps_ = 0;
};

TIFFIN_END

#include <tiffin/learn/adamw_step.hpp>
