// The concept of a row store, which reads rows of a token table by id, and the stores that need no file.
#pragma once

#include <tiffin/aligned_buffer.hpp>
#include <tiffin/error.hpp>
#include <tiffin/table/row_moves.hpp>
#include <tiffin/tensor.hpp>

#include <algorithm>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <type_traits>
#include <utility>

TIFFIN_BEGIN

// A table's shape: one row of `width` values in one format per id in [0, rows). The scales of a row, where it has them,
// follow its codes (see tensor_scales).
struct table_shape {
    std::size_t rows = 0;
    std::size_t width = 0;
    dtype type = dtype::f32;
    tensor_scales scales{};

    [[nodiscard]] constexpr std::size_t row_bytes() const noexcept {
        return bytes_of_row(type, scales, width);
    }
    friend constexpr bool operator==(const table_shape& a, const table_shape& b) noexcept {
        return a.rows == b.rows && a.width == b.width && a.type == b.type && a.scales.stored_as(b.scales);
    }
};

// Reads table rows by token id. read(ids, to) copies the rows of `ids`, in their order and without gaps, to `to`, which
// has room for them; it changes nothing else and may be called from several threads. After a failure the contents of
// `to` are unspecified.
// Precondition of read: every id lies in the table, see check_ids.
// Rows may be added; width and format never change. A child of fork() must not read a store that another thread was
// reading at the time.
template <class S>
concept row_store = requires(const S& store, std::span<const std::int32_t> ids, std::byte* to) {
    { store.shape() } -> std::convertible_to<table_shape>;
    { store.read(ids, to) } -> std::same_as<status>;
};

// A store whose rows may change has a version, which grows whenever they may have changed; caches and prefetches then
// read rows again. Rows of a store without a version are taken as constant. version() and shape() may be called while
// another thread reads.
template <class S>
concept versioned_rows = requires(const S& store) {
    { store.version() } -> std::convertible_to<std::uint64_t>;
};

// A reference to what is done with each row of a call: use(i, row), the row as it is stored, valid during the call.
class row_use {
public:
    template <class Use>
        requires(!std::same_as<Use, row_use>)
    row_use(const Use& use)
    noexcept
        : use_(std::addressof(use)), call_([](const void* u, std::size_t i, const std::byte* row) {
              (*static_cast<const Use*>(u))(i, row);
          }) {}
    void operator()(std::size_t i, const std::byte* row) const { call_(use_, i, row); }

private:
    const void* use_;
    void (*call_)(const void*, std::size_t, const std::byte*);
};

// A store that passes rows where they lie: visit(ids, use) calls use(i, row) for each i, ascending, until a failure.
template <class S>
concept visited_rows = requires(const S& store, std::span<const std::int32_t> ids, const row_use& use) {
    { store.visit(ids, use) } -> std::same_as<status>;
};

// Calls use(i, row) for each row of `ids`, where it lies, or in a buffer of some 64 KiB.
template <row_store Store>
status visit_rows(const Store& store, std::span<const std::int32_t> ids, const row_use& use) {
    if constexpr (visited_rows<Store>) {
        return store.visit(ids, use);
    } else {
        const std::size_t bytes = table_shape(store.shape()).row_bytes();
        const std::size_t most = std::clamp<std::size_t>(65536 / std::max<std::size_t>(bytes, 1), 1,
                                                         std::max<std::size_t>(ids.size(), 1));
        aligned_buffer memory(most * bytes);
        std::byte* const rows = memory.data();
        for (std::size_t first = 0; first < ids.size(); first += most) {
            const auto piece = ids.subspan(first, std::min(most, ids.size() - first));
            if (status s = store.read(piece, rows); !s) return s;
            for (std::size_t i = 0; i < piece.size(); ++i) use(first + i, rows + i * bytes);
        }
        return {};
    }
}

// A store's version; 0 where it has none.
template <row_store Store>
[[nodiscard]] std::uint64_t version_of(const Store& store) {
    if constexpr (versioned_rows<Store>)
        return store.version();
    else
        return 0;
}

