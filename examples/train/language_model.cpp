#include "language_model.hpp"

#include <tiffin/analysis/balanced_map.hpp>

#include <algorithm>
#include <cmath>
#include <stdexcept>
#include <utility>

namespace {

using tiffin::simd;
using tiffin::training_options;

std::size_t layers_carried(const model_sizes& sizes) {
    std::size_t delay = 0;
    for (const std::string& name : sizes.kinds)
        if (name != "none") delay = std::max(delay, ffn_kind_of(name).delay(sizes.ffn));
    return delay;
}

std::string prefix_of(std::size_t layer) {
    return "layers." + std::to_string(layer) + ".";
}
// The model's own embedding, where a block reads it.
bool is_embedding(std::string_view name) {
    return name.ends_with("word_embed.weight");
}

using trainable = tiffin::trainable_layer<float>;
template <class Block>
trainable prepared(const model_sizes& sizes, const tiffin::weights& given,
                   const training_options<float>& how) {
    return sizes.bf16_products ? tiffin::prepare_training<Block>(given, simd<tiffin::bf16>{}, how)
                               : tiffin::prepare_training<Block>(given, simd<>{}, how);
}
trainable norm_of(const model_sizes& sizes, const tiffin::weights& given,
                  const training_options<float>& how) {
    return sizes.layer_norm ? prepared<layer_norm>(sizes, given, how) : prepared<rms_norm>(sizes, given, how);
}
template <tiffin::fixed_string Name>
trainable product_of_norm(const model_sizes& sizes, const tiffin::weights& given,
                          const training_options<float>& how) {
    return sizes.layer_norm ? prepared<product_of<layer_norm, Name>>(sizes, given, how)
                            : prepared<product_of<rms_norm, Name>>(sizes, given, how);
}

}  // namespace

language_model::language_model(const model_sizes& sizes, std::size_t rows,
                               const tiffin::router_loss_weights& router, tiffin::executor_ref execute,
                               std::function<bool(std::string_view name)> trains, training_ranks* ranks)
    : sizes_(sizes),
      rows_(rows),
      execute_(execute),
      trains_(std::move(trains)),
      learns_embedding_(learns("embedding.weight")),
      learns_below_(learns_embedding_),
      router_(router),
      ranks_(ranks),
      attention_(sizes.attention, sizes.context, sizes.rope_base),
      carried_(layers_carried(sizes), rows, sizes.ffn.d_model),
      d_carried_(layers_carried(sizes), rows, sizes.ffn.d_model),
      losses_(rows) {
    const attention_sizes& a = sizes_.attention;
    if (a.kv_heads == 0 || a.heads % a.kv_heads != 0 || a.head % 2 != 0 || a.head == 0)
        throw std::invalid_argument(std::to_string(a.heads) + " heads of " + std::to_string(a.head) +
                                    " numbers over " + std::to_string(a.kv_heads) +
                                    ": the heads must be a multiple of those that they share, and even");
    add_tensors();
    for (const parameters::tensor& t : numbers_.all())
        if (t.name.starts_with("layers.0.") && !t.name.starts_with("layers.0.ffn."))
            learns_below_ = learns_below_ || learns(t.name);
    const std::size_t d = sizes_.ffn.d_model, vocab = sizes_.ffn.vocabulary;
    if (learns_embedding_) {
        embedding_gradient_ = tiffin::aligned_buffer(vocab * d * sizeof(float));
        std::fill_n(embedding_gradient_.as<float>(), vocab * d, 0.0f);
    }

    const auto room = [&](row_matrix& m, std::size_t width) { m.setZero(as_index(rows_), as_index(width)); };
    for (std::size_t i = 0; i < sizes_.kinds.size(); ++i) add_layer(sizes_.kinds[i], prefix_of(i));
    tiffin::weights head = numbers_.behind("head.");
    if (!sizes_.untied_head) head.add("vocabulary.weight", embedding());
    training_options<float> how = options_of("head.", std::min(rows_, head_rows));
    if (learns_embedding_ && !sizes_.untied_head)
        how.into.add("vocabulary.weight", embedding_gradient_.as<float>(), {vocab, d});
    head_.emplace(product_of_norm<"vocabulary">(sizes_, head, how));
    room(h_, d);
    room(d_h_, d);
    room(d_rows_, d);
    room(y_, d);
    room(d_mixed_, a.queries());
    room(d_qkv_, a.qkv());
    logits_.setZero(as_index(how.tokens), as_index(vocab));
}

