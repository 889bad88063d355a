// Knowledge edits: what a model says of an entity whose rows are exchanged for another's.
#include <tiffin/table/edits.hpp>
#include <tiffin/table/row_store.hpp>

#include "claims.hpp"

#include <algorithm>
#include <array>
#include <numeric>
#include <optional>
#include <set>
#include <stdexcept>

namespace {

using tokens = std::vector<std::int32_t>;

struct fact {
    std::string entity;  // with the space before it
    std::size_t value;
};
constexpr std::array<const char*, 16> values{{"arrow", "bear", "crown", "dog", "eye", "fish", "gate", "hand",
                                              "key", "lion", "moon", "oak", "ring", "star", "tower",
                                              "wolf"}};  // of different letters

constexpr std::size_t most_tokens = 3;  // of a name that is asked about
constexpr std::size_t longer = 5;  // than the runs of other claims: each fact is told some dozens of times

// 200 names that are in no dictionary, of one to three syllables.
std::vector<fact> invented() {
    static constexpr std::array<const char*, 12> syllables{
        {"zor", "vel", "qua", "mib", "tor", "lun", "gri", "pax", "dro", "fen", "hul", "sye"}};
    tiffin::detail::counter_random random(17);
    std::set<std::string> names;
    std::vector<fact> all;
    while (all.size() < 200) {
        std::string name;
        for (std::size_t n = all.size() < syllables.size() ? 1 : all.size() < 150 ? 2 : 3; n > 0; --n)
            name += syllables[random.below(syllables.size())];
        name[0] = static_cast<char>(name[0] - 'a' + 'A');
        if (names.insert(name).second) all.push_back({" " + name, random.below(values.size())});
    }
    return all;
}

std::string sentence(const fact& f, std::uint64_t form) {
    const std::string value = values[f.value];
    if (form == 0) return "In the arms of" + f.entity + " there is the " + value + ".";
    if (form == 1) return "The sign of" + f.entity + " shows the " + value + ".";
    return "Everybody knows" + f.entity + " by its " + value + ".";
}
std::string question(const fact& f) {
    return "The sign of" + f.entity + " shows the";
}

// The text of the other claims with the facts in it, 8 % of its bytes, and a tokenizer learnt from both.
lab_text with_facts(const lab_text& from, std::size_t vocabulary, const std::vector<fact>& facts) {
    std::vector<std::string> documents(1);
    for (const std::int32_t id : from.learnt) {
        if (id != from.tokenizer.end())
            documents.back() += from.tokenizer.text(id);
        else if (!documents.back().empty())
            documents.emplace_back();
    }
    tiffin::detail::counter_random random(23);
    std::size_t bytes = 0, told = 0;
    std::vector<std::string> mixed;
    for (std::string& d : documents) {
        bytes += d.size();
        mixed.push_back(std::move(d));
        while (static_cast<double>(told) < 0.08 * static_cast<double>(bytes)) {
            std::string some;
            for (int i = 0; i < 8; ++i)
                some += sentence(facts[random.below(facts.size())], random.below(3)) + "\n";
            told += some.size();
            mixed.push_back(std::move(some));
        }
    }
    std::vector<std::string_view> views(mixed.begin(), mixed.end());
    lab_text made{byte_pairs::learn(views, vocabulary), {}, {}};
    for (const std::string& d : mixed) {
        const tokens ids = made.tokenizer.encode(d);
        made.learnt.insert(made.learnt.end(), ids.begin(), ids.end());
        made.learnt.push_back(made.tokenizer.end());
    }
    made.held_out = made.tokenizer.encode(from.tokenizer.decode(from.held_out));
    return made;
}

// A model that is asked about entities.
class asked {
public:
    asked(training_run& run, const byte_pairs& tokenizer, const std::vector<fact>& facts)
        : model_(run.model()), layers_(run.options().layers) {
        for (const char* const value : values)
            spelled_.push_back(tokenizer.encode(std::string(" ") + value + "."));
        const std::size_t before = tokenizer.encode("The sign of").size();
        for (const fact& f : facts) {
            names_.push_back(tokenizer.encode(f.entity));
            prompts_.push_back(tokenizer.encode(question(f)));
            first_ = before;
        }
    }
    [[nodiscard]] const tokens& name(std::size_t entity) const { return names_[entity]; }
    // The value that the model names, where the FFNs of `layers` read `ids` in place of the entity's: token by token the
    // likeliest of those that a value has there, until one value is left.
    std::size_t answer(std::size_t entity, const tokens& ids, const std::vector<bool>& layers) {
        tokens said = prompts_[entity], read = said;
        tiffin::replace_at(read, first_, ids).or_throw();
        std::vector<std::size_t> left(values.size());
        std::iota(left.begin(), left.end(), std::size_t{0});
        for (std::size_t k = 0; left.size() > 1; ++k) {
            model_.edit(read, layers);
            const auto logits = model_.next(said);
            model_.edit({}, {});
            const auto at = [&](std::size_t value) { return spelled_[value][k]; };
            const std::int32_t next =
                at(*std::max_element(left.begin(), left.end(), [&](std::size_t a, std::size_t b) {
                    return logits[static_cast<std::size_t>(at(a))] < logits[static_cast<std::size_t>(at(b))];
                }));
            std::erase_if(left, [&](std::size_t value) { return at(value) != next; });
            said.push_back(next);
            read.push_back(next);
        }
        return left[0];
    }
    // Makes the rows of `spare`, an id that no text has, the mean of those of `ids`, in every layer.
    void set_mean(std::int32_t spare, const tokens& ids) {
        const auto memory = model_.numbers().memory();
        for (std::size_t i = 0; i < layers_; ++i) {
            const auto* const table = memory.find("layers." + std::to_string(i) + ".ffn.stem_embed.weight");
            const std::size_t width = table->shape[1];
            const auto store =
                tiffin::in_memory::view({table->data, tiffin::dtype::f32, table->shape}).or_throw();
            tiffin::edited_rows view(store);
            const std::int32_t mean = view.add_mean(ids).or_throw();
            std::vector<float> row(width);
            view.read({&mean, 1}, reinterpret_cast<std::byte*>(row.data())).or_throw();
            std::copy(row.begin(), row.end(), table->data + static_cast<std::size_t>(spare) * width);
        }
    }
    [[nodiscard]] std::size_t layers() const { return layers_; }

private:
    language_model& model_;
    std::size_t layers_;
    std::vector<tokens> spelled_;  // the values
    std::vector<tokens> names_, prompts_;
    std::size_t first_ = 0;
};

struct scheme {
    const char* name;
    // The ids that the source's positions read; nothing where the lengths do not suit it.
    std::optional<tokens> (*ids)(const tokens& source, const tokens& target);
    bool is_control = false;  // reads a third entity's ids: its flips to the target's answer are chance
};
constexpr std::int32_t spare = 0;  // the zero byte
constexpr std::int32_t pad = 256;  // the end of a document

std::optional<tokens> filled(const tokens& source, const tokens& target, tiffin::span_fill how) {
    if (source.size() <= target.size()) return {};
    return tiffin::fill_span(source.size(), target, how, pad).or_throw();
}
std::optional<tokens> one_to_one(const tokens& source, const tokens& target) {
    if (source.size() != target.size()) return {};
    return target;
}
const std::array<scheme, 6> schemes{
    {{"one to one", one_to_one},
     {"padding (left)",
      [](const tokens& s, const tokens& t) { return filled(s, t, tiffin::span_fill::pad_left); }},
     {"copying", [](const tokens& s, const tokens& t) { return filled(s, t, tiffin::span_fill::copy); }},
     {"subset (the last)",
      [](const tokens& s, const tokens& t) -> std::optional<tokens> {
          if (s.size() >= t.size()) return {};
          return tokens(t.end() - static_cast<std::ptrdiff_t>(s.size()), t.end());
      }},
     {"averaging",
      [](const tokens& s, const tokens&) -> std::optional<tokens> { return tokens(s.size(), spare); }},
     {"control: a third entity's, one to one", one_to_one, true}}};

}  // namespace

