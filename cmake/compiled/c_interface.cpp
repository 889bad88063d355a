// The C interface (tiffin/tiffin.h) over layers known at run time.
#include <tiffin/tiffin.h>

#include <tiffin/all_policies.hpp>
#include <tiffin/analysis/cost_of_weights.hpp>
#include <tiffin/cpu/simd/amx_permission.hpp>
#include <tiffin/executor/thread_team.hpp>
#include <tiffin/io/layer_file.hpp>
#include <tiffin/io/model.hpp>
#include <tiffin/io/safetensors_writer.hpp>
#include <tiffin/plan/compose.hpp>

#include "c_backends.hpp"
#include "c_common.hpp"

#include <cstddef>
#include <filesystem>
#include <memory>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

struct tiffin_model {
    tiffin::io::model held;
    std::string architecture;
};
struct tiffin_threads {
    explicit tiffin_threads(std::size_t count) : team(count), executor{&run, this, count, nullptr} {}

    static void run(void* user, std::size_t n, void (*task)(void* arg, std::size_t i), void* arg) {
        const auto one = [&](std::size_t i) { task(arg, i); };
        static_cast<tiffin_threads*>(user)->team(n, tiffin::task_ref(one));
    }
    tiffin::thread_team team;
    tiffin_executor executor;
};
struct tiffin_layer {
    tiffin::any_layer held;
    tiffin::block_cost cost;
    tiffin::c_detail::tables_in_files tables;
};

