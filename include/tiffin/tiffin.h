// tiffin for C, and for every language that calls C: layers of models, of layer files and of raw memory.
//
// Link libtiffin (target tiffin::c). Errors are values: a function that can fail returns NULL, or an error that the
// caller frees; its outputs are then as they were. Nothing is kept between calls but what handles hold, and no C++
// exception leaves a function. A layer is immutable: any number of threads may run it at the same time, each with a
// workspace and an output of its own. Handles are freed once, when no other call uses them.
//
// Structs that callers fill begin with their size: {.struct_size = sizeof(tiffin_call), ...}, all else zero. Members
// are only ever appended: a caller compiled with an older header gives a smaller size, and is served as before.
#pragma once

#include <stddef.h>
#include <stdint.h>

#define TIFFIN_C_VERSION_MAJOR 0
#define TIFFIN_C_VERSION_MINOR 1
#define TIFFIN_C_VERSION_PATCH 0
#define TIFFIN_C_VERSION \
    (TIFFIN_C_VERSION_MAJOR * 65536 + TIFFIN_C_VERSION_MINOR * 256 + TIFFIN_C_VERSION_PATCH)

#if defined(__GNUC__)
#    define TIFFIN_C_API __attribute__((visibility("default")))
#else
#    define TIFFIN_C_API
#endif

