// A ggml backend that computes feed-forward blocks with tiffin and leaves all else to the CPU backend.
#include "chosen_experts.hpp"
#include "layers.hpp"
#include "pattern.hpp"
#include "weights_buffer.hpp"

#include <tiffin/call/layer_of_any_block.hpp>
#include <tiffin/cpu/simd/amx_permission.hpp>
#include <tiffin/executor/openmp.hpp>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <memory>
#include <new>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "ggml-backend-impl.h"
#include "ggml-backend.h"
#include "ggml-impl.h"
#include "ggml.h"

#if GGML_BACKEND_API_VERSION != 2
#    error "tiffin's ggml backend is written for version 2 of ggml's backend interface"
#endif

namespace tiffin_in_ggml {
namespace {

// The side file that TIFFIN_SIDE_FILE names, or null.
const tiffin::io::side_file* side_file() {
    static const std::optional<tiffin::io::side_file> file = []() -> std::optional<tiffin::io::side_file> {
        const char* const path = std::getenv("TIFFIN_SIDE_FILE");
        if (path == nullptr || *path == 0) return std::nullopt;
        auto opened = tiffin::io::side_file::open(path);
        if (opened) {
            GGML_LOG_INFO("tiffin: %s adds tables to %zu layers\n", opened->label().c_str(),
                          opened->layers().size());
            return *std::move(opened);
        }
        GGML_LOG_ERROR("tiffin: %s; the model runs without it\n", opened.failure().message().c_str());
        return std::nullopt;
    }();
    return file ? &*file : nullptr;
}

// ---- tensors in parts ----

// In split mode "tensor" llama.cpp puts parts of tensors on every device whose memory is not the CPU backend's own: on
// this one too, whatever it says of itself. "Meta" buffers stand for the parts. They have no address, but are taken for
// memory of the host where all devices' memory is that, so this one's no longer is; and what touches them is computed
// there or nowhere, so all that the CPU backend computes is computed here. Whether a model has been split so.
std::atomic<bool> in_parts = false;

bool is_in_parts(const ggml_tensor* t) {
    const ggml_backend_buffer_t buffer = t->view_src != nullptr ? t->view_src->buffer : t->buffer;
    return buffer != nullptr && ggml_backend_buft_is_meta(ggml_backend_buffer_get_type(buffer));
}
void note_parts(const ggml_tensor* node) {
    if (in_parts.load(std::memory_order_relaxed)) return;
    const auto* const end = node->src + GGML_MAX_SRC;
    const bool seen = is_in_parts(node) || std::any_of(node->src, end, [](const ggml_tensor* from) {
                          return from != nullptr && is_in_parts(from);
                      });
    if (!seen || in_parts.exchange(true)) return;
    GGML_LOG_WARN(
        "tiffin: a model's tensors are split over devices, and this one is among them: it computes its part, "
        "all but feed-forward blocks by the CPU backend; --device with the other names leaves it out\n");
}

// ---- memory ----

weights_buffer* memory_of(ggml_backend_buffer_t buffer) {
    return static_cast<weights_buffer*>(buffer->context);
}
void free_buffer(ggml_backend_buffer_t buffer) {
    delete memory_of(buffer);
}
void* base_of(ggml_backend_buffer_t buffer) {
    return memory_of(buffer)->data();
}
void write(ggml_backend_buffer_t buffer, ggml_tensor* to, const void* from, std::size_t offset,
           std::size_t bytes) {
    memory_of(buffer)->forget();
    std::memcpy(static_cast<std::byte*>(to->data) + offset, from, bytes);
}
void read(ggml_backend_buffer_t, const ggml_tensor* from, void* to, std::size_t offset, std::size_t bytes) {
    std::memcpy(to, static_cast<const std::byte*>(from->data) + offset, bytes);
}
void fill(ggml_backend_buffer_t buffer, ggml_tensor* to, std::uint8_t value, std::size_t offset,
          std::size_t bytes) {
    memory_of(buffer)->forget();
    std::memset(static_cast<std::byte*>(to->data) + offset, value, bytes);
}
void clear(ggml_backend_buffer_t buffer, std::uint8_t value) {
    memory_of(buffer)->forget();
    std::memset(memory_of(buffer)->data(), value, buffer->size);
}
bool copy(ggml_backend_buffer_t buffer, const ggml_tensor* from, ggml_tensor* to) {
    if (!ggml_backend_buffer_is_host(from->buffer)) return false;
    memory_of(buffer)->forget();
    std::memcpy(to->data, from->data, ggml_nbytes(from));
    return true;
}
constexpr ggml_backend_buffer_i buffer_interface = {
    .free_buffer = free_buffer,
    .get_base = base_of,
    .init_tensor = nullptr,
    .memset_tensor = fill,
    .set_tensor = write,
    .get_tensor = read,
    .set_tensor_2d = nullptr,
    .get_tensor_2d = nullptr,
    .cpy_tensor = copy,
    .clear = clear,
    .reset = nullptr,
};

const char* buffer_type_name(ggml_backend_buffer_type_t) {
    return "tiffin";
}
ggml_backend_buffer_t allocate(ggml_backend_buffer_type_t type, std::size_t bytes) try {
    // A buffer of no bytes has an address all the same: ggml asks for it.
    auto memory = std::make_unique<weights_buffer>(std::max<std::size_t>(bytes, 1));
    return ggml_backend_buffer_init(type, buffer_interface, memory.release(), bytes);
} catch (const std::bad_alloc&) {
    GGML_LOG_ERROR("tiffin: there is no memory for a buffer of %zu bytes\n", bytes);
    return nullptr;
}
std::size_t alignment(ggml_backend_buffer_type_t) {
    return tiffin::aligned_buffer::line;
}
bool is_host(ggml_backend_buffer_type_t) {
    return !in_parts;
}

// ---- a context's backend ----

class context {
public:
    context() : cpu_(ggml_backend_init_by_type(GGML_BACKEND_DEVICE_TYPE_CPU, nullptr)) {}
    context(const context&) = delete;
    context& operator=(const context&) = delete;
    ~context() {
        if (calls_ > 0 && blocks_ == 0)
            GGML_LOG_WARN(
                "tiffin: none of the %zu products that came here was part of a feed-forward block "
                "that tiffin computes\n",
                left_);
        else if (calls_ > 0)
            GGML_LOG_INFO("tiffin: %zu feed-forward blocks computed, %zu nodes left to the CPU backend\n",
                          blocks_, left_);
        if (cpu_ != nullptr) ggml_backend_free(cpu_);
    }
    [[nodiscard]] bool ready() const noexcept { return cpu_ != nullptr; }