namespace {

using namespace tiffin::c_detail;
using tiffin::any_layer;
using tiffin::errc;
using tiffin::failure;
using tiffin::result;

// What the header says again of the library is the same there.
static_assert(TIFFIN_C_VERSION_MAJOR == TIFFIN_VERSION_MAJOR &&
              TIFFIN_C_VERSION_MINOR == TIFFIN_VERSION_MINOR &&
              TIFFIN_C_VERSION_PATCH == TIFFIN_VERSION_PATCH);
constexpr bool same(errc code, tiffin_errc number) {
    return static_cast<int>(code) == number;
}
static_assert(same(errc::shape, TIFFIN_ERRC_SHAPE) &&
              same(errc::missing_tensor, TIFFIN_ERRC_MISSING_TENSOR) &&
              same(errc::unused_tensor, TIFFIN_ERRC_UNUSED_TENSOR) &&
              same(errc::duplicate_tensor, TIFFIN_ERRC_DUPLICATE_TENSOR) &&
              same(errc::dtype, TIFFIN_ERRC_DTYPE) && same(errc::value, TIFFIN_ERRC_VALUE) &&
              same(errc::size, TIFFIN_ERRC_SIZE) && same(errc::token_id, TIFFIN_ERRC_TOKEN_ID) &&
              same(errc::overlap, TIFFIN_ERRC_OVERLAP) && same(errc::workspace, TIFFIN_ERRC_WORKSPACE) &&
              same(errc::option, TIFFIN_ERRC_OPTION) && same(errc::file, TIFFIN_ERRC_FILE) &&
              same(errc::empty, TIFFIN_ERRC_EMPTY) && same(errc::device, TIFFIN_ERRC_DEVICE) &&
              same(errc::executor, TIFFIN_ERRC_EXECUTOR));
constexpr bool same(tiffin::dtype type, tiffin_dtype number) {
    return static_cast<int>(type) + 1 == number;
}
static_assert(same(tiffin::dtype::f32, TIFFIN_DTYPE_F32) && same(tiffin::dtype::f16, TIFFIN_DTYPE_F16) &&
              same(tiffin::dtype::bf16, TIFFIN_DTYPE_BF16) && same(tiffin::dtype::i32, TIFFIN_DTYPE_I32) &&
              same(tiffin::dtype::i64, TIFFIN_DTYPE_I64) && same(tiffin::dtype::u8, TIFFIN_DTYPE_U8) &&
              same(tiffin::dtype::q8_0, TIFFIN_DTYPE_Q8_0) && same(tiffin::dtype::q4_0, TIFFIN_DTYPE_Q4_0) &&
              same(tiffin::dtype::q4_1, TIFFIN_DTYPE_Q4_1) && same(tiffin::dtype::q5_0, TIFFIN_DTYPE_Q5_0) &&
              same(tiffin::dtype::q5_1, TIFFIN_DTYPE_Q5_1) && same(tiffin::dtype::q2_k, TIFFIN_DTYPE_Q2_K) &&
              same(tiffin::dtype::q3_k, TIFFIN_DTYPE_Q3_K) && same(tiffin::dtype::q4_k, TIFFIN_DTYPE_Q4_K) &&
              same(tiffin::dtype::q5_k, TIFFIN_DTYPE_Q5_K) && same(tiffin::dtype::q6_k, TIFFIN_DTYPE_Q6_K) &&
              same(tiffin::dtype::iq4_nl, TIFFIN_DTYPE_IQ4_NL) &&
              same(tiffin::dtype::iq4_xs, TIFFIN_DTYPE_IQ4_XS) &&
              same(tiffin::dtype::mxfp4, TIFFIN_DTYPE_MXFP4) && same(tiffin::dtype::f64, TIFFIN_DTYPE_F64) &&
              same(tiffin::dtype::f8_e4m3, TIFFIN_DTYPE_F8_E4M3) &&
              same(tiffin::dtype::f8_e5m2, TIFFIN_DTYPE_F8_E5M2) &&
              same(tiffin::dtype::f8_e8m0, TIFFIN_DTYPE_F8_E8M0) &&
              same(tiffin::dtype::nvfp4, TIFFIN_DTYPE_NVFP4) && same(tiffin::dtype::u4, TIFFIN_DTYPE_U4) &&
              tiffin::detail::dtypes.size() == static_cast<std::size_t>(TIFFIN_DTYPE_U4));
using choice = tiffin::choice<float>;
static_assert(sizeof(tiffin_choice) == sizeof(choice) && alignof(tiffin_choice) == alignof(choice) &&
              offsetof(tiffin_choice, expert) == offsetof(choice, expert) &&
              offsetof(tiffin_choice, weight) == offsetof(choice, weight));
static_assert(sizeof(tiffin_tensor::shape) / sizeof(std::size_t) == tiffin::shape::max_rank);

bool can_be_kept(tiffin::dtype type) noexcept {
    return type <= tiffin::dtype::q4_1 && !is_integer(type);
}

// The format asked for.
result<tiffin::dtype> format_of(tiffin_dtype asked, const char* name) {
    if (asked < 0 || asked > TIFFIN_DTYPE_F64)
        return failure(errc::option, name, "is ", asked, ", which is no format");
    const auto type = static_cast<tiffin::dtype>(asked - 1);
    if (can_be_kept(type)) return type;
    return failure(errc::option, name, "is ", name_of(type),
                   "; numbers are kept in F32, F16, BF16, Q8_0, Q4_0 or Q4_1");
}

result<tiffin::block_cost> cost_of(const tiffin::io::described_layer& from) {
    const auto text = tiffin::io::composition_of(from);
    if (!text) return text.failure();
    const auto block = tiffin::compose(*text, tiffin::all_policies);
    if (!block) return block.failure();
    return tiffin::cost_of(block->plan(), from.tensors);
}

// A layer on the backend that is asked for.
result<any_layer> layer_of(const tiffin::io::described_layer& from,
                           const taken_struct<tiffin_prepare_options>& taken) {
    const tiffin_prepare_options& options = taken.given;
    const callers_executor execute(taken);
    tiffin::prepare_options how{.tokens = 0, .execute = execute};
    if (options.progress != nullptr)
        how.progress = [&](std::size_t done, std::size_t bytes) {
            options.progress(options.progress_user, done, bytes);
        };
    if (options.backend == TIFFIN_BACKEND_SIMD) {
        tiffin::c_detail::kept_numbers kept{tiffin::kept_as_given, tiffin::kept_as_given,
                                            options.f32_activations == 0};
        if (options.weights != TIFFIN_DTYPE_AS_STORED) {
            const auto asked = format_of(options.weights, "weights");
            if (!asked) return asked.failure();
            kept.weights = {*asked};
        }
        if (options.tables != TIFFIN_DTYPE_AS_STORED) {
            const auto asked = format_of(options.tables, "tables");
            if (!asked) return asked.failure();
            kept.tables = {*asked};
        }
        return tiffin::c_detail::load_on_simd(from, kept, how);
    }
    if (options.backend != TIFFIN_BACKEND_EIGEN && options.backend != TIFFIN_BACKEND_REFERENCE)
        return failure(errc::option, "backend", "is ", options.backend, ", which is none");
    for (const tiffin_dtype asked : {options.weights, options.tables})
        if (asked != TIFFIN_DTYPE_AS_STORED && asked != TIFFIN_DTYPE_F32)
            return failure(errc::option, asked == options.weights ? "weights" : "tables", "is ", asked,
                           "; only simd keeps numbers in another format than F32");
    if (options.backend == TIFFIN_BACKEND_EIGEN) return tiffin::c_detail::load_on_eigen(from, how);
    return tiffin::c_detail::load_on_reference(from, how);
}

// The same with its cost.
struct loaded_layer {
    any_layer held;
    tiffin::block_cost cost;
};
result<loaded_layer> load(const tiffin::io::described_layer& from,
                          const taken_struct<tiffin_prepare_options>& taken) {
    auto made = layer_of(from, taken);
    if (!made) return made.failure();
    const auto cost = cost_of(from);
    if (!cost) return cost.failure();
    return loaded_layer{*std::move(made), *cost};
}

// What all functions that make a layer do around `make(options)`.
template <class Make>
tiffin_error* make_layer(const tiffin_prepare_options* given, tiffin_layer** layer, const Make& make,
                         std::vector<rows_tensor> in_files = {}) {
    if (layer == nullptr) return error_of(is_null("layer"));
    taken_struct<tiffin_prepare_options> options;
    if (given != nullptr) {
        const auto known = take(*given, "options");
        if (!known) return error_of({TIFFIN_ERRC_ARGUMENT, known.failure()});
        options = *known;
    }
    auto made = make(options);
    if (!made) return error_of(because(made.failure()));
    if (const tiffin::status s = check_read_by_ids(made->held.needs()); !s)
        return error_of(because(s.failure()));
    *layer = new tiffin_layer{std::move(made->held), made->cost, tables_in_files(std::move(in_files))};
    return nullptr;
}

// A failure inside a file or a layer of it, the place cut so that there is room for what is wrong.
failure inside(const failure& f, const std::string& label, const std::string& part = "") {
    const failure cut{f.code, tiffin::detail::printable(f.where, 512), f.what};
    return failure(f.code, label, part, cut.message());
}

}  // namespace