#if defined(__cplusplus)
extern "C" {
#endif

// The version of the linked library: (major << 16) + (minor << 8) + patch. That of this header: TIFFIN_C_VERSION.
TIFFIN_C_API uint32_t tiffin_version(void);

// Requests the tile registers of AMX from the operating system, for this process and permanently. Not 0: layers that
// are prepared from now on use them. 0: the library was not compiled for them, or machine or system have none. No other
// function requests them.
TIFFIN_C_API int tiffin_permit_amx(void);

// ---- errors ----

// A failure: its kind, what it concerns and a sentence with the numbers.
typedef struct tiffin_error tiffin_error;

// The kinds of failure: those of tiffin::errc, with the same names and values, and two of this interface.
typedef int32_t tiffin_errc;
enum {
    TIFFIN_ERRC_NONE = -1,         // no error: tiffin_error_code(NULL)
    TIFFIN_ERRC_SHAPE = 0,         // a tensor's shape or rank does not fit the block
    TIFFIN_ERRC_MISSING_TENSOR,    // the block needs a tensor that was not given
    TIFFIN_ERRC_UNUSED_TENSOR,     // a tensor was given that the block does not use
    TIFFIN_ERRC_DUPLICATE_TENSOR,  // one name was given twice
    TIFFIN_ERRC_DTYPE,             // a tensor's number format is not one the block can read
    TIFFIN_ERRC_VALUE,             // a tensor holds a value that the requested format cannot represent
    TIFFIN_ERRC_SIZE,              // a row stride of a call is too small, or an input is missing
    TIFFIN_ERRC_TOKEN_ID,          // a token id lies outside a table
    TIFFIN_ERRC_OVERLAP,           // the output overlaps an input
    TIFFIN_ERRC_WORKSPACE,         // the workspace is too small for a single token
    TIFFIN_ERRC_OPTION,            // an option has an unknown name or an impossible value
    TIFFIN_ERRC_FILE,              // a file cannot be read or parsed
    TIFFIN_ERRC_EMPTY,             // the object called holds nothing
    TIFFIN_ERRC_DEVICE,            // a device reports an error
    TIFFIN_ERRC_EXECUTOR,          // an executor did not run each task once; outputs are invalid
    TIFFIN_ERRC_ARGUMENT = 100,    // a pointer is NULL that must not be, or a struct_size is unknown
    TIFFIN_ERRC_MEMORY             // memory cannot be allocated
};

// The kind; TIFFIN_ERRC_NONE for NULL.
TIFFIN_C_API tiffin_errc tiffin_error_code(const tiffin_error* error);
// One line of printable ASCII with the name and the numbers; "" for NULL. Valid as long as the error.
TIFFIN_C_API const char* tiffin_error_message(const tiffin_error* error);
// The name or path that it concerns, unescaped; "" for NULL. Valid as long as the error.
TIFFIN_C_API const char* tiffin_error_where(const tiffin_error* error);
// Frees an error. NULL is allowed.
TIFFIN_C_API void tiffin_error_free(tiffin_error* error);

// ---- formats, backends and options ----

// The number formats of tensors: those of tiffin::dtype, each value one higher.
typedef int32_t tiffin_dtype;
enum {
    TIFFIN_DTYPE_ROWS =
        -1,  // only in tiffin_tensor: `data` is a tiffin_rows (tiffin/tiffin_rows.h), read in each call
    TIFFIN_DTYPE_AS_STORED = 0,  // only in tiffin_prepare_options
    TIFFIN_DTYPE_F32,
    TIFFIN_DTYPE_F16,
    TIFFIN_DTYPE_BF16,
    TIFFIN_DTYPE_I32,
    TIFFIN_DTYPE_I64,
    TIFFIN_DTYPE_U8,
    TIFFIN_DTYPE_Q8_0,
    TIFFIN_DTYPE_Q4_0,
    TIFFIN_DTYPE_Q4_1,  // weights and tables can be kept in F32, F16, BF16, Q8_0, Q4_0 and Q4_1
    TIFFIN_DTYPE_Q5_0,  // from here on: ggml's blocks, read only
    TIFFIN_DTYPE_Q5_1,
    TIFFIN_DTYPE_Q2_K,
    TIFFIN_DTYPE_Q3_K,
    TIFFIN_DTYPE_Q4_K,
    TIFFIN_DTYPE_Q5_K,
    TIFFIN_DTYPE_Q6_K,
    TIFFIN_DTYPE_IQ4_NL,
    TIFFIN_DTYPE_IQ4_XS,
    TIFFIN_DTYPE_MXFP4,
    TIFFIN_DTYPE_F64,  // read by the reference backend alone
    TIFFIN_DTYPE_F8_E4M3,
    TIFFIN_DTYPE_F8_E5M2,
    TIFFIN_DTYPE_F8_E8M0,
    TIFFIN_DTYPE_NVFP4,
    TIFFIN_DTYPE_U4  // codes of rows with scales
};

// How a layer is computed (docs/numerics.md).
typedef int32_t tiffin_backend;
enum {
    TIFFIN_BACKEND_SIMD = 0,  // packed weights, fused
    TIFFIN_BACKEND_EIGEN,     // f32 throughout
    TIFFIN_BACKEND_REFERENCE  // double throughout: slow, to check the others with
};

// The caller's threads: `run` calls task(arg, i) for i in [0, n), each once, in any order, on any thread, and returns
// when all that it has begun have ended. Neither it nor a task throws or leaves by longjmp. `concurrency`: how many
// tasks can run at the same time; 0: unknown.
//
// The library counts tasks: if one has not run exactly once when `run` returns, the call fails with EXECUTOR. It also
// fails if `run_checked` returns anything but 0. `run_checked` is called instead of `run`, which may then be NULL. It
// is for callers that may have to stop before all tasks have run (a language's exception, a thread that does not
// start). It too returns only when no task is running; tasks that have not begun by then must never run.
typedef struct tiffin_executor {
    void (*run)(void* user, size_t n, void (*task)(void* arg, size_t i), void* arg);
    void* user;
    size_t concurrency;
    // Read only if executor_size in the structs below covers it.
    int (*run_checked)(void* user, size_t n, void (*task)(void* arg, size_t i), void* arg);
} tiffin_executor;

// Threads of the library's own, as an executor: they spin for 0.2 ms between calls, then sleep. Calls from several threads
// at once are run by their callers alone, and so are those in a child of fork().
typedef struct tiffin_threads tiffin_threads;
// Starts count - 1 threads beside the one that calls. Errors: OPTION for 0, EXECUTOR where one cannot be started.
TIFFIN_C_API tiffin_error* tiffin_threads_make(size_t count, tiffin_threads** threads);
// The executor, valid as long as the threads; NULL for NULL.
TIFFIN_C_API const tiffin_executor* tiffin_threads_executor(const tiffin_threads* threads);
// Ends them. NULL is allowed. No call runs on them.
TIFFIN_C_API void tiffin_threads_free(tiffin_threads* threads);

// How a layer is prepared. All zero but struct_size: simd, values kept as stored, on the calling thread.
typedef struct tiffin_prepare_options {
    size_t struct_size;
    tiffin_backend backend;
    // The formats in which simd keeps dense weights and tables; the other backends keep weights in F32, and tables as
    // they are stored. AS_STORED: each tensor's own format if weights can be kept in it, Q8_0 for other blocks; a table
    // always in its own. Weights that are packed together (gate and up) have one format, F32 or Q8_0 where theirs
    // differ. A table: any tensor of which a token reads some rows.
    tiffin_dtype weights, tables;
    // Not 0: simd multiplies f32 activations. 0: it rounds them if the weights are Q8_0, Q4_0, Q4_1 or BF16.
    int32_t f32_activations;
    const tiffin_executor* executor;  // runs the packing of the weights; NULL: the calling thread
    // Reports progress on the calling thread: `done` of `bytes` tensor bytes are prepared. NULL: none. It never throws.
    void (*progress)(void* user, size_t done, size_t bytes);
    void* progress_user;
    size_t executor_size;  // sizeof *executor; 0: as in this header
} tiffin_prepare_options;

// An option of a block, as in the metadata of layer files: {"block", "stem"} (docs/layer_files.md).
typedef struct tiffin_block_option {
    const char* key;
    const char* value;
} tiffin_block_option;

// A tensor in the caller's memory: row-major, dense, at any alignment; sizes outermost first, rank 0 to 4. Sizes count
// values, also in block formats, whose last axis is whole blocks.
typedef struct tiffin_tensor {
    const char* name;
    const void* data;
    tiffin_dtype type;
    size_t rank;
    size_t shape[4];
} tiffin_tensor;

// ---- models ----

// A model: a GGUF file, the first of a split one, or a checkpoint's folder or config.json (docs/models.md).
typedef struct tiffin_model tiffin_model;

// Opens a model.
// Errors: FILE, OPTION (an unknown architecture), ARGUMENT. Cost: reads the headers only.
TIFFIN_C_API tiffin_error* tiffin_model_open(const char* path, tiffin_model** model);
// The number of layers, indexed from 0; 0 for NULL.
TIFFIN_C_API size_t tiffin_model_layers(const tiffin_model* model);
// The architecture named in the file; "" for NULL. Valid as long as the model.
TIFFIN_C_API const char* tiffin_model_architecture(const tiffin_model* model);
// Frees a model. NULL is allowed. Its layers stay valid.
TIFFIN_C_API void tiffin_model_free(tiffin_model* model);

// ---- layers ----

// A block with its weights, ready to run: y = block(x, inputs).
typedef struct tiffin_layer tiffin_layer;

// Prepares the FFN of a layer of a model, without the norms around it and the residual. NULL options are the defaults.
// Errors: those of a file and of its tensors, naming the file's tensor; OPTION for an index out of range.
// Cost: one pass over the layer's weights, and a packed copy of them in simd.
TIFFIN_C_API tiffin_error* tiffin_model_layer(const tiffin_model* model, size_t index,
                                              const tiffin_prepare_options* options, tiffin_layer** layer);
// Reads a layer file (docs/layer_files.md) and prepares its block. NULL options are the defaults.
// Errors: FILE, and those of tiffin_layer_make preceded by the path. Cost: one file read, and the same.
TIFFIN_C_API tiffin_error* tiffin_layer_open(const char* path, const tiffin_prepare_options* options,
                                             tiffin_layer** layer);
// Prepares a block from given tensors, named as in layer files: its kind and options, or `composition`, the text of
// one. NULL options are the defaults.
// Lifetime: the memory of the tensors that tiffin_layer_in_place names must outlive the layer; all other given memory,
//   the names and the options too, may be freed.
// Errors: OPTION for an unknown or missing block or option; MISSING_TENSOR, UNUSED_TENSOR, DUPLICATE_TENSOR, DTYPE,
//   SHAPE, VALUE, naming the tensor; ARGUMENT; EXECUTOR.
// Cost: one pass over the weights, and a packed copy of them in simd; no copy of tables kept as they are stored.
//
//     tiffin_block_option block = {"block", "mlp"};
//     tiffin_tensor tensors[] = {{"up_proj.weight", up, TIFFIN_DTYPE_F32, 2, {d_ff, d_model}},
//                                {"down_proj.weight", down, TIFFIN_DTYPE_F32, 2, {d_model, d_ff}}};
//     tiffin_error* error = tiffin_layer_make(&block, 1, tensors, 2, NULL, &layer);
TIFFIN_C_API tiffin_error* tiffin_layer_make(const tiffin_block_option* block, size_t block_count,
                                             const tiffin_tensor* tensors, size_t tensor_count,
                                             const tiffin_prepare_options* options, tiffin_layer** layer);
// Writes a block as a layer file, which tiffin_layer_open reads: tensors as for tiffin_layer_make, in memory. A file that is
// there is replaced when all is written. Errors: OPTION, MISSING_TENSOR, UNUSED_TENSOR, DTYPE, SHAPE, as a layer on
// reference has them; FILE, ARGUMENT. Cost: one write, after the checks of a layer.
TIFFIN_C_API tiffin_error* tiffin_layer_save(const char* path, const tiffin_block_option* block,
                                             size_t block_count, const tiffin_tensor* tensors,
                                             size_t tensor_count);
// Frees a layer. NULL is allowed.
TIFFIN_C_API void tiffin_layer_free(tiffin_layer* layer);

// Features per token row of x and y. This and the getters below return 0 for NULL.
TIFFIN_C_API size_t tiffin_layer_d_model(const tiffin_layer* layer);
// Hidden features of the first part that has some.
TIFFIN_C_API size_t tiffin_layer_d_ff(const tiffin_layer* layer);
// Experts per token of the outermost part that routes; 0 if none routes.
TIFFIN_C_API size_t tiffin_layer_choices(const tiffin_layer* layer);
// Not 0 if calls need token ids.
TIFFIN_C_API int tiffin_layer_reads_token_ids(const tiffin_layer* layer);
// Not 0 if calls need the residual stream.
TIFFIN_C_API int tiffin_layer_reads_residual(const tiffin_layer* layer);
// Features of a row of per_layer_input; 0 if it is not read.
TIFFIN_C_API size_t tiffin_layer_per_layer_input_width(const tiffin_layer* layer);
// The name of the i-th tensor that the layer keeps reading in the caller's memory; NULL after the last of them.
TIFFIN_C_API const char* tiffin_layer_in_place(const tiffin_layer* layer, size_t i);
// Bytes of weights in the layer's own memory: packed, converted, or copied.
TIFFIN_C_API size_t tiffin_layer_held_bytes(const tiffin_layer* layer);
// Bytes of a workspace in which `tokens` tokens run in one piece, with `workers` concurrent tasks. With a smaller one a
// call uses fewer workers, then runs in pieces; the result is the same. Layers may share one, one call at a time.
TIFFIN_C_API size_t tiffin_layer_workspace_bytes(const tiffin_layer* layer, size_t tokens, size_t workers);

// An expert chosen for a token, and the weight of its value.
typedef struct tiffin_choice {
    int32_t expert;
    float weight;
} tiffin_choice;

// The arguments of a call. Matrices are row-major f32, one token per row; strides count floats, 0: no gap.
typedef struct tiffin_call {
    size_t struct_size;
    size_t tokens;
    const float* x;  // (tokens, d_model)
    size_t x_stride;
    const int32_t* token_ids;  // (tokens); may be NULL where the layer does not read them
    const float* residual;     // (tokens, d_model); likewise
    size_t residual_stride;
    const float* per_layer_input;  // (tokens, per_layer_input_width); likewise
    size_t per_layer_input_stride;
    float* y;  // (tokens, d_model); x itself, or overlapping no input
    size_t y_stride;
    tiffin_choice*
        routes;       // (tokens, choices), best first: the layer writes the chosen experts here; may be NULL
    void* workspace;  // at any alignment
    size_t workspace_bytes;
    const tiffin_executor* executor;  // NULL: the calling thread
    size_t executor_size;             // sizeof *executor; 0: as in this header
} tiffin_call;

// Runs a layer: y = block(x, inputs).
// Numerics: in simd a token's output is bit-identical at any batch size, workspace and number of threads.
// Errors: SIZE, TOKEN_ID, OVERLAP, WORKSPACE, ARGUMENT; found before y is written. EXECUTOR; y and routes are then
//   invalid. Cost: no allocation except of an error; an atomic addition per task.
TIFFIN_C_API tiffin_error* tiffin_layer_run(const tiffin_layer* layer, const tiffin_call* call);

#if defined(__cplusplus)
}
#endif