tiffin::tensor_view language_model::embedding() const {
    const parameters::tensor& first = numbers_.all().front();
    return {first.memory.data(), first.type, first.shape};
}

training_options<float> language_model::options_of(const std::string& part, std::size_t tokens) const {
    training_options<float> how{.tokens = tokens};
    if (trains_)
        how.trains = [this, part](std::string_view name) {
            const bool is_tied = (name == "vocabulary.weight" && !sizes_.untied_head) || is_embedding(name);
            return is_tied ? learns_embedding_ : learns(part + std::string(name));
        };
    return how;
}

void language_model::add_layer(const std::string& kind, const std::string& prefix) {
    const auto how = [&](const char* part) { return options_of(prefix + part, rows_); };
    const auto weights = [&](const char* part) { return numbers_.behind(prefix + part); };
    const auto rows_of = [&](std::size_t width) {
        return row_matrix(row_matrix::Zero(as_index(rows_), as_index(width)));
    };
    using output = tiffin::linear<"output">;
    const std::size_t d = sizes_.ffn.d_model;
    layers_.push_back(std::make_unique<layer>(
        product_of_norm<"qkv">(sizes_, weights("attention_in."), how("attention_in.")),
        prepared<output>(sizes_, weights("attention_out."), how("attention_out."))));
    layer& made = *layers_.back();
    made.h = rows_of(d);
    made.qkv_rows = rows_of(sizes_.attention.qkv());
    made.mixed = rows_of(sizes_.attention.queries());
    if (kind == "none") return;
    made.middle = rows_of(d);
    made.normed = rows_of(d);
    made.norm.emplace(norm_of(sizes_, weights("ffn_in."), how("ffn_in.")));
    const ffn_kind& block = ffn_kind_of(kind);
    tiffin::weights given = weights("ffn.");
    bool routes = false;
    for (const auto& [name, t] : block.tensors(sizes_.ffn)) {
        if (block.reads_embedding && is_embedding(name)) given.add(name, embedding());
        for (const auto& at : blocks_)
            if (at->name == prefix + "ffn." + name) {
                given.add_gathered(name, tiffin::dtype::f32, t.shape);
                made.tables.emplace_back(name, at.get());
            }
        routes = routes || t.kind == tiffin::tensor_kind::logits;
    }
    made.on_chosen = [&made](const tiffin::chosen_experts<float>& chosen) -> tiffin::status {
        table_block& from = *made.tables[chosen.pool].second;
        return from.is_chosen_from() ? from.fetch(chosen) : tiffin::status{};
    };
    made.kind_reads_embedding = block.reads_embedding;
    made.ffn.emplace(block.prepare(sizes_.ffn, given, how("ffn."), sizes_.bf16_products));
    if (!routes) return;
    made.routes.resize(rows_ * made.ffn->choices());
    made.logits = rows_of(made.ffn->experts());
    made.d_logits = made.logits;
    tiffin::router_loss_weights losses = router_;
    (block.routes_by_sigmoids(sizes_.ffn) ? losses.switch_balance : losses.mort_balance) = 0;
    made.router_loss.emplace(losses);
}

void language_model::add_norm(const std::string& part) {
    numbers_.add(part + "norm.weight", {sizes_.ffn.d_model});
    if (sizes_.layer_norm) numbers_.add(part + "norm.bias", {sizes_.ffn.d_model});
}

