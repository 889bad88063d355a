// The C interface: tables in files that learn (tiffin/tiffin_rows.h).
#include <tiffin/tiffin_rows.h>

#include <tiffin/learn/adamw.hpp>
#include <tiffin/learn/stored_table.hpp>
#include <tiffin/train/simd.hpp>

#include "c_common.hpp"
#include "c_rows.hpp"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>

struct tiffin_stored_table {
    tiffin::stored_table held;
    std::atomic<std::uint64_t> version = 0;  // of the values, for what caches them
};

namespace {

using namespace tiffin::c_detail;
using tiffin::errc;
using tiffin::failure;
using tiffin::status;

// Gradients in the caller's memory.
class given_gradients final : public tiffin::row_gradients<float> {
public:
    given_gradients(std::span<const std::int32_t> ids, const float* rows, std::size_t width)
        : ids_(ids), rows_(rows), width_(width) {}
    [[nodiscard]] std::size_t experts() const override { return 1; }
    [[nodiscard]] std::size_t width() const override { return width_; }
    [[nodiscard]] std::size_t capacity() const override { return ids_.size(); }
    [[nodiscard]] std::size_t size() const override { return ids_.size(); }
    [[nodiscard]] std::int32_t id(std::size_t n) const override { return ids_[n]; }
    [[nodiscard]] const float* row(std::size_t n, std::size_t) const override { return rows_ + n * width_; }

private:
    std::span<const std::int32_t> ids_;
    const float* rows_;
    std::size_t width_;
};

status check_options(const tiffin_adamw& how) {
    for (const auto& [name, x] : {std::pair{"rate", how.rate},
                                  {"beta1", how.beta1},
                                  {"beta2", how.beta2},
                                  {"eps", how.eps},
                                  {"decay", how.decay},
                                  {"clip", how.clip}})
        if (!std::isfinite(x) || x < 0)
            return failure(errc::option, name, "is ", std::to_string(x), "; it must be a number from 0 on");
    for (const auto& [name, x] : {std::pair{"beta1", how.beta1}, {"beta2", how.beta2}})
        if (x >= 1) return failure(errc::option, name, "is ", std::to_string(x), "; it must be below 1");
    return {};
}

tiffin_error* done(const status& s) {
    return s ? nullptr : error_of(because(s.failure()));
}

// What all do that only call a function of the table's rows.
template <class Work>
tiffin_error* on_rows(tiffin_stored_table* table, const Work& work) {
    return guarded([&]() -> tiffin_error* {
        if (table == nullptr) return error_of(is_null("table"));
        const status s = work(table->held.rows());
        ++table->version;
        return done(s);
    });
}

}  // namespace

tiffin_error* tiffin_stored_table_create(const char* path, size_t rows, size_t width,
                                         void (*first)(void* user, size_t id, float* to), void* user,
                                         tiffin_stored_table** table) {
    return guarded([&]() -> tiffin_error* {
        if (path == nullptr || table == nullptr) return error_of(is_null(path == nullptr ? "path" : "table"));
        constexpr std::size_t most = std::size_t{1} << 40;
        if (width == 0 || width > most)
            return error_of(because(failure(errc::shape, path, "is to have rows of ", width, " numbers")));
        tiffin::stored_table::first_row values;
        if (first != nullptr)
            values = [&](std::size_t id, std::span<float> to) { first(user, id, to.data()); };
        auto made = tiffin::stored_table::create(path, rows, width, values);
        if (!made) return error_of(because(made.failure()));
        *table = new tiffin_stored_table{*std::move(made)};
        return nullptr;
    });
}
tiffin_error* tiffin_stored_table_open(const char* path, tiffin_stored_table** table) {
    return guarded([&]() -> tiffin_error* {
        if (path == nullptr || table == nullptr) return error_of(is_null(path == nullptr ? "path" : "table"));
        auto opened = tiffin::stored_table::open(path);
        if (!opened) return error_of(because(opened.failure()));
        *table = new tiffin_stored_table{*std::move(opened)};
        return nullptr;
    });
}
void tiffin_stored_table_free(tiffin_stored_table* table) {
    delete table;
}