uint32_t tiffin_version(void) {
    return TIFFIN_C_VERSION;
}
int tiffin_permit_amx(void) {
    return tiffin::permit_amx() ? 1 : 0;
}

tiffin_errc tiffin_error_code(const tiffin_error* error) {
    return error != nullptr ? error->code : TIFFIN_ERRC_NONE;
}
const char* tiffin_error_message(const tiffin_error* error) {
    return error != nullptr ? error->message.c_str() : "";
}
const char* tiffin_error_where(const tiffin_error* error) {
    return error != nullptr ? error->where.c_str() : "";
}
void tiffin_error_free(tiffin_error* error) {
    if (error != no_memory()) delete error;
}

tiffin_error* tiffin_threads_make(size_t count, tiffin_threads** threads) {
    return guarded([&]() -> tiffin_error* {
        if (threads == nullptr) return error_of(is_null("threads"));
        if (count == 0) return error_of(because(failure(errc::option, "count", "is 0")));
        try {
            *threads = new tiffin_threads(count);
        } catch (const std::system_error& e) {
            return error_of(because(failure(errc::executor, "count", "is ", count, ": ", e.what())));
        }
        return nullptr;
    });
}
const tiffin_executor* tiffin_threads_executor(const tiffin_threads* threads) {
    return threads != nullptr ? &threads->executor : nullptr;
}
void tiffin_threads_free(tiffin_threads* threads) {
    delete threads;
}