// A reference to a store of any type. The store must outlive it; temporaries are refused.
class row_store_ref {
public:
    row_store_ref() = default;
    template <row_store Store>
        requires(!std::same_as<Store, row_store_ref>)
    row_store_ref(const Store& store)
    noexcept
        : store_(std::addressof(store)),
          shape_([](const void* s) -> table_shape { return static_cast<const Store*>(s)->shape(); }),
          read_([](const void* s, std::span<const std::int32_t> ids, std::byte* to) {
              return static_cast<const Store*>(s)->read(ids, to);
          }),
          visit_([](const void* s, std::span<const std::int32_t> ids, const row_use& use) {
              return visit_rows(*static_cast<const Store*>(s), ids, use);
          }),
          version_([](const void* s) { return version_of(*static_cast<const Store*>(s)); }) {}
    template <row_store Store>
        requires(!std::same_as<Store, row_store_ref>)
    row_store_ref(const Store&&)
    = delete;
    // Precondition of all: it refers to a store.
    [[nodiscard]] table_shape shape() const { return shape_(store_); }
    status read(std::span<const std::int32_t> ids, std::byte* to) const { return read_(store_, ids, to); }
    status visit(std::span<const std::int32_t> ids, const row_use& use) const {
        return visit_(store_, ids, use);
    }
    [[nodiscard]] std::uint64_t version() const { return version_(store_); }
    // Whether both refer to one store. Of two at one address, as a member may be, the types differ.
    friend bool operator==(const row_store_ref& a, const row_store_ref& b) noexcept {
        return a.store_ == b.store_ && a.read_ == b.read_;
    }

private:
    const void* store_ = nullptr;
    table_shape (*shape_)(const void*) = nullptr;
    status (*read_)(const void*, std::span<const std::int32_t>, std::byte*) = nullptr;
    status (*visit_)(const void*, std::span<const std::int32_t>, const row_use&) = nullptr;
    std::uint64_t (*version_)(const void*) = nullptr;
};

// Checks ids. Errors: errc::token_id for the first id outside the table, with its index.
inline status check_ids(std::span<const std::int32_t> ids, const table_shape& table) {
    for (std::size_t i = 0; i < ids.size(); ++i)
        if (ids[i] < 0 || static_cast<std::size_t>(ids[i]) >= table.rows)
            return failure(errc::token_id, "ids", "ids[", i, "] = ", ids[i], " lies outside the table's ",
                           table.rows, " rows");
    return {};
}

// Widens a stored row to `width` floats: exactly, or times its scales.
inline void decode_row(const table_shape& table, const std::byte* row, float* to) noexcept {
    read_as_f32({row, row + bytes_of(table.type, table.width)}, table.type, table.scales, 0, table.width, to);
}

// Rounds `width` floats to a stored row. Precondition: has_encode(table.type), and there are no scales.
inline void encode_row(const table_shape& table, const float* from, std::byte* row) noexcept {
    with_format(table.type, [&](auto format) {
        using storage = typename decltype(format)::storage;
        for (std::size_t i = 0; i < table.width; i += decltype(format)::block, row += sizeof(storage)) {
            storage stored;
            decltype(format)::encode(from + i, stored);
            std::memcpy(row, &stored, sizeof stored);
        }
    });
}

// A store over a table (rows, width) in the caller's memory, at any alignment. The scales of each row, wherever they are,
// follow its codes in the rows that are read.
class in_memory {
public:
    // Errors: errc::shape where it is no table of whole blocks, errc::dtype where it holds integers.
    static result<in_memory> view(const tensor_view& table) {
        if ((is_integer(table.type) && !table.scales.any()) || table.type == dtype::f64)
            return failure(errc::dtype, "table", "is ", name_of(table.type),
                           "; rows hold f32 or a smaller format of it");
        if (table.shape.rank() != 2 || table.shape[1] == 0 || table.shape[1] % block_of(table.type) != 0)
            return failure(errc::shape, "table", "has shape ", to_string(table.shape),
                           "; it must be (rows, width), the width a multiple of ", block_of(table.type),
                           " in ", name_of(table.type));
        return in_memory(table);
    }

    [[nodiscard]] const table_shape& shape() const noexcept { return shape_; }
    status read(std::span<const std::int32_t> ids, std::byte* to) const {
        const std::size_t bytes = shape_.row_bytes();
        if (table_.scales.any() && !table_.scales.in_rows()) {
            const std::size_t codes = bytes_of(shape_.type, shape_.width);
            for (std::size_t i = 0; i < ids.size(); ++i, to += bytes) {
                const stored_row row = table_.row(static_cast<std::size_t>(ids[i]));
                std::memcpy(to, row.codes, codes);
                std::memcpy(to + codes, row.scales, bytes - codes);
            }
            return {};
        }
        const auto* const data = static_cast<const std::byte*>(table_.data);
        const auto row = [&](std::size_t i) { return data + static_cast<std::size_t>(ids[i]) * bytes; };
        detail::use_rows(0, ids.size(), ids.size(), bytes, row, [&](std::size_t i, const std::byte* from) {
            std::memcpy(to + i * bytes, from, bytes);
        });
        return {};
    }

private:
    explicit in_memory(const tensor_view& table) noexcept
        : table_(table), shape_{table.shape[0], table.shape[1], table.type, table.scales.as_in_rows()} {}

    tensor_view table_;
    table_shape shape_;
};

// A store made of a shape and a callable read(ids, to) that returns a status.
template <class Read>
    requires(std::is_invocable_r_v<status, const Read&, std::span<const std::int32_t>, std::byte*>)
class from_callback {
public:
    from_callback(const table_shape& shape, Read read) : shape_(shape), read_(std::move(read)) {}

    [[nodiscard]] const table_shape& shape() const noexcept { return shape_; }
    status read(std::span<const std::int32_t> ids, std::byte* to) const { return read_(ids, to); }

private:
    table_shape shape_;
    Read read_;
};

TIFFIN_END
