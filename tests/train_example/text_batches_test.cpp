// The order in which examples/train learns from a text.
#include "../../examples/train/text_batches.hpp"

#include "support/doctest.hpp"

#include <cstddef>
#include <cstdint>
#include <set>
#include <stdexcept>
#include <vector>

namespace train_example_text_batches_test {
using ids = std::vector<std::int32_t>;

TEST_CASE("batches: every sequence once per epoch, in an order of the seed's") {
    ids tokens(41);
    for (std::size_t i = 0; i < tokens.size(); ++i) tokens[i] = static_cast<std::int32_t>(i);
    text_batches one(tokens, 4, 1), again(tokens, 4, 1), other(tokens, 4, 2);
    CHECK(one.sequences() == 10);
    ids read(40), targets(40), same(4), same_targets(4);
    one.fill(0, read, targets);
    std::set<std::int32_t> firsts;
    for (std::size_t i = 0; i < 40; ++i) {
        CHECK(targets[i] == read[i] + 1);
        if (i % 4 == 0) firsts.insert(read[i]);
    }
    CHECK(firsts.size() == 10);
    again.fill(7, same, same_targets);  // from the middle, as a run that goes on
    CHECK(same == ids(read.begin() + 28, read.begin() + 32));
    ids next(40), elsewhere(40);
    one.fill(10, next, targets);
    other.fill(0, elsewhere, targets);
    CHECK(next != read);
    CHECK(elsewhere != read);
    CHECK_THROWS_WITH_AS(text_batches(ids(4), 4, 1),
                         "the text has 4 tokens; one sequence and the token behind it take 5",
                         std::invalid_argument);
}

}  // namespace train_example_text_batches_test