tiffin_error* tiffin_stored_table_describe(const tiffin_stored_table* table, tiffin_stored_shape* shape) {
    return guarded([&]() -> tiffin_error* {
        if (table == nullptr) return error_of(is_null("table"));
        if (const auto wrong = unknown_size(shape, "shape")) return error_of(*wrong);
        const tiffin::writable_rows& rows = table->held.rows();
        *shape = {sizeof(tiffin_stored_shape), rows.rows(), table->held.width(), rows.commits(),
                  rows.unfinished() ? 1 : 0};
        return nullptr;
    });
}
tiffin_error* tiffin_stored_table_rows(const tiffin_stored_table* table, const tiffin_rows_options* options,
                                       tiffin_rows** rows) {
    return guarded([&]() -> tiffin_error* {
        if (table == nullptr || rows == nullptr)
            return error_of(is_null(table == nullptr ? "table" : "rows"));
        tiffin_rows_options how{};
        if (const auto wrong = take(options, how)) return error_of(*wrong);
        auto made = std::make_unique<tiffin_rows>();
        hold_rows(stored_values(table->held, table->version), how, *made);
        *rows = made.release();
        return nullptr;
    });
}
tiffin_error* tiffin_stored_table_read(tiffin_stored_table* table, const int32_t* ids, size_t count,
                                       float* values, float* first_moments, float* second_moments,
                                       int32_t* steps) {
    return guarded([&]() -> tiffin_error* {
        if (table == nullptr) return error_of(is_null("table"));
        if (ids == nullptr && count > 0) return error_of(is_null("ids"));
        if (const status s = table->held.fetch({ids, count}); !s) return done(s);
        const std::size_t width = table->held.width();
        for (std::size_t i = 0; i < count; ++i) {
            const tiffin::learning_row<float> row = table->held.at(0, ids[i]);
            const auto copy = [&](const float* from, float* to) {
                if (to != nullptr) std::copy_n(from, width, to + i * width);
            };
            copy(row.values, values);
            copy(row.first_moment, first_moments);
            copy(row.second_moment, second_moments);
            if (steps != nullptr) steps[i] = *row.steps;
        }
        return nullptr;
    });
}
tiffin_error* tiffin_stored_table_step(tiffin_stored_table* table, const int32_t* ids, size_t count,
                                       const float* gradients, const tiffin_adamw* how) {
    return guarded([&]() -> tiffin_error* {
        if (table == nullptr) return error_of(is_null("table"));
        if (count > 0 && (ids == nullptr || gradients == nullptr))
            return error_of(is_null(ids == nullptr ? "ids" : "gradients"));
        if (const auto wrong = unknown_size(how, "how")) return error_of(*wrong);
        if (const status s = check_options(*how); !s) return done(s);
        for (std::size_t i = 1; i < count; ++i)
            if (ids[i] <= ids[i - 1])
                return error_of(because(failure(errc::option, "ids", "ids[", i, "] = ", ids[i],
                                                " comes after ", ids[i - 1], "; they ascend")));
        if (const status s = table->held.fetch({ids, count}); !s) return done(s);
        const given_gradients from({ids, count}, gradients, table->held.width());
        tiffin::adamw<tiffin::simd<>> optimizer({.beta1 = how->beta1,
                                                 .beta2 = how->beta2,
                                                 .eps = how->eps,
                                                 .decay = how->decay,
                                                 .clip = how->clip});
        if (const status s = optimizer.add("gradients", from, table->held); !s) return done(s);
        if (const status s = optimizer.step(how->rate); !s) return done(s);
        const status s = table->held.put_back();
        ++table->version;
        return done(s);
    });
}

tiffin_error* tiffin_stored_table_commit(tiffin_stored_table* table) {
    return on_rows(table, [](auto& rows) { return rows.commit(); });
}
tiffin_error* tiffin_stored_table_roll_back(tiffin_stored_table* table) {
    return on_rows(table, [](auto& rows) { return rows.roll_back(); });
}
tiffin_error* tiffin_stored_table_keep_changes(tiffin_stored_table* table) {
    return on_rows(table, [](auto& rows) { return rows.keep_changes(); });
}
