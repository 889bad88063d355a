// How weights are prepared: in which formats, by which executor, with which progress reports.
#pragma once

#include <tiffin/executor/executor.hpp>
#include <tiffin/format/number_format.hpp>
#include <tiffin/tensor.hpp>

#include <cstddef>
#include <functional>

TIFFIN_BEGIN

// Reports progress on the preparing thread: `done` of `bytes` bytes of the given tensors are prepared.
using prepare_progress = std::function<void(std::size_t done, std::size_t bytes)>;

namespace detail {

// Counts the prepared bytes of a layer's tensors.
class prepared_bytes {
public:
    prepared_bytes(const prepare_progress& progress, const weights& all) : progress_(progress) {
        for (const weights::entry& e : all.entries())
            all_ += bytes_of(e.tensor.type, e.tensor.shape.elements());
    }
    void add(const tensor_view& t) {
        done_ += bytes_of(t.type, t.shape.elements());
        if (progress_) progress_(done_, all_);
    }
    // Memory of the layer's own.
    void hold(std::size_t bytes) { held_ += bytes; }
    [[nodiscard]] std::size_t held() const noexcept { return held_; }
    // Tensors that no conversion pass reads are counted at the end.
    void finish() {
        if (progress_ && done_ != all_) progress_(all_, all_);
    }

private:
    const prepare_progress& progress_;
    std::size_t all_ = 0;
    std::size_t done_ = 0;
    std::size_t held_ = 0;
};

}  // namespace detail

// What a backend makes an engine with. What it refers to must live only until the engine is made.
struct preparation {
    number_formats formats{};
    executor_ref execute = serially;
    detail::prepared_bytes* progress = nullptr;

    void done(const tensor_view& t) const {
        if (progress != nullptr) progress->add(t);
    }
    void hold(std::size_t bytes) const {
        if (progress != nullptr) progress->hold(bytes);
    }
    [[nodiscard]] std::size_t held() const { return progress != nullptr ? progress->held() : 0; }
};

TIFFIN_END
