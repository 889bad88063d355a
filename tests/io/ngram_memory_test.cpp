// What a memory by the last ids is made of: constants as numpy draws them, and their file.
#include <tiffin/io/engram_constants.hpp>

#include <tiffin/io/safetensors_writer.hpp>
#include <tiffin/tensor.hpp>

#include "support/doctest.hpp"
#include "support/scratch_folder.hpp"

#include <cstdint>
#include <vector>

namespace io_ngram_memory_test {
using namespace tiffin;
using numbers = std::vector<std::int64_t>;

TEST_CASE("multipliers are those of numpy.random.default_rng") {
    // numpy 2.3: default_rng(seed).integers(0, bound, 4), bound = (2^63 - 1) // compressed // 2, times 2, plus 1
    CHECK(io::draw_multipliers(0, 14, 99092, 4) ==
          numbers{67716810739261, 51510806800915, 30921347202721, 82619226485591});
    // A seed of more than 32 bits, and a bound at which numbers are drawn again.
    io::detail::numpy_generator from(0x123456789ABCDEF);
    CHECK(numbers{static_cast<std::int64_t>(from.below(6000000000000000001)),
                  static_cast<std::int64_t>(from.below(6000000000000000001)),
                  static_cast<std::int64_t>(from.below(6000000000000000001)),
                  static_cast<std::int64_t>(from.below(6000000000000000001))} ==
          numbers{4267623666481025201, 5747999371306584690, 3005871465094054406, 2948996014258795634});
}

TEST_CASE("primes are those that no length or layer before has taken") {
    CHECK(io::draw_primes(8, 2, 2, 2) == numbers{11, 13, 17, 19, 23, 29, 31, 37});
    CHECK(io::draw_primes(2, 1, 1, 3) == numbers{2, 3, 5});
}

TEST_CASE("a file of constants") {
    const tiffin_test::scratch_folder folder;
    const auto path = folder / "constants.safetensors";
    const std::int64_t pad = 3;
    const std::int32_t map[] = {0, 1, 1};
    io::safetensors_writer writer;
    writer.add("pad_id", {&pad, dtype::i64, {1}});
    writer.add("token_map", {map, dtype::i32, {3}});
    writer.write(path).or_throw();
    const auto read = io::read_engram_constants(path).or_throw();
    CHECK(read.pad == numbers{3});
    CHECK(read.token_map == numbers{0, 1, 1});
    CHECK(read.primes.empty());
    CHECK(io::read_engram_constants(folder / "none").failure().code == errc::file);
}

}  // namespace io_ngram_memory_test