    void set_threads(int threads) {
        team_.threads = std::max(threads, 1);
        ggml_backend_reg_t cpu = ggml_backend_dev_backend_reg(ggml_backend_get_device(cpu_));
        const auto set = reinterpret_cast<ggml_backend_set_n_threads_t>(
            ggml_backend_reg_get_proc_address(cpu, "ggml_backend_set_n_threads"));
        if (set != nullptr) set(cpu_, team_.threads);
    }

    ggml_status compute(ggml_cgraph* graph) {
        ++calls_;
        int left = 0;  // nodes before i that the CPU backend is to compute
        for (int i = 0; i < graph->n_nodes;) {
            if (is_embedding(graph->nodes[i])) note_tokens(*graph->nodes[i]);
            const auto block = ffn_reader(graph, i).read();
            if (block) {
                if (!leave(graph, i - left, i)) return GGML_STATUS_FAILED;
                left = 0;
            }
            if (block && run(*block)) {
                i += block->count;
            } else {
                ++left;
                ++i;
            }
        }
        return leave(graph, graph->n_nodes - left, graph->n_nodes) ? GGML_STATUS_SUCCESS : GGML_STATUS_FAILED;
    }

private:
    // The tokens of this graph, whose ids are overwritten before its blocks are computed.
    void note_tokens(const ggml_tensor& embedding) {
        const ggml_tensor& ids = *embedding.src[1];
        const auto* const first = static_cast<const std::int32_t*>(ids.data);
        token_ids_.assign(first, first + ggml_nelements(&ids));
        vocabulary_ = static_cast<std::size_t>(embedding.src[0]->ne[1]);
    }
    // The ids of a block's rows; none where they cannot be told.
    std::span<const std::int32_t> ids_of(const ffn_nodes& block) {
        const auto rows = static_cast<std::size_t>(block.x->ne[1]);
        if (rows == token_ids_.size()) return token_ids_;
        const ggml_tensor* const chosen = chosen_rows(block.x);
        if (chosen == nullptr || static_cast<std::size_t>(ggml_nelements(chosen)) != rows) return {};
        chosen_ids_.clear();
        for (std::size_t t = 0; t < rows; ++t) {
            const auto i = static_cast<std::size_t>(static_cast<const std::int32_t*>(chosen->data)[t]);
            if (i >= token_ids_.size()) return {};
            chosen_ids_.push_back(token_ids_[i]);
        }
        return chosen_ids_;
    }
    // Nodes first to last by the CPU backend.
    bool leave(ggml_cgraph* graph, int first, int last) {
        if (first == last) return true;
        for (int i = first; i < last; ++i) left_ += std::size_t{!is_view(graph->nodes[i])};
        ggml_cgraph view = *graph;
        view.nodes += first;
        view.n_nodes = last - first;
        view.n_leafs = 0;
        view.uid = 0;
        return ggml_backend_graph_compute(cpu_, &view) == GGML_STATUS_SUCCESS;
    }

