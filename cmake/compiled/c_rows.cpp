// The C interface: rows of tables in files (tiffin/tiffin_rows.h).
#include <tiffin/cpu/simd/simd.hpp>
#include <tiffin/io/gguf.hpp>
#include <tiffin/io/gguf_tensors.hpp>
#include <tiffin/io/table_file.hpp>
#include <tiffin/table/float_rows.hpp>

#include "c_common.hpp"
#include "c_rows.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace {

using namespace tiffin::c_detail;
using tiffin::errc;
using tiffin::failure;
using tiffin::result;

result<tiffin::table_location> find(const std::filesystem::path& path, const std::string& tensor) {
    if (path.extension() != ".gguf") return tiffin::io::find_table(path, tensor);
    auto file = tiffin::io::gguf_file::open(path);
    if (!file) return file.failure();
    std::vector<tiffin::io::gguf_file> files;
    files.push_back(*std::move(file));
    return tiffin::io::detail::gguf_tensors(files).table(tensor);
}

std::span<const std::int32_t> span_of(const int32_t* ids, std::size_t count) {
    return {ids, count};
}

// Widened by the simd backend's decoders.
auto floats_of(const tiffin_rows& rows) {
    static constexpr tiffin::number_formats formats =
        tiffin::simd<tiffin::f32, tiffin::any_format>{.tables = tiffin::kept_as_given}.formats();
    return tiffin::float_rows(*rows.edited, formats);
}

// What is NULL of a call with ids, or none.
const char* null_of(const void* rows, const int32_t* ids, std::size_t count, const void* to) {
    if (rows == nullptr) return "rows";
    if (count > 0 && ids == nullptr) return "ids";
    return count > 0 && to == nullptr ? "to" : nullptr;
}

}  // namespace

tiffin_error* tiffin_rows_open(const char* path, const char* tensor, const tiffin_rows_options* options,
                               tiffin_rows** rows) {
    return guarded([&]() -> tiffin_error* {
        if (path == nullptr) return error_of(is_null("path"));
        if (tensor == nullptr || rows == nullptr)
            return error_of(is_null(tensor == nullptr ? "tensor" : "rows"));
        tiffin_rows_options how{};
        if (const auto wrong = take(options, how)) return error_of(*wrong);
        const auto table = find(path, tensor);
        if (!table) return error_of(because(table.failure()));
        auto made = std::make_unique<tiffin_rows>();
        if (const tiffin::status s = open_rows(*table, how, *made); !s) return error_of(because(s.failure()));
        *rows = made.release();
        return nullptr;
    });
}
void tiffin_rows_free(tiffin_rows* rows) {
    delete rows;
}

tiffin_error* tiffin_rows_describe(const tiffin_rows* rows, tiffin_rows_shape* shape) {
    return guarded([&]() -> tiffin_error* {
        if (rows == nullptr) return error_of(is_null("rows"));
        if (const auto wrong = unknown_size(shape, "shape")) return error_of(*wrong);
        const tiffin::table_shape held = rows->edited->shape();
        *shape = {sizeof(tiffin_rows_shape), held.rows, held.width, static_cast<tiffin_dtype>(held.type) + 1,
                  held.row_bytes()};
        return nullptr;
    });
}
tiffin_error* tiffin_rows_read(const tiffin_rows* rows, const int32_t* ids, size_t count, void* to) {
    return guarded([&]() -> tiffin_error* {
        if (const char* const name = null_of(rows, ids, count, to)) return error_of(is_null(name));
        if (const tiffin::status s = check_ids(span_of(ids, count), rows->edited->shape()); !s)
            return error_of(because(s.failure()));
        const tiffin::status done = rows->edited->read(span_of(ids, count), static_cast<std::byte*>(to));
        return done ? nullptr : error_of(because(done.failure()));
    });
}
tiffin_error* tiffin_rows_gather(const tiffin_rows* rows, const int32_t* ids, size_t count, float* to) {
    return guarded([&]() -> tiffin_error* {
        if (const char* const name = null_of(rows, ids, count, to)) return error_of(is_null(name));
        if (const tiffin::status s = check_ids(span_of(ids, count), rows->edited->shape()); !s)
            return error_of(because(s.failure()));
        const tiffin::status s = floats_of(*rows).gather(span_of(ids, count), to);
        return s ? nullptr : error_of(because(s.failure()));
    });
}
tiffin_error* tiffin_rows_sum(const tiffin_rows* rows, const int32_t* ids, size_t count, const size_t* first,
                              size_t groups, const float* weights, float* to) {
    return guarded([&]() -> tiffin_error* {
        if (const char* const name = null_of(rows, ids, count, to)) return error_of(is_null(name));
        if (groups > 0 && (first == nullptr || to == nullptr))
            return error_of(is_null(first == nullptr ? "first" : "to"));
        if (const tiffin::status s = check_ids(span_of(ids, count), rows->edited->shape()); !s)
            return error_of(because(s.failure()));
        const tiffin::status s = floats_of(*rows).sum(span_of(ids, count), {first, groups},
                                                      {weights, weights == nullptr ? 0 : count}, to);
        return s ? nullptr : error_of(because(s.failure()));
    });
}
tiffin_error* tiffin_rows_count(const tiffin_rows* rows, tiffin_rows_counts* counts) {
    return guarded([&]() -> tiffin_error* {
        if (rows == nullptr) return error_of(is_null("rows"));
        if (const auto wrong = unknown_size(counts, "counts")) return error_of(*wrong);
        const tiffin::cache_counts held = rows->cache ? rows->cache->counts() : tiffin::cache_counts{};
        *counts = {sizeof(tiffin_rows_counts), held.hits, held.misses, held.bytes_read};
        return nullptr;
    });
}

tiffin_error* tiffin_rows_replace(tiffin_rows* rows, int32_t id, int32_t by) {
    return guarded([&]() -> tiffin_error* {
        if (rows == nullptr) return error_of(is_null("rows"));
        const tiffin::status done = rows->edited->replace(id, by);
        return done ? nullptr : error_of(because(done.failure()));
    });
}
tiffin_error* tiffin_rows_add_mean(tiffin_rows* rows, const int32_t* ids, size_t count, int32_t* id) {
    return guarded([&]() -> tiffin_error* {
        if (const char* const name = null_of(rows, ids, count, id)) return error_of(is_null(name));
        if (id == nullptr) return error_of(is_null("id"));
        const auto made = rows->edited->add_mean(span_of(ids, count));
        if (!made) return error_of(because(made.failure()));
        *id = *made;
        return nullptr;
    });
}
int tiffin_rows_undo(tiffin_rows* rows) {
    return rows != nullptr && rows->edited->undo() ? 1 : 0;
}
