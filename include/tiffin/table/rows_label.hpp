// The label at the front of files of writable rows and of their journals, with its checksum.
#pragma once

#include <tiffin/config.hpp>

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>

TIFFIN_BEGIN
namespace detail {

// A 64-bit checksum of bytes, from a start value. One changed 8-byte word always changes it, several do with a chance
// of about 1 - 2^-64.
// Cost: three 64-bit products per 8 bytes, of which one waits for those of the word before.
// Source: the rounds of MurmurHash3 (A. Appleby), which is in the public domain.
inline std::uint64_t checksum(std::uint64_t begin, const std::byte* bytes, std::size_t count) noexcept {
    std::uint64_t sum = begin ^ 0x9E3779B97F4A7C15u;
    // Each step is invertible: different words, and different sums before it, give different sums after it.
    const auto take = [&](std::uint64_t word) {
        word = std::rotl(word * 0x87C37B91114253D5u, 31) * 0x4CF5AD432745937Fu;
        sum = std::rotl(sum ^ word, 27) * 5 + 0x52DCE729u;
    };
    take(count);
    while (count > 0) {
        std::uint64_t word = 0;
        const std::size_t some = std::min(count, sizeof word);
        std::memcpy(&word, bytes, some);
        take(word);
        bytes += some;
        count -= some;
    }
    sum = (sum ^ sum >> 33) * 0xFF51AFD7ED558CCDu;
    sum = (sum ^ sum >> 33) * 0xC4CEB9FE1A85EC53u;
    return sum ^ sum >> 33;
}

// The label of a file of rows, or of its journal.
struct rows_label {
    std::array<char, 8> kind{};
    std::uint64_t version = 1;
    std::uint64_t rows = 0;
    std::uint64_t row_bytes = 0;
    std::uint64_t number = 0;  // of a file of rows: see row_file; of a journal: commits
    std::uint64_t check = 0;

    [[nodiscard]] std::uint64_t checked() const noexcept {
        std::array<std::byte, sizeof(rows_label)> bytes{};
        std::memcpy(bytes.data(), this, sizeof *this);
        return checksum(0, bytes.data(), offsetof(rows_label, check));
    }
    [[nodiscard]] bool whole() const noexcept { return check == checked(); }
    static rows_label of(const std::array<std::byte, 48>& stored) noexcept {
        rows_label label;
        std::memcpy(&label, stored.data(), sizeof label);
        return label;
    }
    // The label's bytes in the file, with its checksum.
    [[nodiscard]] std::array<std::byte, 48> stored() const noexcept {
        rows_label sealed = *this;
        sealed.check = checked();
        std::array<std::byte, 48> bytes{};
        std::memcpy(bytes.data(), &sealed, sizeof sealed);
        return bytes;
    }
};
static_assert(sizeof(rows_label) == 48, "no bytes between the numbers, which files would hold, too");

inline constexpr std::array<char, 8> rows_kind{{'T', 'I', 'F', 'N', 'R', 'O', 'W', 'S'}};
inline constexpr std::array<char, 8> changes_kind{{'T', 'I', 'F', 'N', 'U', 'N', 'D', 'O'}};

}  // namespace detail
TIFFIN_END