    bool run(const ffn_nodes& block) {
        const ggml_backend_buffer_t buffer = block.weights[2]->buffer;
        if (buffer == nullptr || buffer->iface.get_base != base_of) return false;
        if (ggml_is_empty(block.y)) return true;
        const held_ffn& held = memory_of(buffer)->of(block, side_file(), vocabulary_, team_);
        if (held.layers.empty()) return false;
        const bool ran = held.joined                ? run_joined(block, held.layers[0])
                         : block.experts == nullptr ? run_dense(block, held.layers[0])
                                                    : experts_.run(block, held.layers, team_);
        blocks_ += ran ? 1 : 0;
        return ran;
    }
    static tiffin::matrix_view<float> rows_of(const ggml_tensor* t) {
        return {static_cast<float*>(t->data), static_cast<std::size_t>(t->ne[1]),
                static_cast<std::size_t>(t->ne[0]), t->nb[1] / sizeof(float)};
    }
    bool call(const tiffin::any_layer& layer, const tiffin::matrix_view<const float>& x,
              const tiffin::matrix_view<float>& y, const tiffin::matrix_view<const float>& residual) {
        make_room(workspace_, layer, x.rows, team_.concurrency());
        return tiffin_in_ggml::call(layer, x, {.residual = residual}, y, workspace_, team_);
    }
    bool run_dense(const ffn_nodes& block, const tiffin::any_layer& layer) {
        const tiffin::matrix_view<const float> x = rows_of(block.x);
        tiffin::matrix_view<const float> residual;
        if (block.residual != nullptr) residual = rows_of(block.residual);
        const auto y = rows_of(block.y);
        // ggml may have put y where an input lies: row by row that is allowed, shifted it is not.
        const auto apart = [&](const tiffin::matrix_view<const float>& in) {
            return tiffin::detail::is_same_matrix(in, y) || !tiffin::detail::matrices_overlap(in, y);
        };
        if (apart(x) && apart(residual)) return call(layer, x, y, residual);
        rows_.resize(y.rows * y.cols);
        if (!call(layer, x, {rows_.data(), y.rows, y.cols, y.cols}, residual)) return false;
        for (std::size_t t = 0; t < y.rows; ++t)
            std::copy_n(rows_.data() + t * y.cols, y.cols, y.data + t * y.stride);
        return true;
    }
    // With tables beside it. Not left to the CPU backend: that would be another model.
    bool run_joined(const ffn_nodes& block, const tiffin::any_layer& layer) {
        const tiffin::matrix_view<const float> x = rows_of(block.x);
        const auto y = rows_of(block.y);
        tiffin::token_inputs inputs{.token_ids = ids_of(block)};
        if (inputs.token_ids.empty())
            throw std::runtime_error(std::string(block.weights[2]->name) + ": the ids of its " +
                                     std::to_string(x.rows) + " rows are not known");
        if (layer.needs().residual) {
            if (block.residual == nullptr)
                throw std::runtime_error("the side file's block reads the residual");
            inputs.residual = rows_of(block.residual);
        }
        rows_.resize(y.rows * y.cols);
        make_room(workspace_, layer, x.rows, team_.concurrency());
        const tiffin::matrix_view<float> apart{rows_.data(), y.rows, y.cols, y.cols};
        layer.try_call(x, inputs, apart, std::span<std::byte>(workspace_), team_).or_throw();
        for (std::size_t t = 0; t < y.rows; ++t)
            for (std::size_t j = 0; j < y.cols; ++j)
                y.row(t)[j] =
                    apart.row(t)[j] + (block.residual != nullptr ? rows_of(block.residual).row(t)[j] : 0.0f);
        return true;
    }

