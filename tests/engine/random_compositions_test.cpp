// Compositions that nobody thought of: random texts, four deep, at odd sizes, on every CPU backend against the oracle and
// `reference`. TIFFIN_TEST_SEED=n runs those of another seed.
#include <tiffin/cpu/engine.hpp>
#include <tiffin/plan/compose.hpp>

#include "support/conformance.hpp"
#include "support/doctest.hpp"
#include "support/known_policies.hpp"
#include "support/random.hpp"
#include "support/texts.hpp"

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <initializer_list>
#include <string>

namespace engine_random_compositions_test {
using namespace tiffin;

namespace {

// Writes a random composition. Its leaves have names of their own; what else may not stand twice (a bank, a vector
// `share`) does so now and then, and is refused.
class random_text {
public:
    explicit random_text(tiffin_test::random_numbers& random) : random_(random) {}

    std::string block(std::size_t depth) {
        switch (random_.below(depth == 0 ? 2 : 9)) {
            case 0: return text({"ffn(", gate(depth), ", ", any({"none", "dense", "token_embedding"}), ")"});
            case 1:
                return text(
                    {"ffn(", gate(depth), ", ", source(depth), ", ", fusion(), ", ", output(depth), ")"});
            case 2: return text({"mixture(", router(), ", ", block(depth - 1), ")"});
            case 3: return text({"mixture(", router(), ", ", block(depth - 1), ", ", block(depth - 1), ")"});
            case 4:
                return text(
                    {"modulated(", block(depth - 1), ", ", modulator(depth - 1), ", ", fusion(), ")"});
            case 5: return text({"parallel(", block(depth - 1), ", ", block(depth - 1), ")"});
            case 6: return text({"branch(", norm(), ", ", block(depth - 1), ")"});
            case 7: return text({"on_residual(", block(depth - 1), ")"});
            default: return text({"blend(", block(depth - 1), ", ", block(depth - 1), ")"});
        }
    }

private:
    std::string source(std::size_t depth) {
        switch (random_.below(depth == 0 ? 5 : 14)) {
            case 0:
            case 1: return text({"named(dense, '", name(), "')"});
            case 2: return text({"named(token_embedding, '", name(), "')"});
            case 3: return text({"named(routed_low_rank(", router(), "), '", name(), "')"});
            case 4: return any({"routed_embedding", "per_layer_input"});
            case 5: return text({"sum(", source(depth - 1), ", ", source(depth - 1), ")"});
            case 6: return gate(depth - 1);
            case 7: return text({"fused(", source(depth - 1), ", ", source(depth - 1), ", ", fusion(), ")"});
            case 8: return text({"normed(", norm(), ", ", source(depth - 1), ", '", name(), "')"});
            case 9: return text({"scaled('", name(), "', ", source(depth - 1), ")"});
            case 10:
                return text({"through('", name(), "', ", source(depth - 1), ", ", source(depth - 1), ")"});
            case 11: return text({"sum(", source(depth - 1), ", bias('", name(), "'))"});
            case 12: return text({"through('", name(), "', ", source(depth - 1), ", centred)"});
            default: return text({"blend(", source(depth - 1), ", ", source(depth - 1), ")"});
        }
    }
    std::string modulator(std::size_t depth) {
        switch (random_.below(4)) {
            case 0: return text({"token_modulator(", norm(), ")"});
            case 1: return text({"modulator_pool(", norm(), ", ", router(), ", num_layers=2)"});
            default: return source(depth);
        }
    }
    std::string gate(std::size_t depth) {
        const std::string phi =
            any({"silu", "gelu", "gelu_tanh", "relu", "sigmoid", "identity", "relu_squared"});
        return random_.below(2) == 0 ? text({"gate(", phi, ")"})
                                     : text({"gate(", phi, ", ", source(depth == 0 ? 0 : depth - 1), ")"});
    }
    std::string output(std::size_t depth) {
        const std::string of = random_.below(2) == 0 ? "dense" : source(depth == 0 ? 0 : depth - 1);
        return text({"project(", any({"no_norm", "rms", "l2", "damped"}), ", ", of, ")"});
    }
    std::string norm() {
        return any({"rms", "l2", "rms_one_plus", "rms_cast_first", "unweighted(rms)", "damped"});
    }
    std::string fusion() { return any({"add", "multiply", "gated_sum"}); }
    std::string router() {
        const std::string one =
            any({"softmax_topk", "softmax_topk_renorm", "topk_softmax", "sigmoid_topk_renorm"});
        return random_.below(4) == 0 ? any({"hash", "softmax_all", "tempered_top_2"})
                                     : text({one, "(top_k=", std::to_string(1 + random_.below(4)), ")"});
    }

    std::string name() { return text({"n", std::to_string(names_++)}); }
    template <std::size_t N>
    std::string any(const char* const (&of)[N]) {
        return of[random_.below(N)];
    }
    // (A list, as its elements are made in their order: the same texts whatever the compiler.)
    static std::string text(std::initializer_list<std::string> pieces) {
        std::string all;
        for (const std::string& piece : pieces) all += piece;
        return all;
    }

    tiffin_test::random_numbers& random_;
    std::size_t names_ = 0;
};

// Calls check(text, random) for so many texts that can be prepared.
template <class Check>
void each_composition(std::size_t wanted, const Check& check) {
    const char* const given = std::getenv("TIFFIN_TEST_SEED");
    const auto seed =
        given != nullptr ? static_cast<std::uint32_t>(std::strtoul(given, nullptr, 10)) : 20261127u;
    INFO("TIFFIN_TEST_SEED=", seed);
    tiffin_test::random_numbers random(seed);
    std::size_t checked = 0, refused = 0;
    while (checked < wanted && refused < 4 * wanted) {
        const std::string block = random_text(random).block(random.below(5));
        const auto made = tiffin::compose(block, tiffin_test::known_policies);
        REQUIRE_MESSAGE(made.ok(), block << ": " << (made ? "" : made.failure().message()));
        try {
            check(block, random);
            ++checked;
        } catch (const error& e) {
            // Names that stand twice, widths of per_layer_input that are several.
            INFO(block, ": ", e.what());
            CHECK((e.code() == errc::duplicate_tensor || e.code() == errc::shape));
            ++refused;
        }
    }
    MESSAGE(checked, " compositions, ", refused, " refused");
    CHECK(checked == wanted);
}

#if defined(TIFFIN_TEST_SMALL)
constexpr std::size_t many = 150, some = 40;
#else
constexpr std::size_t many = 2000, some = 500;
#endif

}  // namespace

TEST_CASE("random compositions agree on every backend") {
    std::size_t compared = 0, uncertain = 0;
    each_composition(many, [&](const std::string& block, auto& random) {
        const auto of = check_random_case(tiffin_test::with_reference(tiffin_test::on_both(block)), random);
        compared += of.compared;
        uncertain += of.uncertain;
    });
    MESSAGE(uncertain, " of ", compared, " numbers uncertain");
    CHECK(uncertain * 5 < compared);
}

TEST_CASE("random compositions have the gradients that differences of the reference tell") {
    tiffin_test::differences_checked all;
    each_composition(some, [&](const std::string& block, auto& random) {
        const auto of = tiffin_test::check_random_differences_of(block, random);
        all.checked += of.checked;
        all.rough += of.rough;
    });
    MESSAGE(all.rough, " of ", all.checked, " numbers are not judged");
    // Kinks and routes that change within a step of 2^-10 are rare: 1 of 8,500 numbers with the seed above.
    CHECK(all.rough * 100 < all.checked);
}

}  // namespace engine_random_compositions_test