tiffin_error* tiffin_model_open(const char* path, tiffin_model** model) {
    return guarded([&]() -> tiffin_error* {
        if (path == nullptr || model == nullptr) return error_of(is_null(path == nullptr ? "path" : "model"));
        auto opened = tiffin::io::model::open(path);
        if (!opened) return error_of(because(opened.failure()));
        std::string architecture(opened->architecture());
        *model = new tiffin_model{*std::move(opened), std::move(architecture)};
        return nullptr;
    });
}
size_t tiffin_model_layers(const tiffin_model* model) {
    return model != nullptr ? model->held.layers() : 0;
}
const char* tiffin_model_architecture(const tiffin_model* model) {
    return model != nullptr ? model->architecture.c_str() : "";
}
void tiffin_model_free(tiffin_model* model) {
    delete model;
}

tiffin_error* tiffin_model_layer(const tiffin_model* model, size_t index,
                                 const tiffin_prepare_options* options, tiffin_layer** layer) {
    return guarded([&] {
        if (model == nullptr) return error_of(is_null("model"));
        return make_layer(options, layer, [&](const auto& how) -> result<loaded_layer> {
            const auto described = model->held.layer(index);
            if (!described) return described.failure();
            auto made = load(*described, how);
            if (made) return made;
            return inside(made.failure(), model->held.label(), "layer " + std::to_string(index) + ": ");
        });
    });
}

tiffin_error* tiffin_layer_open(const char* path, const tiffin_prepare_options* options,
                                tiffin_layer** layer) {
    return guarded([&] {
        if (path == nullptr) return error_of(is_null("path"));
        return make_layer(options, layer, [&](const auto& how) -> result<loaded_layer> {
            auto file = tiffin::io::safetensors_file::open(path);
            if (!file) return file.failure();
            const auto shared = std::make_shared<const tiffin::io::safetensors_file>(*std::move(file));
            auto made = load({shared->metadata(), shared->tensors(), shared}, how);
            if (made) return made;
            return inside(made.failure(), shared->label());
        });
    });
}

tiffin_error* tiffin_layer_make(const tiffin_block_option* block, size_t block_count,
                                const tiffin_tensor* tensors, size_t tensor_count,
                                const tiffin_prepare_options* options, tiffin_layer** layer) {
    return guarded([&] {
        tiffin::io::described_layer given;
        std::vector<rows_tensor> in_files;
        if (tiffin_error* const wrong = describe(block, block_count, tensors, tensor_count, given, in_files))
            return wrong;
        const auto make = [&](const auto& how) { return load(given, how); };
        return make_layer(options, layer, make, std::move(in_files));
    });
}

tiffin_error* tiffin_layer_save(const char* path, const tiffin_block_option* block, size_t block_count,
                                const tiffin_tensor* tensors, size_t tensor_count) {
    return guarded([&]() -> tiffin_error* {
        if (path == nullptr) return error_of(is_null("path"));
        tiffin::io::described_layer given;
        std::vector<rows_tensor> in_files;
        if (tiffin_error* const wrong = describe(block, block_count, tensors, tensor_count, given, in_files))
            return wrong;
        // What cannot be a layer is not written as one.
        const auto made = tiffin::c_detail::load_on_reference(given, {.tokens = 0});
        if (!made) return error_of(because(made.failure()));
        tiffin::io::safetensors_writer writer;
        for (const auto& [key, value] : given.options) writer.set(key, value);
        for (const auto& e : given.tensors.entries()) {
            if (e.tensor.gathered != 0)
                return error_of(because(failure(errc::dtype, e.name, "lies in a file already")));
            writer.add(e.name, e.tensor);
        }
        const tiffin::status done = writer.write(path);
        return done ? nullptr : error_of(because(done.failure()));
    });
}