    ggml_backend_t cpu_;
    tiffin::openmp team_{1};
    tiffin::workspace workspace_;
    std::vector<float> rows_;
    chosen_experts experts_;
    std::vector<std::int32_t> token_ids_, chosen_ids_;
    std::size_t vocabulary_ = 0;
    std::size_t calls_ = 0, blocks_ = 0, left_ = 0;
};

const char* backend_name(ggml_backend_t) {
    return "tiffin";
}
void free_backend(ggml_backend_t backend) {
    delete static_cast<context*>(backend->context);
    delete backend;
}
ggml_status compute(ggml_backend_t backend, ggml_cgraph* graph) try {
    return static_cast<context*>(backend->context)->compute(graph);
} catch (const std::bad_alloc&) {
    return GGML_STATUS_ALLOC_FAILED;
} catch (const std::exception& e) {
    GGML_LOG_ERROR("tiffin: %s\n", e.what());
    return GGML_STATUS_FAILED;
}
// x is read until y is written: ggml, which knows of products alone, would give its memory to y before.
void keep_inputs(ggml_backend_t, ggml_cgraph* graph, ggml_backend_graph_optimize_params* params) {
    for (int i = 0; i < graph->n_nodes;) {
        const auto block = ffn_reader(graph, i).read();
        // And so are the indices of its rows, where tables are beside it.
        const ggml_tensor* const chosen = block && side_file() != nullptr ? chosen_rows(block->x) : nullptr;
        for (const ggml_tensor* in : {block ? block->x : nullptr, block ? block->residual : nullptr, chosen})
            if (in != nullptr)
                params->add_alloc_dep(params->user_data, const_cast<ggml_tensor*>(in), block->y);
        i += block ? block->count : 1;
    }
}
void set_threads(ggml_backend_t backend, int threads) {
    static_cast<context*>(backend->context)->set_threads(threads);
}

ggml_guid backend_id = {0x74, 0x69, 0x66, 0x66, 0x69, 0x6e, 0x2d, 0x66,
                        0x66, 0x6e, 0x2d, 0x67, 0x67, 0x6d, 0x6c, 0x31};

constexpr ggml_backend_i backend_interface = {
    .get_name = backend_name,
    .free = free_backend,
    .set_tensor_async = nullptr,
    .get_tensor_async = nullptr,
    .set_tensor_2d_async = nullptr,
    .get_tensor_2d_async = nullptr,
    .cpy_tensor_async = nullptr,
    .synchronize = nullptr,
    .graph_plan_create = nullptr,
    .graph_plan_free = nullptr,
    .graph_plan_update = nullptr,
    .graph_plan_compute = nullptr,
    .graph_compute = compute,
    .event_record = nullptr,
    .event_wait = nullptr,
    .graph_optimize = keep_inputs,
};

// ---- the device ----

ggml_backend_buffer_type_t buffer_type_of(ggml_backend_dev_t device) {
    static ggml_backend_buffer_type type = {
        .iface = {.get_name = buffer_type_name,
                  .alloc_buffer = allocate,
                  .get_alignment = alignment,
                  .get_max_size = nullptr,
                  .get_alloc_size = nullptr,
                  .is_host = is_host},
        .device = device,
        .context = nullptr,
    };
    return &type;
}
const char* device_name(ggml_backend_dev_t) {
    return "tiffin";
}
const char* device_description(ggml_backend_dev_t) {
    static const std::string text = std::string("feed-forward blocks by tiffin, ") + instruction_set();
    return text.c_str();
}
void device_memory(ggml_backend_dev_t, std::size_t* free, std::size_t* total) {
    *free = *total = 0;  // the host's, which ggml counts itself
}
enum ggml_backend_dev_type device_type(ggml_backend_dev_t) {
    return GGML_BACKEND_DEVICE_TYPE_ACCEL;
}
void device_properties(ggml_backend_dev_t device, ggml_backend_dev_props* to) {
    *to = {.name = device_name(device),
           .description = device_description(device),
           .memory_free = 0,
           .memory_total = 0,
           .type = device_type(device),
           .device_id = nullptr,
           .caps = {.async = false,
                    .host_buffer = false,
                    .buffer_from_host_ptr = true,
                    .events = false,
                    .mmap_support = true}};
}
ggml_backend_t make_backend(ggml_backend_dev_t device, const char*) {
    auto made = std::make_unique<context>();
    if (!made->ready()) {
        GGML_LOG_ERROR("tiffin: ggml has no CPU backend, which everything but feed-forward blocks needs\n");
        return nullptr;
    }
    return new ggml_backend{&backend_id, backend_interface, device, made.release()};
}
ggml_backend_buffer_t wrap(ggml_backend_dev_t device, void* memory, std::size_t bytes, std::size_t) {
    return ggml_backend_buffer_init(buffer_type_of(device), buffer_interface, new weights_buffer(memory),
                                    bytes);
}
// When a model is loaded the question is whether a weight shall lie here: the node has it in an empty buffer.
bool is_asked_for_a_weight(const ggml_tensor* node) {
    return std::any_of(node->src, node->src + GGML_MAX_SRC, [](const ggml_tensor* from) {
        return from != nullptr && from->buffer != nullptr && from->buffer->size == 0 &&
               from->buffer->buft->iface.get_name == buffer_type_name;
    });
}
bool computes(ggml_backend_dev_t, const ggml_tensor* node) {
    note_parts(node);
    if (in_parts && !is_asked_for_a_weight(node))
        return ggml_backend_dev_supports_op(ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_CPU), node);
    switch (node->op) {
        case GGML_OP_NONE:
        case GGML_OP_RESHAPE:
        case GGML_OP_VIEW:
        case GGML_OP_PERMUTE:
        case GGML_OP_TRANSPOSE: return true;
        case GGML_OP_MUL_MAT:
        case GGML_OP_MUL_MAT_ID: return is_product(node);
        // Asked for a bias by itself, when a model is loaded, what it is added to is not known.
        case GGML_OP_ADD:
            return is_projection(node) || is_residual_sum(node) || is_sum_of_choices(node) ||
                   (node->src[0]->op == GGML_OP_NONE && is_bias(node->src[1]));
        case GGML_OP_MUL: return is_weighted(node);
        case GGML_OP_GET_ROWS: return side_file() != nullptr && is_embedding(node);
        case GGML_OP_GLU:
        case GGML_OP_UNARY: return is_hidden(node);
        default: return false;
    }
}
bool reads(ggml_backend_dev_t, ggml_backend_buffer_type_t type) {
    return type->iface.get_name == buffer_type_name || ggml_backend_buft_is_host(type);
}

constexpr ggml_backend_device_i device_interface = {
    .get_name = device_name,
    .get_description = device_description,
    .get_memory = device_memory,
    .get_type = device_type,
    .get_props = device_properties,
    .init_backend = make_backend,
    .get_buffer_type = buffer_type_of,
    .get_host_buffer_type = nullptr,
    .buffer_from_host_ptr = wrap,
    .supports_op = computes,
    .supports_buft = reads,
    .offload_op = nullptr,
    .event_new = nullptr,
    .event_free = nullptr,
    .event_synchronize = nullptr,
};

// ---- the registry ----

const char* registry_name(ggml_backend_reg_t) {
    return "tiffin";
}
std::size_t device_count(ggml_backend_reg_t) {
    return 1;
}
ggml_backend_dev_t device_at(ggml_backend_reg_t registry, std::size_t) {
    static ggml_backend_device device = {device_interface, registry, nullptr};
    return &device;
}
void* function_named(ggml_backend_reg_t, const char* name) {
    return std::strcmp(name, "ggml_backend_set_n_threads") == 0 ? reinterpret_cast<void*>(&set_threads)
                                                                : nullptr;
}
ggml_backend_reg_t registry() {
    static ggml_backend_reg all = {
        .api_version = GGML_BACKEND_API_VERSION,
        .iface = {.get_name = registry_name,
                  .get_device_count = device_count,
                  .get_device = device_at,
                  .get_proc_address = function_named},
        .context = nullptr,
    };
    return &all;
}

}  // namespace
}  // namespace tiffin_in_ggml