void language_model::add_tensors() {
    const std::size_t d = sizes_.ffn.d_model, wide = sizes_.attention.queries();
    numbers_.add("embedding.weight", {sizes_.ffn.vocabulary, d});
    for (std::size_t i = 0; i < sizes_.kinds.size(); ++i) {
        const std::string at = prefix_of(i);
        add_norm(at + "attention_in.");
        numbers_.add(at + "attention_in.qkv.weight", {sizes_.attention.qkv(), d});
        numbers_.add(at + "attention_out.output.weight", {d, wide});
        if (sizes_.kinds[i] == "none") continue;
        const ffn_kind& kind = ffn_kind_of(sizes_.kinds[i]);
        add_norm(at + "ffn_in.");
        for (const auto& [name, t] : kind.tensors(sizes_.ffn)) {
            if (kind.reads_embedding && is_embedding(name)) continue;
            if (ranks_ != nullptr &&
                (t.kind == tiffin::tensor_kind::table || t.kind == tiffin::tensor_kind::pool)) {
                blocks_.push_back(ranks_->block(at + "ffn." + name, t.shape,
                                                rows_ * static_cast<std::size_t>(ranks_->count())));
                continue;
            }
            if (t.kind != tiffin::tensor_kind::route_map) {
                numbers_.add(at + "ffn." + name, t.shape);
                continue;
            }
            const auto map =
                tiffin::balanced_map({.vocab = t.shape[0], .experts = sizes_.ffn.experts}).or_throw();
            std::copy(map.begin(), map.end(), numbers_.add_integers(at + "ffn." + name, t.shape));
        }
    }
    add_norm("head.");
    if (sizes_.untied_head) numbers_.add("head.vocabulary.weight", {sizes_.ffn.vocabulary, d});
}

void language_model::initialise(std::uint64_t seed, float scale) {
    const tiffin::named_memory<float> all = numbers_.memory();
    const std::size_t d = sizes_.ffn.d_model;
    const tiffin::initial_values how{.layers = sizes_.kinds.size(), .seed = seed, .scale = scale};
    const auto fill = [&](const std::string& name, double sigma) {
        const auto* const t = all.find(name);
        tiffin::fill_normal({t->data, t->shape.elements()}, sigma, tiffin::detail::seed_of(name, seed));
    };
    const auto ones = [&](const std::string& name) {
        const auto* const t = all.find(name);
        std::fill_n(t->data, t->shape.elements(), 1.0f);
    };
    const double small = std::sqrt(2 / (5 * static_cast<double>(d)));
    fill("embedding.weight", small);
    if (sizes_.untied_head) fill("head.vocabulary.weight", small);
    ones("head.norm.weight");
    for (std::size_t i = 0; i < sizes_.kinds.size(); ++i) {
        const std::string at = prefix_of(i);
        ones(at + "attention_in.norm.weight");
        fill(at + "attention_in.qkv.weight", small);
        fill(at + "attention_out.output.weight",
             2 / (static_cast<double>(how.layers) * std::sqrt(static_cast<double>(d))));
        if (sizes_.kinds[i] == "none") continue;
        ones(at + "ffn_in.norm.weight");
        tiffin::named_memory<float> own = all;
        const ffn_kind& kind = ffn_kind_of(sizes_.kinds[i]);
        std::vector<float> unused;  // the embedding has been filled
        for (const auto& [name, t] : kind.tensors(sizes_.ffn))
            if (kind.reads_embedding && is_embedding(name)) {
                unused.resize(t.shape.elements());
                own.add(at + "ffn." + name, unused.data(), t.shape);
            }
        for (const auto& [name, block] : layers_[i]->tables) own.add(block->name, nullptr, block->whole);
        kind.initialise(sizes_.ffn, own, how, at + "ffn.").or_throw();
        for (const auto& [name, block] : layers_[i]->tables) {
            const std::size_t first = block->rows.first * block->width();
            kind.initialise_part(sizes_.ffn, block->name, first, block->values, how, at + "ffn.").or_throw();
        }
    }
}