void tiffin_layer_free(tiffin_layer* layer) {
    delete layer;
}

tiffin_error* tiffin_layer_cost(const tiffin_layer* layer, tiffin_cost* cost) {
    return guarded([&]() -> tiffin_error* {
        if (layer == nullptr) return error_of(is_null("layer"));
        if (const auto wrong = unknown_size(cost, "cost")) return error_of(*wrong);
        *cost = cost_for_c(layer->cost);
        return nullptr;
    });
}

size_t tiffin_layer_d_model(const tiffin_layer* layer) {
    return layer != nullptr ? layer->held.d_model() : 0;
}
size_t tiffin_layer_d_ff(const tiffin_layer* layer) {
    return layer != nullptr ? layer->held.d_ff() : 0;
}
size_t tiffin_layer_choices(const tiffin_layer* layer) {
    return layer != nullptr ? layer->held.choices() : 0;
}
int tiffin_layer_reads_token_ids(const tiffin_layer* layer) {
    if (layer == nullptr) return 0;
    return layer->held.reads_token_ids() || !layer->held.needs().gathered.empty() ? 1 : 0;
}
int tiffin_layer_reads_residual(const tiffin_layer* layer) {
    return layer != nullptr && layer->held.needs().residual ? 1 : 0;
}
size_t tiffin_layer_per_layer_input_width(const tiffin_layer* layer) {
    return layer != nullptr ? layer->held.needs().given_width : 0;
}
const char* tiffin_layer_in_place(const tiffin_layer* layer, size_t i) {
    if (layer == nullptr || i >= layer->held.reads_in_place().size()) return nullptr;
    return layer->held.reads_in_place()[i].c_str();
}
size_t tiffin_layer_held_bytes(const tiffin_layer* layer) {
    return layer != nullptr ? layer->held.held_bytes() : 0;
}
size_t tiffin_layer_workspace_bytes(const tiffin_layer* layer, size_t tokens, size_t workers) {
    return layer != nullptr ? layer->held.workspace_bytes(tokens, workers) : 0;
}

tiffin_error* tiffin_layer_run(const tiffin_layer* layer, const tiffin_call* call) {
    return guarded([&]() -> tiffin_error* {
        if (layer == nullptr || call == nullptr)
            return error_of(is_null(layer == nullptr ? "layer" : "call"));
        const auto known = take(*call, "call");
        if (!known) return error_of({TIFFIN_ERRC_ARGUMENT, known.failure()});
        const tiffin_call& c = known->given;
        if (c.tokens > 0 && c.x == nullptr) return error_of(is_null("x"));
        if (c.tokens > 0 && c.y == nullptr) return error_of(is_null("y"));
        if (c.workspace == nullptr && c.workspace_bytes > 0) return error_of(is_null("workspace"));
        const tiffin::call_needs& needs = layer->held.needs();
        const auto rows = [&](auto* data, std::size_t stride, std::size_t width) {
            return tiffin::matrix_view(data, c.tokens, width, stride == 0 ? width : stride);
        };
        tiffin::token_inputs given;
        if (c.token_ids != nullptr) given.token_ids = {c.token_ids, c.tokens};
        if (c.residual != nullptr) given.residual = rows(c.residual, c.residual_stride, needs.d_model);
        if (c.per_layer_input != nullptr)
            given.per_layer_input = rows(c.per_layer_input, c.per_layer_input_stride, needs.given_width);
        if (c.routes != nullptr)
            given.routes = {reinterpret_cast<choice*>(c.routes), c.tokens * needs.choices};
        const callers_executor execute(*known);
        const tiffin::status done = layer->tables.with(given.token_ids, c.tokens, [&](auto gathered) {
            given.gathered = gathered;
            return layer->held.try_call(rows(c.x, c.x_stride, needs.d_model), given,
                                        rows(c.y, c.y_stride, needs.d_model),
                                        {static_cast<std::byte*>(c.workspace), c.workspace_bytes}, execute);
        });
        return done ? nullptr : error_of(because(done.failure()));
    });
}
