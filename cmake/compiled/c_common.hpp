// What all files of the C interface share: errors, the structs of callers, their threads, and tensors by name.
#pragma once

#include <tiffin/tiffin_training.h>

#include <tiffin/analysis/cost.hpp>
#include <tiffin/executor/executor.hpp>
#include <tiffin/io/described_layer.hpp>

#include "c_rows.hpp"

#include <cstddef>
#include <cstring>
#include <exception>
#include <new>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

struct tiffin_error {
    tiffin_errc code;
    std::string where, message;
};

TIFFIN_BEGIN
namespace c_detail {

// Where there is no memory for an error, this one stands for it; it is never freed.
inline const tiffin_error* no_memory() noexcept {
    static const tiffin_error error{TIFFIN_ERRC_MEMORY, "", "no memory"};  // short: no allocation
    return &error;
}

// What an error is made of, before it is one: the interface has codes that errc has not.
struct refusal {
    tiffin_errc code;
    failure told;
};
template <class... Pieces>
refusal bad_argument(std::string_view name, const Pieces&... pieces) {
    return {TIFFIN_ERRC_ARGUMENT, failure(errc::option, name, pieces...)};
}
inline refusal is_null(std::string_view name) {
    return bad_argument(name, "is NULL");
}
inline refusal because(const failure& f) {
    return {static_cast<tiffin_errc>(f.code), f};
}

inline tiffin_error* error_of(const refusal& r) {
    return new tiffin_error{r.code, r.told.where, r.told.message()};
}

// Runs `work`, which returns an error or NULL, and turns whatever is thrown into one.
template <class Work>
tiffin_error* guarded(const Work& work) noexcept {
    try {
        try {
            return work();
        } catch (const std::bad_alloc&) {
            return const_cast<tiffin_error*>(no_memory());
        } catch (const error& e) {
            return error_of(because(e.details()));
        } catch (const std::exception& e) {
            return error_of(because(failure(errc::file, "tiffin", "threw: ", e.what())));
        } catch (...) {
            return error_of(because(failure(errc::file, "tiffin", "threw what is no std::exception")));
        }
    } catch (...) {
        return const_cast<tiffin_error*>(no_memory());
    }
}

// What the structs of the first header ended before. Members are appended: those of a smaller struct are null here.
constexpr std::size_t first_size(const tiffin_prepare_options&) {
    return offsetof(tiffin_prepare_options, executor_size);
}
constexpr std::size_t first_size(const tiffin_call&) {
    return offsetof(tiffin_call, executor_size);
}
template <class Struct>
constexpr std::size_t first_size(const Struct&) {
    return sizeof(Struct);
}
inline constexpr std::size_t first_executor_size = offsetof(tiffin_executor, run_checked);

// What is wrong with a struct that the caller fills, of one size alone: it is NULL, or of another size.
template <class Struct>
std::optional<refusal> unknown_size(const Struct* given, const char* name) {
    if (given == nullptr) return is_null(name);
    if (given->struct_size == sizeof(Struct)) return {};
    return bad_argument(name, "has struct_size ", given->struct_size, "; this library knows ",
                        sizeof(Struct));
}

inline tiffin_cost cost_for_c(const block_cost& found) {
    return {sizeof(tiffin_cost),
            found.parameters,
            found.table_parameters,
            found.parameters_per_token,
            found.row_parameters,
            found.matrix_flops_per_token,
            found.elementwise_flops_per_token};
}

// How rows are opened; NULL: the defaults. What is wrong with them, or nothing.
inline std::optional<refusal> take(const tiffin_rows_options* given, tiffin_rows_options& to) {
    to = {};
    if (given == nullptr) return {};
    const auto wrong = unknown_size(given, "options");
    if (!wrong) to = *given;
    return wrong;
}

// A struct of the caller's, of a size that is known, with its executor if it has one.
template <class Struct>
struct taken_struct {
    Struct given{};
    tiffin_executor executor{};
};
template <class Struct>
result<taken_struct<Struct>> take(const Struct& given, const char* name) {
    taken_struct<Struct> taken;
    if (given.struct_size != sizeof(Struct) && given.struct_size != first_size(given))
        return failure(errc::option, name, "has struct_size ", given.struct_size, "; this library knows ",
                       sizeof(Struct), " and ", first_size(given));
    std::memcpy(&taken.given, &given, given.struct_size);
    if (taken.given.executor == nullptr) return taken;
    std::size_t size = taken.given.executor_size;
    if (size == 0) size = given.struct_size == sizeof(Struct) ? sizeof(tiffin_executor) : first_executor_size;
    if (size != sizeof(tiffin_executor) && size != first_executor_size)
        return failure(errc::option, name, "has executor_size ", size, "; this library knows ",
                       sizeof(tiffin_executor), " and ", first_executor_size);
    std::memcpy(&taken.executor, taken.given.executor, size);
    if (taken.executor.run == nullptr && taken.executor.run_checked == nullptr)
        return failure(errc::option, "executor.run", "is NULL");
    return taken;
}

// The caller's threads as an executor.
class callers_executor {
public:
    template <class Struct>
    explicit callers_executor(const taken_struct<Struct>& taken)
        : given_(taken.given.executor != nullptr ? &taken.executor : nullptr) {}
    [[nodiscard]] std::size_t concurrency() const noexcept { return given_ ? given_->concurrency : 1; }
    // Throws where the caller says that it failed: nothing of the call is run any more.
    void operator()(std::size_t n, const task_ref& task) const {
        if (given_ == nullptr) return serially(n, task);
        const auto one = [](void* arg, std::size_t i) { (*static_cast<const task_ref*>(arg))(i); };
        auto* const arg = const_cast<task_ref*>(&task);
        if (given_->run_checked == nullptr) return given_->run(given_->user, n, one, arg);
        const int failed = given_->run_checked(given_->user, n, one, arg);
        if (failed != 0)
            throw error(
                failure(errc::executor, "executor.run_checked", "returned ", failed, " for ", n, " tasks"));
    }

private:
    const tiffin_executor* given_;
};

// Adds a tensor of TIFFIN_DTYPE_ROWS.
inline status add_rows(const tiffin_tensor& t, weights& to, std::vector<rows_tensor>& from) {
    const auto* const rows = static_cast<const tiffin_rows*>(t.data);
    const table_shape table = rows->edited->shape();
    shape sizes{table.rows, table.width};
    if (t.rank != 0) {
        sizes = {};
        for (std::size_t axis = 0; axis < t.rank; ++axis) sizes.push_back(t.shape[axis]);
    }
    const bool is_pool = sizes.rank() == 3 && sizes[0] > 0 && sizes[1] == table.rows / sizes[0];
    if (!(sizes == shape{table.rows, table.width}) &&
        !(is_pool && sizes[2] == table.width && table.rows % sizes[0] == 0))
        return failure(errc::shape, t.name, "has shape ", to_string(sizes), "; its file has ", table.rows,
                       " rows of ", table.width);
    to.add_gathered(t.name, table.type, sizes, table.scales);
    from.push_back({rows, {t.name, is_pool ? sizes[1] : table.rows}, is_pool ? sizes[0] : 1});
    return {};
}

// A block as its options and tensors in the caller's memory, or `in_files`. Returns what is wrong, or NULL.
inline tiffin_error* describe(const tiffin_block_option* block, std::size_t block_count,
                              const tiffin_tensor* tensors, std::size_t tensor_count, io::described_layer& to,
                              std::vector<rows_tensor>& in_files) {
    if (block == nullptr && block_count > 0) return error_of(is_null("block"));
    if (tensors == nullptr && tensor_count > 0) return error_of(is_null("tensors"));
    for (size_t i = 0; i < block_count; ++i) {
        if (block[i].key == nullptr || block[i].value == nullptr)
            return error_of(bad_argument("block", "has a NULL in option ", i));
        if (!to.options.emplace(block[i].key, block[i].value).second)
            return error_of(because(failure(errc::option, block[i].key, "is given twice")));
    }
    for (size_t i = 0; i < tensor_count; ++i) {
        const tiffin_tensor& t = tensors[i];
        if (t.name == nullptr) return error_of(bad_argument("tensors", "has no name for tensor ", i));
        if (t.rank > shape::max_rank)
            return error_of(because(failure(errc::shape, t.name, "has rank ", t.rank, "; at most ",
                                            shape::max_rank, " is possible")));
        if (t.type == TIFFIN_DTYPE_ROWS) {
            if (t.data == nullptr) return error_of(is_null(t.name));
            if (const status s = add_rows(t, to.tensors, in_files); !s) return error_of(because(s.failure()));
            continue;
        }
        if (t.type <= TIFFIN_DTYPE_AS_STORED || t.type > TIFFIN_DTYPE_F64)
            return error_of(because(
                failure(errc::dtype, t.name, "has type ", t.type, ", which is no format of tensors")));
        tensor_view view{t.data, static_cast<dtype>(t.type - 1), {}};
        for (size_t axis = 0; axis < t.rank; ++axis) view.shape.push_back(t.shape[axis]);
        to.tensors.add(t.name, view);
    }
    return nullptr;
}

}  // namespace c_detail
TIFFIN_END
