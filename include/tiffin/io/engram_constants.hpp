// The constants of Engram's addresses: as published programs draw them, and in a file beside a model that lacks them.
#pragma once

#include <tiffin/bind/tensor_checks.hpp>
#include <tiffin/error.hpp>
#include <tiffin/io/safetensors.hpp>
#include <tiffin/tensor.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <limits>
#include <set>
#include <string>
#include <utility>
#include <vector>

TIFFIN_BEGIN
namespace io {

// Those of all layers with such a memory, one layer after the other; what is not known is empty.
struct engram_constants {
    std::vector<std::int64_t> multipliers;  // (layers, N)
    std::vector<std::int64_t> primes;       // (layers, N - 1, heads)
    std::vector<std::int64_t> offsets;      // the same
    std::vector<std::int64_t> token_map;    // (V): the compressed id of each token id
    std::vector<std::int64_t> pad;          // one: the compressed id of what is missing
};

namespace detail {

// Numbers of numpy.random.default_rng(seed).integers(0, bound, dtype=int64): PCG64 (XSL-RR) seeded by SeedSequence, a
// number below the bound by Lemire's method.
// Source: M. O'Neill's PCG and seed_seq_fe; numpy/random/bit_generator.pyx, _pcg64.pyx, src/distributions.
class numpy_generator {
public:
    explicit numpy_generator(std::uint64_t seed) {
        // The seed's words, the last of which is not 0, fill a pool of four.
        std::array<std::uint32_t, 4> pool{};
        std::uint32_t constant = 0x43b0d7e5u;
        const auto hashed = [&](std::uint32_t value) {
            value ^= constant;
            constant *= 0x931e8875u;
            value *= constant;
            return value ^ (value >> 16);
        };
        const auto mix = [](std::uint32_t x, std::uint32_t y) {
            const std::uint32_t made = x * 0xca01f9ddu - y * 0x4973f715u;
            return made ^ (made >> 16);
        };
        pool[0] = hashed(static_cast<std::uint32_t>(seed));
        pool[1] = hashed(static_cast<std::uint32_t>(seed >> 32));
        pool[2] = hashed(0);
        pool[3] = hashed(0);
        for (std::size_t from = 0; from < 4; ++from)
            for (std::size_t to = 0; to < 4; ++to)
                if (from != to) pool[to] = mix(pool[to], hashed(pool[from]));

        std::array<std::uint32_t, 8> words{};
        constant = 0x8b51f9ddu;
        for (std::size_t i = 0; i < words.size(); ++i) {
            std::uint32_t value = pool[i % 4] ^ constant;
            constant *= 0x58f38dedu;
            value *= constant;
            words[i] = value ^ (value >> 16);
        }
        const auto pair = [&](std::size_t i) {
            return static_cast<std::uint64_t>(words[i + 1]) << 32 | words[i];
        };
        const wide start = static_cast<wide>(pair(0)) << 64 | pair(2);
        step_ = (static_cast<wide>(pair(4)) << 64 | pair(6)) << 1 | 1u;
        state_ = step_ + start;
        advance();
    }

    // A number from 0 to bound - 1. Precondition: bound > 2^32, below which numpy draws 32 bits at a time.
    std::uint64_t below(std::uint64_t bound) noexcept {
        wide product = static_cast<wide>(next()) * bound;
        if (static_cast<std::uint64_t>(product) < bound) {
            const std::uint64_t uneven = (0 - bound) % bound;
            while (static_cast<std::uint64_t>(product) < uneven) product = static_cast<wide>(next()) * bound;
        }
        return static_cast<std::uint64_t>(product >> 64);
    }

private:
    __extension__ typedef unsigned __int128 wide;

    void advance() noexcept {
        constexpr wide multiplier = static_cast<wide>(2549297995355413924u) << 64 | 4865540595714422341u;
        state_ = state_ * multiplier + step_;
    }
    std::uint64_t next() noexcept {
        advance();
        const auto folded = static_cast<std::uint64_t>(state_ >> 64) ^ static_cast<std::uint64_t>(state_);
        const unsigned turn = static_cast<unsigned>(state_ >> 122);
        return folded >> turn | folded << ((64 - turn) % 64);
    }

    wide state_ = 0, step_ = 0;
};

}  // namespace detail

// So many compressed ids can be drawn for: more would need numpy's way with small bounds.
inline constexpr std::size_t most_compressed = std::size_t{1} << 29;

// The multipliers of a layer: odd numbers with which no product with a compressed id overflows 63 bits.
// Precondition: 0 < compressed <= most_compressed. Source: Engram's published code, DeepSeek-V4.1, engram-peft: seed + 10007 layer.
inline std::vector<std::int64_t> draw_multipliers(std::uint64_t seed, std::size_t layer,
                                                  std::uint64_t compressed, std::size_t longest) {
    const std::uint64_t most = static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max());
    const std::uint64_t bound = most / compressed / 2;
    detail::numpy_generator from(seed + 10007 * layer);
    std::vector<std::int64_t> made(longest);
    for (std::int64_t& one : made) one = static_cast<std::int64_t>(2 * from.below(bound) + 1);
    return made;
}

// The primes of all layers, (layers, lengths, heads): each the next above the one before that is not taken yet, beginning
// anew at `least` for each length. Precondition: least > 1. Cost: trial division by every number up to the root.
// Source: as draw_multipliers.
inline std::vector<std::int64_t> draw_primes(std::int64_t least, std::size_t layers, std::size_t lengths,
                                             std::size_t heads) {
    const auto is_prime = [](std::int64_t n) {
        for (std::int64_t d = 2; d * d <= n; ++d)
            if (n % d == 0) return false;
        return true;
    };
    std::set<std::int64_t> taken;
    std::vector<std::int64_t> made;
    for (std::size_t part = 0; part < layers * lengths; ++part) {
        std::int64_t at = least - 1;
        for (std::size_t h = 0; h < heads; ++h) {
            do ++at;
            while (!is_prime(at) || taken.contains(at));
            taken.insert(at);
            made.push_back(at);
        }
    }
    return made;
}

// Reads constants from a safetensors file: `multipliers`, `primes`, `offsets`, `token_map` and `pad_id`, each I64 or I32 of
// any shape, each optional.
// Errors: those of safetensors_file::open; errc::unused_tensor for another tensor, errc::dtype for other numbers.
inline result<engram_constants> read_engram_constants(const std::filesystem::path& path) {
    const auto file = safetensors_file::open(path);
    if (!file) return file.failure();
    engram_constants made;
    const std::array<std::pair<const char*, std::vector<std::int64_t>*>, 5> known{
        {{"multipliers", &made.multipliers},
         {"primes", &made.primes},
         {"offsets", &made.offsets},
         {"token_map", &made.token_map},
         {"pad_id", &made.pad}}};
    for (const weights::entry& e : file->tensors().entries()) {
        const auto* const at =
            std::find_if(known.begin(), known.end(), [&](const auto& one) { return e.name == one.first; });
        if (at == known.end())
            return failure(errc::unused_tensor, file->label(), e.name,
                           " is no constant; known are multipliers, primes, offsets, token_map and pad_id");
        if (e.tensor.type != dtype::i64 && e.tensor.type != dtype::i32)
            return failure(errc::dtype, file->label(), e.name, " is ", name_of(e.tensor.type),
                           "; constants are I64 or I32");
        for (std::size_t i = 0; i < e.tensor.shape.elements(); ++i)
            at->second->push_back(tiffin::detail::load_integer(e.tensor, i));
    }
    return {std::move(made)};
}

}  // namespace io
TIFFIN_END
