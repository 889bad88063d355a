// How weights are prepared: kept in which formats, by which threads, and who is told how far it has come.
#pragma once

#include <tiffin/executor/executor.hpp>
#include <tiffin/format/number_format.hpp>
#include <tiffin/tensor.hpp>

#include <cstddef>
#include <functional>

TIFFIN_BEGIN

// Told, on the preparing thread, how many bytes of the given tensors are prepared, of how many.
using prepare_progress = std::function<void(std::size_t done, std::size_t bytes)>;

namespace detail {

// The bytes of a layer's tensors that are prepared.
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
    // Memory that the layer keeps of its own.
    void hold(std::size_t bytes) { held_ += bytes; }
    [[nodiscard]] std::size_t held() const noexcept { return held_; }
    // What has no part in a pass over numbers counts at the end.
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

// What a backend makes an engine by. What it refers to need not outlive the making.
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