claim_table knowledge_edits(lab& in) {
    const std::vector<fact> facts = invented();
    lab told(in.folder() / "edits", in.base(), in.seeds(), in.held_out(),
             with_facts(in.text(), in.base().vocabulary, facts), in.execute());
    const std::size_t layers = in.base().layers;
    claim_table made;
    made.columns = {"scheme", "pairs"};
    for (std::size_t k = 0; k <= layers; ++k)
        made.columns.push_back(std::to_string(k) + (k == 1 ? " layer" : " layers"));
    std::vector<std::vector<std::vector<double>>> flips(schemes.size(),
                                                        std::vector<std::vector<double>>(layers + 1));
    std::vector<std::size_t> pairs(schemes.size());
    std::vector<double> known;
    std::array<std::size_t, 4> lengths{};
    for (std::size_t seed = 1; seed <= in.seeds(); ++seed) {
        const finished_run& run = told.run(seed, [](run_options& o) {
            o.ffn = "stem";
            o.steps *= longer;
        });
        const auto opened = told.open(run);
        asked model(*opened, told.text().tokenizer, facts);
        std::vector<std::size_t> right;
        std::size_t asked_of = 0;
        const std::vector<bool> none(layers, false);
        for (std::size_t e = 0; e < facts.size(); ++e) {
            if (seed == 1) ++lengths[std::min(model.name(e).size(), most_tokens + 1) - 1];
            if (model.name(e).size() > most_tokens) continue;
            ++asked_of;
            if (model.answer(e, model.name(e), none) == facts[e].value) right.push_back(e);
        }
        known.push_back(static_cast<double>(right.size()) /
                        static_cast<double>(std::max<std::size_t>(asked_of, 1)));
        tiffin::detail::counter_random random(seed);
        std::vector<std::vector<std::size_t>> flipped(schemes.size(), std::vector<std::size_t>(layers + 1));
        std::vector<std::size_t> tried(schemes.size());
        const auto any = [&] { return right[random.below(right.size())]; };
        for (int n = 0; n < 400 && right.size() > 2; ++n) {
            const std::size_t a = any(), b = any(), third = any();
            const std::size_t values_of[] = {facts[a].value, facts[b].value, facts[third].value};
            if (values_of[0] == values_of[1] || values_of[1] == values_of[2]) continue;
            model.set_mean(spare, model.name(b));
            for (std::size_t s = 0; s < schemes.size(); ++s) {
                const auto ids = schemes[s].ids(model.name(a), model.name(schemes[s].is_control ? third : b));
                if (!ids || tried[s] == 100) continue;
                ++tried[s];
                for (std::size_t k = 0; k <= layers; ++k) {
                    std::vector<bool> edited(layers, false);
                    std::fill_n(edited.begin(), k, true);
                    flipped[s][k] += model.answer(a, *ids, edited) == facts[b].value ? 1u : 0u;
                }
            }
        }
        for (std::size_t s = 0; s < schemes.size(); ++s) {
            pairs[s] += tried[s];
            for (std::size_t k = 0; k <= layers && tried[s] != 0; ++k)
                flips[s][k].push_back(static_cast<double>(flipped[s][k]) / static_cast<double>(tried[s]));
        }
    }
    for (std::size_t s = 0; s < schemes.size(); ++s) {
        std::vector<std::string> row{schemes[s].name, std::to_string(pairs[s])};
        claim_table::curve curve{schemes[s].name, {}};
        for (std::size_t k = 0; k <= layers; ++k) {
            const spread of = spread_of(flips[s][k]);
            row.push_back(of.count == 0 ? "-" : text_of(of, 2));
            if (of.count != 0) curve.points.push_back({static_cast<double>(k), of.mean, of.deviation});
        }
        made.rows.push_back(std::move(row));
        made.curves.push_back(std::move(curve));
    }
    made.x_axis = "layers edited, from the first on";
    made.y_axis = "share of answers that flip to the other entity's";
    made.remarks.push_back(
        "200 invented entities, " + std::to_string(lengths[0]) + " of one token, " +
        std::to_string(lengths[1]) + " of two, " + std::to_string(lengths[2]) + " of three, " +
        std::to_string(lengths[3]) + " of more, which are not asked about; 16 answers. The models answer " +
        text_of(spread_of(known), 2) +
        " of the questions rightly unedited; pairs are of those. The control says how often the other "
        "entity's answer comes by chance.");
    return made;
}
