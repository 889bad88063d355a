// Maps the FFN of a GGUF model's layer to a block: tensors to tiffin's names.
#pragma once

#include <tiffin/io/described_layer.hpp>
#include <tiffin/io/gguf.hpp>
#include <tiffin/io/gguf_architectures.hpp>
#include <tiffin/io/quantised_parts.hpp>
#include <tiffin/io/weight_scales.hpp>
#include <tiffin/norm/gaussian_top_k.hpp>
#include <tiffin/quoted.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

TIFFIN_BEGIN
namespace io {
namespace detail {

// Reads the FFN of one layer of a model from the tensors of all its files.
class gguf_layer_reader {
public:
    // Metadata keys are read from the first of `files`, tensors from all.
    gguf_layer_reader(const std::vector<gguf_file>& files, const gguf_architecture& architecture,
                      std::size_t index)
        : files_(files),
          architecture_(architecture),
          index_(index),
          prefix_("blk." + std::to_string(index) + ".") {}

    result<described_layer> read() {
        if (status s = refuse_unsupported(); !s) return s.failure();
        if (status s = find("ffn_gate_inp.weight") != nullptr ? mixture() : dense(); !s) return s.failure();
        if (status s = check_all_used(); !s) return s.failure();
        return std::move(made_);
    }

private:
    const tensor_view* find(const std::string& name) const {
        for (const gguf_file& f : files_)
            if (const tensor_view* const t = f.tensors().find(prefix_ + name)) return t;
        return nullptr;
    }
    // Finds a tensor, with the scale that llama.cpp multiplies its products by (<stem>.scale, one or one per expert), and
    // marks both as used. Errors: errc::missing_tensor; those of add_scales().
    result<tensor_view> use(const std::string& name) {
        const tensor_view* const t = find(name);
        if (t == nullptr) return missing(name);
        used_.insert(prefix_ + name);
        tensor_view found = *t;
        const std::size_t stem = name.size() - std::string_view("weight").size();
        // Beside a router it would be something else.
        const bool product = name.ends_with(".weight") && name != "ffn_gate_inp.weight";
        const std::string scale = product ? name.substr(0, stem) + "scale" : "";
        const tensor_view* const scales = scale.empty() ? nullptr : find(scale);
        if (scales == nullptr) return found;
        if (status s = add_scales(found, *scales, prefix_ + scale); !s) return s.failure();
        used_.insert(prefix_ + scale);
        return found;
    }
    // The value of the metadata key <architecture>.<name>.
    template <class T>
    std::optional<T> key(std::string_view name) const {
        return files_[0].find<T>(std::string(architecture_.name) + "." + std::string(name));
    }
    failure unsaid(std::string_view where, std::string_view what) const {
        return failure(errc::option, where, what, "; tiffin's blocks do not have that");
    }

    // Refuses computations that only metadata describes and that no block has.
    status refuse_unsupported() const {
        if (find("ffn_gate_inp.scale") != nullptr) return experts_beside(prefix_ + "ffn_gate_inp");
        if (const auto scale = key<double>("expert_weights_scale");
            scale && *scale != 1 && *scale != 0 && find("ffn_gate_inp.weight") != nullptr)
            return unsaid(prefix_ + "ffn_gate_inp", "scales the weights of its experts");
        if (const auto groups = key<std::uint64_t>("expert_group_count");
            groups && *groups > 1 && find("ffn_gate_inp.weight") != nullptr)
            return unsaid(prefix_ + "ffn_gate_inp", "chooses its experts by groups");
        return {};
    }

    // Adds a tensor under the name `as`. Errors: errc::missing_tensor, unless it is optional.
    status take(const std::string& name, const std::string& as, bool optional = false) {
        if (optional && find(name) == nullptr) return {};
        const auto t = use(name);
        if (!t) return t.failure();
        made_.tensors.add(as, *t);
        return {};
    }
    failure missing(const std::string& name) const {
        for (const gguf_file& f : files_)
            for (const unread_tensor& t : f.unread())
                if (t.name == prefix_ + name) {
                    const std::string_view known = gguf_unread_name(t.type);
                    return failure(errc::dtype, t.name, "is of ggml's type ", t.type,
                                   known.empty() ? "" : " (", known, known.empty() ? "" : ")",
                                   " and of shape ", to_string(t.shape), ", which is not read");
                }
        return failure(errc::missing_tensor, prefix_ + name, "missing; the FFN of '", architecture_.name,
                       "' reads it");
    }

