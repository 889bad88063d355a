// What a program does with a token-indexed memory that was found in a file: its table is opened, its layer prepared, a call
// made.
#pragma once

#include <tiffin/io/memory_table.hpp>
#include <tiffin/io/ngram_memory.hpp>
#include <tiffin/runtime/memory_branches.hpp>
#include <tiffin/source/dot_gated.hpp>
#include <tiffin/table/mapped_file.hpp>
#include <tiffin/table/ngram_addresses.hpp>
#include <tiffin/table/ngram_rows.hpp>
#include <tiffin/tiffin.hpp>

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

namespace tiffin_fuzz {

// The readers of one input. Whatever it is, a failure is one line of ASCII.
class readers {
public:
    template <class Outcome>
    bool takes(const Outcome& outcome) {
        if (outcome.ok()) return true;
        const std::string message = outcome.failure().message();
        for (const char c : message)
            if (c < 0x20 || c > 0x7E) std::abort();
        said_ += message + "\n";
        return false;
    }
    // Some reader took the input to its end.
    void ran() noexcept { ran_ = true; }
    // With TIFFIN_FUZZ_SEEDS in the environment the inputs are seeds: one that no reader takes is of no use.
    void end() const {
        if (ran_ || std::getenv("TIFFIN_FUZZ_SEEDS") == nullptr) return;
        std::fprintf(stderr, "no reader takes this seed:\n%s", said_.c_str());
        std::abort();
    }

private:
    bool ran_ = false;
    std::string said_;
};

// Reads the first and the last row of a table.
inline bool read_table(readers& of, const tiffin::io::memory_table& table) {
    const auto rows = tiffin::io::memory_rows<tiffin::mapped_file>::open(table);
    if (!of.takes(rows) || rows->shape().rows == 0) return false;
    const std::vector<std::int32_t> ids{0, static_cast<std::int32_t>(rows->shape().rows - 1)};
    std::vector<std::byte> to(ids.size() * rows->shape().row_bytes());
    return of.takes(rows->read(ids, to.data()));
}

template <class Gate>
void run_found(readers& of, const tiffin::io::ngram_memory& found) {
    using tiffin::engram_hash;
    if (!read_table(of, found.table)) return;
    const auto table = tiffin::io::memory_rows<tiffin::mapped_file>::open(found.table).or_throw();
    auto memory = tiffin::memory_branches::prepare<Gate>(
        found.tensors, found.branches,
        tiffin::simd<tiffin::f32, tiffin::any_format>{{}, tiffin::kept_as_given},
        {.eps = found.eps, .convolution_eps = found.convolution_eps, .dilation = found.dilation});
    const auto address = tiffin::ngram_addresses<engram_hash>::of(found.hash, found.end);
    if (!of.takes(memory) || !of.takes(address) || address->vocab() == 0) return;
    auto rows = tiffin::ngram_rows::of(std::vector<tiffin::ngram_table>(address->tables(), {table}));
    if (!of.takes(rows)) return;
    const std::vector<std::int32_t> ids{0, static_cast<std::int32_t>(address->vocab() - 1), 0};
    const std::vector<std::uint32_t> sequence_of{0, 1, 0};
    std::vector<tiffin::ngram_history> before(2, tiffin::ngram_history(address->order()));
    std::vector<std::int32_t> addresses(address->tables() * ids.size());
    if (!of.takes((*address)(ids, sequence_of, before, addresses))) return;
    const auto e = rows->gather(addresses);
    if (!of.takes(e)) return;
    const std::size_t width = memory->branches() * memory->width();
    std::vector<float> x(ids.size() * width, 1);
    const tiffin::matrix_view<float> h(x.data(), ids.size(), width);
    std::vector<tiffin::row_history> past = memory->make_histories(2);
    if (of.takes((*memory)(h, *e, h, sequence_of, past))) of.ran();
}
inline void run_found(readers& of, const tiffin::result<tiffin::io::ngram_memory>& found) {
    if (!of.takes(found)) return;
    if (found->copysign)
        run_found<tiffin::copysign_root_gate>(of, *found);
    else
        run_found<tiffin::signed_root_gate>(of, *found);
}

}  // namespace tiffin_fuzz