void language_model::add_to(tiffin::adamw<simd<>>& optimizer) {
    const tiffin::named_memory<float> all = numbers_.memory();
    const auto* const embedding = all.find("embedding.weight");
    if (learns_embedding_)
        optimizer.add(embedding->name, embedding->data, embedding_gradient_.as<float>(), embedding->shape,
                      true);
    for (std::size_t i = 0; i < layers_.size(); ++i) {
        layer& l = *layers_[i];
        optimizer.add(prefix_of(i) + "attention_in.", l.qkv, all).or_throw();
        optimizer.add(prefix_of(i) + "attention_out.", l.output, all).or_throw();
        if (!l.ffn) continue;
        optimizer.add(prefix_of(i) + "ffn_in.", *l.norm, all).or_throw();
        optimizer
            .add(prefix_of(i) + "ffn.", *l.ffn, all,
                 [&](std::string_view name) {
                     return !is_embedding(name) &&
                            std::none_of(l.tables.begin(), l.tables.end(),
                                         [&](const auto& t) { return t.first == name; });
                 })
            .or_throw();
        for (const auto& [name, block] : l.tables)
            optimizer.add(block->name, block->gradients(), block->learning).or_throw();
    }
    optimizer
        .add("head.", *head_, all,
             [&](std::string_view name) { return sizes_.untied_head || name != "vocabulary.weight"; })
        .or_throw();
}

std::size_t language_model::count() const {
    std::size_t n = numbers_.count();
    for (const auto& block : blocks_) n += block->whole.elements();
    return n;
}

double language_model::flops(bool folded) const {
    const auto d = static_cast<double>(sizes_.ffn.d_model);
    const attention_sizes& a = sizes_.attention;
    double flops = 2 * d * static_cast<double>(sizes_.ffn.vocabulary);
    for (const std::string& kind : sizes_.kinds) {
        flops += 2 * d * static_cast<double>(a.qkv() + a.queries());
        flops += 2 * static_cast<double>(a.queries() * sizes_.context);  // two products over half the context
        if (kind == "none") continue;
        const ffn_kind& ffn = ffn_kind_of(kind);
        flops += folded ? ffn.folded_flops(sizes_.ffn) : ffn.flops(sizes_.ffn);
    }
    return flops;
}

language_model::layer_rows language_model::rows_of(std::size_t i) const {
    const layer& l = *layers_[i];
    return {&l.h, &l.normed, l.routes, l.ffn ? l.ffn->choices() : 0, l.ffn ? l.ffn->experts() : 0};
}

void language_model::edit(std::vector<std::int32_t> ids, std::vector<bool> layers) {
    edited_ = std::move(ids);
    edited_layers_ = std::move(layers);
}

tiffin::training_inputs<float> language_model::inputs_of(std::size_t i, std::span<const std::int32_t> ids) {
    tiffin::training_inputs<float> in;
    layer& l = *layers_[i];
    const auto& needs = l.ffn->needs();
    in.token_ids = !edited_.empty() && edited_layers_[i] ? std::span<const std::int32_t>(edited_) : ids;
    if (needs.residual) in.residual = {l.middle.data(), ids.size(), sizes_.ffn.d_model};
    if (needs.delay != 0) in.carried = &carried_;
    in.gathered = l.gathered;
    if (!l.tables.empty()) in.on_chosen = &l.on_chosen;
    if (!l.routes.empty()) {
        in.routes = std::span(l.routes).first(ids.size() * l.ffn->choices());
        in.logits = view(l.logits, ids.size());
    }
    return in;
}