    // Takes gate, up and down with their biases; `suffix` is part of the file's names, `to` the prefix of ours.
    status gated(const std::string& suffix, const std::string& to) {
        for (const std::string_view part : {"gate", "up", "down"}) {
            const std::string name = "ffn_" + std::string(part) + suffix,
                              ours = to + std::string(part) + "_proj";
            if (status s = take(name + ".weight", ours + ".weight"); !s) return s;
            if (status s = take(name + ".bias", ours + ".bias", true); !s) return s;
        }
        return {};
    }
    // How many deviations a gate's values must be above their mean to pass; none where all pass.
    result<std::optional<float>> gate_threshold() const {
        static constexpr const char* name = "activation_sparsity_scale";
        const auto all = key<gguf_array>(name);
        // llama.cpp takes no notice of the key: 5 % pass in the first ten layers.
        if (!all && architecture_.name == "gemma3n" && index_ < 10)
            return std::optional(gaussian_top_k{}.deviations);
        if (!all) return std::optional<float>();
        const bool numbers = all->type != gguf_type::string && all->type != gguf_type::array;
        const float above = numbers && index_ < all->size ? all->number<float>(index_) : NAN;
        if (std::isnan(above) || above == INFINITY)
            return failure(errc::option, std::string(architecture_.name) + "." + name,
                           "has no number for layer ", index_);
        return above == -INFINITY ? std::nullopt : std::optional(above);
    }
    status dense() {
        const auto above = gate_threshold();
        if (!above) return above.failure();
        made_.options = gated_options(architecture_.activation, *above);
        if (!architecture_.gate_in_up || find("ffn_up.weight") == nullptr) return gated("", "");
        const std::string both = "ffn_up.weight";
        const auto rows = use(both);
        if (!rows) return rows.failure();
        if (status s = add_gate_and_up(made_.tensors, *rows, prefix_ + both); !s) return s;
        return take("ffn_down.weight", "down_proj.weight");
    }

    status mixture() {
        const auto top_k = key<std::uint64_t>("expert_used_count");
        if (!top_k)
            return failure(errc::option, std::string(architecture_.name) + ".expert_used_count", "missing");
        std::string order;
        if (status s = router_order(order); !s) return s;
        const tensor_view* const experts = find("ffn_up_exps.weight");
        if (experts == nullptr) return missing("ffn_up_exps.weight");
        const std::size_t count = experts->shape.rank() == 3 ? experts->shape[0] : 0;
        const std::string activation(architecture_.activation);
        made_.options = {{"block", "moe"},
                         {"router_order", order},
                         {"top_k", std::to_string(*top_k)},
                         {"num_experts", std::to_string(count)},
                         {"expert.block", "glu"},
                         {"expert.activation", activation}};
        if (status s = take("ffn_gate_inp.weight", "router.weight"); !s) return s;
        if (status s = take("exp_probs_b.bias", "router.selection_bias", true); !s) return s;
        for (const std::string_view part : {"gate", "up", "down"})
            if (status s = slices("ffn_" + std::string(part) + "_exps.weight", std::string(part), count); !s)
                return s;
        if (find("ffn_up_shexp.weight") == nullptr) return {};
        made_.options.insert({{"shared.block", "glu"}, {"shared.activation", activation}});
        return gated("_shexp", "shared.");
    }
    status router_order(std::string& to) const {
        if (architecture_.routing != gguf_routing::told) {
            to = architecture_.routing == gguf_routing::plain ? "softmax_topk" : "softmax_topk_renorm";
            return {};
        }
        const bool sigmoid = key<std::uint64_t>("expert_gating_func").value_or(1) == 2;
        const bool renormalised = key<bool>("expert_weights_norm").value_or(false);
        if (sigmoid && !renormalised)
            return unsaid(prefix_ + "ffn_gate_inp", "weighs experts by sigmoids that are not normalised");
        to = sigmoid ? "sigmoid_topk_renorm" : renormalised ? "softmax_topk_renorm" : "softmax_topk";
        return {};
    }
    // Splits a tensor (experts, rows, columns) into one per expert.
    status slices(const std::string& name, const std::string& part, std::size_t count) {
        const auto all = use(name);
        if (!all) return all.failure();
        if (all->shape.rank() != 3 || all->shape[0] != count || count == 0)
            return failure(errc::shape, prefix_ + name, "has shape ", to_string(all->shape), "; it must be (",
                           count, " experts, rows, columns)");
        for (std::size_t e = 0; e < count; ++e)
            made_.tensors.add("experts." + std::to_string(e) + "." + part + "_proj.weight",
                              all->rows_from(e * all->shape[1], {all->shape[1], all->shape[2]}));
        return {};
    }

    // Checks that all tensors of the FFN have been used, except the norms before and after it, which are the caller's.
    [[nodiscard]] status check_all_used() const {
        const auto check = [&](const std::string& name) -> status {
            const bool of_ffn =
                name.starts_with(prefix_ + "ffn_") || name.starts_with(prefix_ + "exp_probs_b.");
            if (!of_ffn || used_.contains(name) || name.starts_with(prefix_ + "ffn_norm.") ||
                name.starts_with(prefix_ + "ffn_post_norm."))
                return {};
            return unused_failure(name, "the FFN of '" + std::string(architecture_.name) + "'");
        };
        for (const gguf_file& f : files_) {
            for (const weights::entry& e : f.tensors().entries())
                if (status s = check(e.name); !s) return s;
            for (const unread_tensor& t : f.unread())
                if (status s = check(t.name); !s) return s;
        }
        return {};
    }

    const std::vector<gguf_file>& files_;
    const gguf_architecture& architecture_;
    std::size_t index_;
    std::string prefix_;
    described_layer made_;
    std::set<std::string> used_;
};

}  // namespace detail
}  // namespace io
TIFFIN_END