// What ggml calls when it loads this library.
extern "C" __attribute__((visibility("default"))) ggml_backend_reg_t ggml_backend_init() {
    // Its structures have no version of their own: those of another release may differ.
    if (std::strcmp(ggml_version(), TIFFIN_GGML_VERSION) != 0) {
        GGML_LOG_ERROR("tiffin: built for ggml " TIFFIN_GGML_VERSION
                       ", and this is ggml %s: build libggml-tiffin.so with the source of this one\n",
                       ggml_version());
        return nullptr;
    }
    tiffin::permit_amx();  // as ggml does for its own kernels
    GGML_LOG_INFO("tiffin: feed-forward blocks of ggml " TIFFIN_GGML_VERSION " run here, with %s\n",
                  tiffin_in_ggml::instruction_set());
    return tiffin_in_ggml::registry();
}

// Programs that do not load backends by themselves get this one by LD_PRELOAD. Weak: a preloaded library comes to
// all programs that are started, those without ggml among them.
extern "C" __attribute__((weak)) void ggml_backend_register(ggml_backend_reg_t registry);
namespace {
[[gnu::constructor]] void register_if_preloaded() {
    const char* const preloaded = std::getenv("LD_PRELOAD");
    if (preloaded == nullptr || std::strstr(preloaded, "ggml-tiffin") == nullptr) return;
    if (&ggml_backend_register == nullptr) return;
    if (ggml_backend_reg_t const registry = ggml_backend_init()) ggml_backend_register(registry);
}
}  // namespace