void language_model::forward(std::span<const std::int32_t> ids, std::size_t length, const stream& before) {
    const std::size_t n = ids.size();
    const auto rows = as_index(n);
    const std::size_t d = sizes_.ffn.d_model;
    const auto* const table = static_cast<const float*>(embedding().data);
    for (auto& l : layers_) {
        l->gathered.clear();
        for (const auto& [name, block] : l->tables) l->gathered.push_back(block->fetch(ids));
    }
    if (n == 0) {  // it sends rows to ranks that have tokens
        for (const auto& block : blocks_)
            if (block->is_chosen_from()) block->fetch(tiffin::chosen_experts<float>{}).or_throw();
        return;
    }
    if (before) h_.topRows(rows) = *before;
    for (std::size_t t = 0; t < n && !before; ++t)
        std::copy_n(table + static_cast<std::size_t>(ids[t]) * d, d, h_.row(as_index(t)).data());
    carried_.begin();
    for (std::size_t i = 0; i < layers_.size(); ++i) {
        layer& l = *layers_[i];
        l.h.topRows(rows) = h_.topRows(rows);
        l.qkv.forward(view(l.h, n), {}, view(l.qkv_rows, n), execute_);
        attention_.forward(l.qkv_rows, l.mixed, n, length, execute_);
        l.output.forward(view(l.mixed, n), {}, view(y_, n), execute_);
        h_.topRows(rows) += y_.topRows(rows);
        if (!l.ffn) continue;
        l.middle.topRows(rows) = h_.topRows(rows);
        l.norm->forward(view(l.middle, n), {}, view(l.normed, n), execute_);
        l.ffn->forward(view(l.normed, n), inputs_of(i, ids), view(y_, n), execute_);
        h_.topRows(rows) += y_.topRows(rows);
    }
}

void language_model::predict(std::span<const std::int32_t> targets, std::span<double> losses, float scale) {
    const std::size_t vocab = sizes_.ffn.vocabulary, d = sizes_.ffn.d_model;
    for (std::size_t first = 0; first < targets.size(); first += head_rows) {
        const std::size_t n = std::min(head_rows, targets.size() - first);
        head_->forward(tiffin::matrix_view<const float>(h_.row(as_index(first)).data(), n, d), {},
                       view(logits_, n), execute_);
        tiffin::softmax_cross_entropy(simd<>{}, {logits_.data(), n, vocab}, targets.subspan(first, n), scale,
                                      losses.subspan(first, n), execute_)
            .or_throw();
        if (scale != 0)
            head_->backward(view(logits_, n), {.x = {d_h_.row(as_index(first)).data(), n, d}}, execute_);
    }
}

double language_model::balance(std::size_t rows) {
    double sum = 0;
    std::size_t routers = 0;
    for (auto& l : layers_) {
        if (l->routes.empty()) continue;
        l->d_logits.topRows(as_index(rows)).setZero();
        std::function<void(std::span<double>)> over_ranks;
        if (ranks_ != nullptr) over_ranks = [this](std::span<double> numbers) { ranks_->add_up(numbers); };
        sum += (*l->router_loss)(tiffin::matrix_view<const float>(view(l->logits, rows)),
                                 std::span(std::as_const(l->routes)).first(rows * l->ffn->choices()),
                                 view(l->d_logits, rows), over_ranks)
                   .or_throw();
        ++routers;
    }
    for (auto& l : layers_)
        if (routers > 1 && !l->routes.empty()) l->d_logits /= static_cast<float>(routers);
    return routers != 0 ? sum / static_cast<double>(routers) : 0;
}

void language_model::add_embedding_gradients(const layer& l) {
    const std::size_t d = sizes_.ffn.d_model;
    for (const auto& g : l.ffn->gradients()) {
        if (!is_embedding(g.name)) continue;
        const auto& ids = l.ffn->ids();
        for (std::size_t i = 0; i < ids.size(); ++i) {
            const std::span<float> row = g.row(0, ids.slot(i));
            float* const to = embedding_gradient_.as<float>() + static_cast<std::size_t>(ids.id(i)) * d;
            for (std::size_t j = 0; j < d; ++j) to[j] += row[j];
        }
    }
}

