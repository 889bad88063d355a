// tiffin for C, continued: what a composition needs and costs, and layers that learn. As in tiffin/tiffin.h, errors are
// values, and structs begin with their size.
#pragma once

#include <tiffin/tiffin.h>

#if defined(__cplusplus)
extern "C" {
#endif

// ---- compositions ----

// A composition by its text, "ffn(gate(silu), token_embedding)" (docs/layers.md): the tensors that it needs, and its cost.
// A layer of it is made by tiffin_layer_make with the option {"composition", text}.
typedef struct tiffin_composition tiffin_composition;

// The sizes that a text leaves open. All zero but struct_size and what the composition has.
typedef struct tiffin_sizes {
    size_t struct_size;
    size_t d_model, d_ff, vocab;
    size_t experts, rank;  // of banks, mixtures and pools
    size_t inner[2];       // of memories: their inner widths
    size_t choices;        // of a router that takes as many as tensors say
    size_t outputs;        // of a block that has a width of its own
    size_t heads;          // of product keys
} tiffin_sizes;

// A tensor that a composition needs. `name` and the struct are valid during the call that tells of it.
typedef struct tiffin_needed_tensor {
    const char* name;
    size_t rank;
    size_t shape[4];
    int32_t is_optional;
    int32_t has_rows;      // a table, of which a token reads some rows
    int32_t has_integers;  // a map of experts: I32, the caller's to fill
} tiffin_needed_tensor;

// What a composition costs per token at decode, optional tensors left out. One multiply-add is 2 FLOPs.
typedef struct tiffin_cost {
    size_t struct_size;
    double parameters, table_parameters;          // stored
    double parameters_per_token, row_parameters;  // read per token; the part of them that is table rows
    double matrix_flops, elementwise_flops;       // per token
} tiffin_cost;

// Parses a text. Errors: OPTION, with the position and what was expected; ARGUMENT.
TIFFIN_C_API tiffin_error* tiffin_composition_open(const char* text, tiffin_composition** composition);
// The text with all arguments and options, aliases expanded; "" for NULL. Valid as long as the composition.
TIFFIN_C_API const char* tiffin_composition_text(const tiffin_composition* composition);
// Not 0 if calls need the residual stream.
TIFFIN_C_API int tiffin_composition_reads_residual(const tiffin_composition* composition);
// Calls each(user, tensor) for every tensor, in the order of the text.
TIFFIN_C_API tiffin_error* tiffin_composition_tensors(
    const tiffin_composition* composition, const tiffin_sizes* sizes,
    void (*each)(void* user, const tiffin_needed_tensor* tensor), void* user);
// Its cost. Errors: ARGUMENT.
TIFFIN_C_API tiffin_error* tiffin_composition_cost(const tiffin_composition* composition,
                                                   const tiffin_sizes* sizes, tiffin_cost* cost);
// The cost of a layer, optional tensors that it was given with them. Errors: ARGUMENT.
TIFFIN_C_API tiffin_error* tiffin_layer_cost(const tiffin_layer* layer, tiffin_cost* cost);
// Writes the starting values of the papers (docs/layers.md#initialisers) to the given F32 tensors; `layers`: of the
// model; `scale`: of modulators. Errors: OPTION, MISSING_TENSOR, SHAPE, DTYPE, ARGUMENT; found before anything is written.
TIFFIN_C_API tiffin_error* tiffin_composition_initialise(const tiffin_composition* composition,
                                                         const tiffin_sizes* sizes, size_t layers,
                                                         float scale, uint64_t seed,
                                                         const tiffin_tensor* tensors, size_t tensor_count);
// Frees a composition. NULL is allowed.
TIFFIN_C_API void tiffin_composition_free(tiffin_composition* composition);

// ---- training ----

// A block whose tensors are read in the caller's memory in every call: y = block(x, inputs), and its gradients. One call
// at a time.
typedef struct tiffin_training tiffin_training;

// All zero but struct_size: f32, 512 tokens per call, gradients for all tensors.
typedef struct tiffin_training_options {
    size_t struct_size;
    // F32, or AS_STORED: simd in f32. BF16: the same with the factors of products rounded to bf16. F64: reference, in
    // double throughout. x, y and all gradients are doubles for F64, else floats.
    tiffin_dtype numbers;
    size_t tokens;              // the most per call; 0: 512
    size_t table_rows;          // the most different ids until the gradients are cleared; 0: `tokens`
    size_t workers;             // concurrent tasks; 0: one per hardware thread
    int32_t recompute;          // not 0: forward keeps nothing for backward, which runs it once more
    const char* const* frozen;  // the names of tensors that have no gradient
    size_t frozen_count;
} tiffin_training_options;

// What a call needs.
typedef struct tiffin_needs {
    size_t struct_size;
    size_t d_model, outputs, choices, per_layer_input_width;
    int32_t reads_token_ids, reads_residual;
} tiffin_needs;

// The arguments of forward: dense rows, one per token, unchanged until backward.
typedef struct tiffin_training_call {
    size_t struct_size;
    size_t tokens;
    const void* x;                // (tokens, d_model)
    const int32_t* token_ids;     // (tokens), or NULL where none are read
    const void* residual;         // (tokens, d_model); likewise
    const void* per_layer_input;  // (tokens, per_layer_input_width); likewise
    void* y;                      // (tokens, outputs)
    tiffin_choice* routes;        // (tokens, choices): written; may be NULL
    const tiffin_executor* executor;
    size_t executor_size;
} tiffin_training_call;

// The arguments of backward: dy is read, the others written; NULL: not computed.
typedef struct tiffin_backward_call {
    size_t struct_size;
    const void* dy;           // (tokens, outputs)
    void* dx;                 // (tokens, d_model)
    void* d_residual;         // (tokens, d_model)
    void* d_per_layer_input;  // (tokens, per_layer_input_width)
    const tiffin_executor* executor;
    size_t executor_size;
} tiffin_backward_call;

// The gradient of a tensor, in the layer's memory.
typedef struct tiffin_gradient {
    const char* name;
    size_t rank;
    size_t shape[4];  // of the tensor
    void* data;       // dense: in this shape. Of a table: (slots, width); of a pool: (experts, slots, width)
    size_t slots;     // rows per expert; 0: dense. tiffin_training_ids says which id has which
    const uint8_t* read;  // (experts, slots): not 0 where a token has read the row; NULL: dense
} tiffin_gradient;

// Prepares a block for training; block and tensors as for tiffin_layer_make.
// Lifetime: the memory of the tensors must outlive the training, which reads it in every call: write steps to it.
// Errors: as tiffin_layer_make; DTYPE for tensors that are not F32 (or F64 with numbers F64); WORKSPACE.
TIFFIN_C_API tiffin_error* tiffin_training_make(const tiffin_block_option* block, size_t block_count,
                                                const tiffin_tensor* tensors, size_t tensor_count,
                                                const tiffin_training_options* options,
                                                tiffin_training** training);
// Frees a training. NULL is allowed.
TIFFIN_C_API void tiffin_training_free(tiffin_training* training);
// Errors: ARGUMENT.
TIFFIN_C_API tiffin_error* tiffin_training_needs(const tiffin_training* training, tiffin_needs* needs);
// y = block(x, inputs). Errors: SIZE, TOKEN_ID, OVERLAP, WORKSPACE, ARGUMENT, before y is written; EXECUTOR.
TIFFIN_C_API tiffin_error* tiffin_training_forward(tiffin_training* training,
                                                   const tiffin_training_call* call);
// Adds the gradients of the last forward. Errors: the same, EMPTY where there was none.
TIFFIN_C_API tiffin_error* tiffin_training_backward(tiffin_training* training,
                                                    const tiffin_backward_call* call);
// The i-th tensor's gradient. Not 0 where there is one. Valid as long as the training.
TIFFIN_C_API int tiffin_training_gradient(const tiffin_training* training, size_t i,
                                          tiffin_gradient* gradient);
// The ids that tables' gradients have rows of, ascending, with their slots; returns how many. The arrays may be NULL.
TIFFIN_C_API size_t tiffin_training_ids(const tiffin_training* training, int32_t* ids, uint32_t* slots);
// Sets all gradients to 0 and forgets the ids; backward needs a new forward.
TIFFIN_C_API void tiffin_training_clear(tiffin_training* training);

#if defined(__cplusplus)
}
#endif
