// Failures, as values and as an exception.
#pragma once

#include <tiffin/config.hpp>
#include <tiffin/piece.hpp>
#include <tiffin/quoted.hpp>

#include <exception>
#include <initializer_list>
#include <memory>
#include <new>
#include <stdexcept>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

TIFFIN_BEGIN

// The kinds of failure. Each is found before any output is written, except errc::executor.
enum class errc {
    shape,             // a tensor's shape or rank does not fit the block
    missing_tensor,    // the block needs a tensor that was not given
    unused_tensor,     // a tensor was given that the block does not use
    duplicate_tensor,  // one name was given twice
    dtype,             // a tensor's number format is not one the block can read
    value,             // a tensor holds a value that the requested format cannot represent
    size,              // a span of a call is too small, or its width is not that of the block
    token_id,          // a token id lies outside a table
    overlap,           // the output overlaps an input
    workspace,         // the workspace is too small for a single token
    option,            // an option has an unknown name or an impossible value
    file,              // a file cannot be read, written or parsed
    empty,             // the object called holds nothing: it was moved from, or made without a layer
    device,            // a device, its memory or its stream reports an error; the text is the device's own
    executor,          // an executor skipped a task or ran one twice: outputs are invalid
};

// One failure: its kind, what it concerns, and a sentence with the offending numbers. `where`: the name or path, raw.
struct failure {
    errc code;
    std::string where;
    std::string what;

    // The sentence in pieces, text and integers: failure(errc::size, "y", "has ", rows, " rows").
    template <class... Pieces>
    failure(errc kind, std::string_view thing, const Pieces&... pieces)
        : failure(kind, thing, {detail::piece(pieces)...}) {}

    // The message: one line of printable ASCII, at most 6146 characters; other bytes become \xNN. `where` and the
    // sentence are cut separately, so that a long name leaves room for the sentence.
    [[nodiscard]] std::string message() const {
        std::string line = detail::printable(where, detail::path_limit);
        if (!line.empty()) line += ": ";
        line += detail::printable(what, detail::sentence_limit);
        return line;
    }

private:
    // Out of line, to keep success paths short.
    [[gnu::cold, gnu::noinline]] failure(errc kind, std::string_view thing,
                                         std::initializer_list<detail::piece> pieces)
        : code(kind), where(thing) {
        for (const detail::piece& p : pieces) p.append_to(what);
    }
};

#if TIFFIN_EXCEPTIONS
// The exception of the throwing forms. `what()` is `failure::message()`. Each instruction set has
// its own copy of this type (see config.hpp): across instruction sets, catch std::exception.
class error : public std::runtime_error {
public:
    explicit error(failure f) : std::runtime_error(f.message()), failure_(std::move(f)) {}
    [[nodiscard]] errc code() const noexcept { return failure_.code; }
    [[nodiscard]] const std::string& where() const noexcept { return failure_.where; }
    [[nodiscard]] const failure& details() const noexcept { return failure_; }

private:
    failure failure_;
};
#endif

namespace detail {

// A failure by pointer, so that a success is one word to move; copied and freed out of line.
class held_failure {
public:
    held_failure() = default;
    [[gnu::cold, gnu::noinline]] held_failure(failure f) : held_(new failure(std::move(f))) {}
    held_failure(held_failure&& other) noexcept : held_(std::exchange(other.held_, nullptr)) {}
    held_failure(const held_failure& other) : held_(other.held_ != nullptr ? copy(*other.held_) : nullptr) {}
    held_failure& operator=(held_failure other) noexcept {
        std::swap(held_, other.held_);
        return *this;
    }
    ~held_failure() {
        if (held_ != nullptr) free(held_);
    }
    explicit operator bool() const noexcept { return held_ != nullptr; }
    const failure& operator*() const noexcept { return *held_; }

private:
    [[gnu::cold, gnu::noinline]] static const failure* copy(const failure& f) { return new failure(f); }
    [[gnu::cold, gnu::noinline]] static void free(const failure* f) noexcept { delete f; }

    const failure* held_ = nullptr;
};

}  // namespace detail

// Success or a failure: the result of the non-throwing form of a call. True on success.
class [[nodiscard]] status {
public:
    status() = default;
    status(tiffin::failure f) : held_(std::move(f)) {}
    [[nodiscard]] bool ok() const noexcept { return !held_; }
    explicit operator bool() const noexcept { return ok(); }
    // Precondition: not ok().
    [[nodiscard]] const tiffin::failure& failure() const noexcept { return *held_; }
#if TIFFIN_EXCEPTIONS
    void or_throw() && {
        if (held_) throw tiffin::error(*held_);
    }
#endif

private:
    detail::held_failure held_;
};

// A value or a failure. True if it holds the value. Its own union: std::variant is some forty functions for each T.
template <class T>
class [[nodiscard]] result {
public:
    result(T value) noexcept(std::is_nothrow_move_constructible_v<T>) : value_(std::move(value)), ok_(true) {}
    result(tiffin::failure f) : held_(std::move(f)), ok_(false) {}
    result(const result& other) requires std::is_copy_constructible_v<T> : ok_(other.ok_) {
        if (ok_)
            ::new (static_cast<void*>(&value_)) T(other.value_);
        else
            ::new (static_cast<void*>(&held_)) detail::held_failure(other.held_);
    }
    result(result&& other) noexcept(std::is_nothrow_move_constructible_v<T>) : ok_(other.ok_) {
        if (ok_)
            ::new (static_cast<void*>(&value_)) T(std::move(other.value_));
        else
            ::new (static_cast<void*>(&held_)) detail::held_failure(std::move(other.held_));
    }
    result& operator=(result&& other) noexcept {
        static_assert(std::is_nothrow_move_constructible_v<T>,
                      "this object holds nothing while it is filled again");
        if (this != &other) {
            this->~result();
            ::new (static_cast<void*>(this)) result(std::move(other));
        }
        return *this;
    }
    ~result() {
        if (ok_)
            value_.~T();
        else
            held_.~held_failure();
    }
    [[nodiscard]] bool ok() const noexcept { return ok_; }
    explicit operator bool() const noexcept { return ok_; }
    // Precondition of the four accessors: ok().
    T& operator*() & noexcept { return value_; }
    const T& operator*() const& noexcept { return value_; }
    T&& operator*() && noexcept { return std::move(value_); }
    T* operator->() noexcept { return std::addressof(value_); }
    const T* operator->() const noexcept { return std::addressof(value_); }
    // Precondition: not ok().
    [[nodiscard]] const tiffin::failure& failure() const noexcept { return *held_; }
#if TIFFIN_EXCEPTIONS
    T or_throw() && {
        if (!ok_) throw tiffin::error(*held_);
        return std::move(value_);
    }
#endif

private:
    union {
        T value_;
        detail::held_failure held_;
    };
    bool ok_;
};

namespace detail {

// Runs `work` and returns its status, or its exception as a failure: for code that must not exit by an exception, on a
// thread, in a driver callback, or between collective calls that other ranks wait in.
template <class Work>
status attempt(const char* where, const Work& work) {
#if TIFFIN_EXCEPTIONS
    try {
        return work();
    } catch (const std::exception& e) {
        return failure(errc::file, where, "threw: ", e.what());
    } catch (...) {
        return failure(errc::file, where, "threw what is no std::exception");
    }
#else
    static_cast<void>(where);
    return work();
#endif
}

}  // namespace detail

TIFFIN_END