void language_model::backward(std::span<const std::int32_t> ids, std::size_t length) {
    const std::size_t n = ids.size(), d = sizes_.ffn.d_model;
    const auto rows = as_index(n);
    d_carried_.begin();
    for (std::size_t i = layers_.size(); i-- > 0;) {
        layer& l = *layers_[i];
        if (l.ffn) {
            const auto& needs = l.ffn->needs();
            const bool is_end = i == 0 && !learns_below_;
            tiffin::input_gradients<float> to;
            if (!is_end) to.x = view(d_rows_, n);
            if (needs.residual) to.residual = view(y_, n);
            if (needs.delay != 0) to.carried = &d_carried_;
            if (!l.routes.empty()) to.logits = view(l.d_logits, n);
            l.ffn->backward(view(d_h_, n), to, execute_);
            if (is_end) return;
            if (l.kind_reads_embedding && learns_embedding_) add_embedding_gradients(l);
            if (needs.residual) d_h_.topRows(rows) += y_.topRows(rows);
            l.norm->backward(view(d_rows_, n), {.x = view(y_, n)}, execute_);
            d_h_.topRows(rows) += y_.topRows(rows);
        }
        l.output.backward(view(d_h_, n), {.x = view(d_mixed_, n)}, execute_);
        attention_.backward(l.qkv_rows, d_mixed_, d_qkv_, n, length, execute_);
        l.qkv.backward(view(d_qkv_, n), {.x = view(d_rows_, n)}, execute_);
        d_h_.topRows(rows) += d_rows_.topRows(rows);
    }
    for (std::size_t t = 0; t < n && learns_embedding_; ++t) {
        float* const to = embedding_gradient_.as<float>() + static_cast<std::size_t>(ids[t]) * d;
        const float* const from = d_h_.row(as_index(t)).data();
        for (std::size_t j = 0; j < d; ++j) to[j] += from[j];
    }
}

void language_model::share_gradients() {
    for (const auto& l : layers_) {
        ranks_->add_up(l->qkv);
        ranks_->add_up(l->output);
        if (!l->ffn) continue;
        ranks_->add_up(*l->norm);
        ranks_->add_up(*l->ffn);
        for (const auto& [name, block] : l->tables) block->send_gradients(*l->ffn, name);
    }
    ranks_->add_up(*head_);  // a tied one has the embedding's gradients in the same memory
    if (sizes_.untied_head)
        ranks_->add_up({embedding_gradient_.as<float>(), sizes_.ffn.vocabulary * sizes_.ffn.d_model});
}

step_losses language_model::learn(std::span<const std::int32_t> ids, std::span<const std::int32_t> targets,
                                  const stream& before) {
    seen_ += ids.size();
    forward(ids, sizes_.context, before);
    const auto losses = std::span(losses_).first(ids.size());
    double tokens = static_cast<double>(ids.size());  // of all ranks
    if (ranks_ != nullptr) ranks_->add_up({&tokens, 1});
    predict(targets, losses, static_cast<float>(1 / tokens));
    step_losses sums;
    for (const double loss : losses) sums.prediction += loss / tokens;
    if (ranks_ != nullptr) ranks_->add_up({&sums.prediction, 1});
    sums.router = balance(ids.size());
    backward(ids, sizes_.context);
    if (ranks_ != nullptr) share_gradients();
    return sums;
}

void language_model::judge(std::span<const std::int32_t> ids, std::span<const std::int32_t> targets,
                           std::size_t length, std::span<double> losses, const stream& before) {
    make_room(ids.size());
    forward(ids, length, before);
    predict(targets, losses, 0);
}

std::span<const float> language_model::next(std::span<const std::int32_t> ids) {
    make_room(ids.size());
    forward(ids, ids.size());
    head_->forward(
        tiffin::matrix_view<const float>(h_.row(as_index(ids.size() - 1)).data(), 1, sizes_.ffn.d_model), {},
        view(logits_, 1), execute_);
    clear_gradients();
    return {logits_.data(), sizes_.ffn.vocabulary};
}

void language_model::make_room(std::size_t tokens) {
    if (seen_ + tokens > rows_) clear_gradients();
    seen_ += tokens;
}

void language_model::clear_gradients() {
    seen_ = 0;
    for (auto& l : layers_) {
        l->qkv.clear_gradients();
        l->output.clear_gradients();
        if (!l->ffn) continue;
        l->norm->clear_gradients();
        l->ffn->clear_gradients();
    }
    head_->clear_gradients();  // a tied one has the embedding's in the same memory
    if (sizes_.untied_head && learns_embedding_)
        std::fill_n(embedding_gradient_.as<float>(), sizes_.ffn.vocabulary * sizes_.ffn.d_model, 0.0f);
}
