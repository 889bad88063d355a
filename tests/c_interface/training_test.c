// tiffin/tiffin_training.h from C: compositions and layers that learn, on threads, and what is refused. Exits with 1 if a
// check fails.
#include <tiffin/tiffin_training.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "checks.h"

enum { d = 5, f = 7, vocab = 4, tokens = 3 };

static void count(void* user, const tiffin_needed_tensor* tensor) {
    size_t* const counted = user;
    ++counted[0];
    if (tensor->has_rows) {
        ++counted[1];
        CHECK(strcmp(tensor->name, "stem_embed.weight") == 0 && tensor->rank == 2);
        CHECK(tensor->shape[0] == vocab && tensor->shape[1] == f && !tensor->is_optional &&
              !tensor->has_integers);
    }
}

static void compositions(void) {
    tiffin_composition* stem = NULL;
    CHECK(fine(tiffin_composition_open("stem", &stem)));
    CHECK(strstr(tiffin_composition_text(stem), "token_embedding") != NULL);
    CHECK(tiffin_composition_reads_residual(stem) == 0);
    const char* const with_residual[] = {"on_residual(swiglu)", "parallel(swiglu, sum(dense, residual_input))",
                                         "moe(on_residual(swiglu))"};
    for (size_t i = 0; i < 3; ++i) {
        tiffin_composition* reads = NULL;
        CHECK(fine(tiffin_composition_open(with_residual[i], &reads)));
        CHECK(tiffin_composition_reads_residual(reads) != 0);
        tiffin_composition_free(reads);
    }
    tiffin_sizes sizes = {.struct_size = sizeof sizes, .d_model = d, .d_ff = f, .vocab = vocab};
    size_t counted[2] = {0, 0};
    CHECK(fine(tiffin_composition_tensors(stem, &sizes, count, counted)) && counted[0] >= 3 &&
          counted[1] == 1);
    tiffin_cost cost = {.struct_size = sizeof cost};
    CHECK(fine(tiffin_composition_cost(stem, &sizes, &cost)) && cost.parameters == 2 * d * f + vocab * f);
    CHECK(cost.matrix_flops == 4 * d * f && cost.row_parameters == f);

    float gate[f * d], table[vocab * f], down[d * f];
    tiffin_tensor tensors[] = {{"gate_proj.weight", gate, TIFFIN_DTYPE_F32, 2, {f, d}},
                               {"stem_embed.weight", table, TIFFIN_DTYPE_F32, 2, {vocab, f}},
                               {"down_proj.weight", down, TIFFIN_DTYPE_F32, 2, {d, f}}};
    CHECK(fine(tiffin_composition_initialise(stem, &sizes, 2, 1, 7, tensors, 3)));
    CHECK(is(tiffin_composition_initialise(stem, &sizes, 0, 1, 7, tensors, 3), TIFFIN_ERRC_OPTION, "layers"));
    CHECK(is(tiffin_composition_initialise(stem, &sizes, 2, 1, 7, tensors, 2), TIFFIN_ERRC_MISSING_TENSOR,
             "down_proj"));
    tensors[1].type = TIFFIN_DTYPE_F16;
    CHECK(is(tiffin_composition_initialise(stem, &sizes, 2, 1, 7, tensors, 3), TIFFIN_ERRC_DTYPE,
             "stem_embed"));

    tiffin_composition* other = NULL;
    CHECK(is(tiffin_composition_open("ffn(gate(bagel), dense)", &other), TIFFIN_ERRC_OPTION, "bagel") &&
          other == NULL);
    CHECK(is(tiffin_composition_open(NULL, &other), TIFFIN_ERRC_ARGUMENT, "text"));
    CHECK(is(tiffin_composition_open("stem", NULL), TIFFIN_ERRC_ARGUMENT, "composition"));
    CHECK(is(tiffin_composition_cost(NULL, &sizes, &cost), TIFFIN_ERRC_ARGUMENT, "composition"));
    CHECK(is(tiffin_composition_cost(stem, NULL, &cost), TIFFIN_ERRC_ARGUMENT, "sizes"));
    CHECK(is(tiffin_composition_cost(stem, &sizes, NULL), TIFFIN_ERRC_ARGUMENT, "cost"));
    CHECK(is(tiffin_composition_tensors(stem, &sizes, NULL, NULL), TIFFIN_ERRC_ARGUMENT, "each"));
    sizes.vocab = 0;
    CHECK(is(tiffin_composition_cost(stem, &sizes, &cost), TIFFIN_ERRC_OPTION, "stem_embed.weight"));
    sizes.vocab = (size_t)1 << 40;
    CHECK(is(tiffin_composition_cost(stem, &sizes, &cost), TIFFIN_ERRC_ARGUMENT, "vocab"));
    sizes.struct_size = 3;
    CHECK(is(tiffin_composition_cost(stem, &sizes, &cost), TIFFIN_ERRC_ARGUMENT, "struct_size"));
    tiffin_composition_free(stem);
    tiffin_composition_free(NULL);
    CHECK(strcmp(tiffin_composition_text(NULL), "") == 0);
    CHECK(tiffin_composition_reads_residual(NULL) == 0);
}

// sum(y dy) at x, whose derivative is dx.
static double loss(tiffin_training* training, const double* x, const int32_t* ids, const double* dy) {
    double y[tokens * d], sum = 0;
    tiffin_training_call call = {
        .struct_size = sizeof call, .tokens = tokens, .x = x, .token_ids = ids, .y = y};
    CHECK(fine(tiffin_training_forward(training, &call)));
    for (size_t i = 0; i < tokens * d; ++i) sum += y[i] * dy[i];
    return sum;
}

static void learns(void) {
    double gate[f * d], table[vocab * f], down[d * f], x[tokens * d], dy[tokens * d], dx[tokens * d];
    const int32_t ids[tokens] = {2, 0, 2};
    for (size_t i = 0; i < f * d; ++i) gate[i] = sin(1.0 + (double)i), down[i] = cos(2.0 * (double)i);
    for (size_t i = 0; i < vocab * f; ++i) table[i] = sin(3.0 * (double)i);
    for (size_t i = 0; i < tokens * d; ++i) x[i] = cos((double)i), dy[i] = sin(5.0 + (double)i);
    const tiffin_block_option block = {"composition", "stem"};
    const tiffin_tensor tensors[] = {{"gate_proj.weight", gate, TIFFIN_DTYPE_F64, 2, {f, d}},
                                     {"stem_embed.weight", table, TIFFIN_DTYPE_F64, 2, {vocab, f}},
                                     {"down_proj.weight", down, TIFFIN_DTYPE_F64, 2, {d, f}}};
    tiffin_training_options options = {
        .struct_size = sizeof options, .numbers = TIFFIN_DTYPE_F64, .tokens = tokens};
    tiffin_training* training = NULL;
    CHECK(fine(tiffin_training_make(&block, 1, tensors, 3, &options, &training)));
    tiffin_needs needs = {.struct_size = sizeof needs};
    CHECK(fine(tiffin_training_needs(training, &needs)));
    CHECK(needs.d_model == d && needs.outputs == d && needs.reads_token_ids && !needs.reads_residual);

    tiffin_threads* threads = NULL;
    CHECK(fine(tiffin_threads_make(2, &threads)) && tiffin_threads_executor(threads)->concurrency == 2);
    tiffin_backward_call back = {
        .struct_size = sizeof back, .dy = dy, .dx = dx, .executor = tiffin_threads_executor(threads)};
    CHECK(is(tiffin_training_backward(training, &back), TIFFIN_ERRC_EMPTY, "forward"));
    const double before = loss(training, x, ids, dy);
    CHECK(fine(tiffin_training_backward(training, &back)));
    for (size_t i = 0; i < tokens * d; i += 4) {
        const double h = 1e-6, held = x[i];
        x[i] = held + h;
        const double slope = (loss(training, x, ids, dy) - before) / h;
        x[i] = held;
        CHECK(fabs(slope - dx[i]) < 1e-4 * (1 + fabs(slope)));  // of h times the second derivative
    }
    tiffin_gradient gradient;
    size_t rows = 0, dense = 0;
    for (size_t i = 0; tiffin_training_gradient(training, i, &gradient); ++i)
        if (gradient.slots != 0) {
            ++rows;
            CHECK(gradient.read[0] && gradient.read[1] && gradient.shape[1] == f);
        } else {
            ++dense;
            CHECK(gradient.data != NULL && gradient.read == NULL);
        }
    CHECK(rows == 1 && dense == 2);
    int32_t found[vocab];
    uint32_t slots[vocab];
    CHECK(tiffin_training_ids(training, NULL, NULL) == 2 && tiffin_training_ids(training, found, slots) == 2);
    CHECK(found[0] == 0 && found[1] == 2);
    tiffin_training_clear(training);
    CHECK(tiffin_training_ids(training, NULL, NULL) == 0);

    // What is refused.
    double y[tokens * d];
    tiffin_training_call call = {
        .struct_size = sizeof call, .tokens = tokens, .x = x, .token_ids = ids, .y = y};
    const int32_t beyond[tokens] = {0, vocab, 0};
    call.token_ids = beyond;
    CHECK(is(tiffin_training_forward(training, &call), TIFFIN_ERRC_TOKEN_ID, "token_ids"));
    call.token_ids = NULL;
    CHECK(is(tiffin_training_forward(training, &call), TIFFIN_ERRC_SIZE, "token_ids"));
    call.token_ids = ids, call.tokens = tokens + 1;
    CHECK(is(tiffin_training_forward(training, &call), TIFFIN_ERRC_SIZE, "x"));
    call.tokens = tokens, call.y = NULL;
    CHECK(is(tiffin_training_forward(training, &call), TIFFIN_ERRC_ARGUMENT, "y"));
    call.y = x;
    CHECK(is(tiffin_training_forward(training, &call), TIFFIN_ERRC_OVERLAP, "y"));
    call.struct_size = 1;
    CHECK(is(tiffin_training_forward(training, &call), TIFFIN_ERRC_ARGUMENT, "struct_size"));
    CHECK(is(tiffin_training_forward(NULL, &call), TIFFIN_ERRC_ARGUMENT, "training"));
    CHECK(is(tiffin_training_backward(training, NULL), TIFFIN_ERRC_ARGUMENT, "call"));
    CHECK(is(tiffin_training_needs(training, NULL), TIFFIN_ERRC_ARGUMENT, "needs"));
    tiffin_training* other = NULL;
    CHECK(is(tiffin_training_make(&block, 1, tensors, 2, &options, &other), TIFFIN_ERRC_MISSING_TENSOR,
             "down_proj"));
    options.numbers = TIFFIN_DTYPE_F32;
    CHECK(is(tiffin_training_make(&block, 1, tensors, 3, &options, &other), TIFFIN_ERRC_DTYPE, "gate_proj"));
    options.numbers = TIFFIN_DTYPE_Q8_0;
    CHECK(is(tiffin_training_make(&block, 1, tensors, 3, &options, &other), TIFFIN_ERRC_OPTION, "numbers"));
    options.numbers = TIFFIN_DTYPE_F64;
    const char* frozen[] = {"stem_embed.weight", "none"};
    options.frozen = frozen, options.frozen_count = 2;
    CHECK(is(tiffin_training_make(&block, 1, tensors, 3, &options, &other), TIFFIN_ERRC_MISSING_TENSOR,
             "none"));
    options.frozen_count = 1;
    CHECK(fine(tiffin_training_make(&block, 1, tensors, 3, &options, &other)));
    CHECK(tiffin_training_gradient(other, 1, &gradient) && !tiffin_training_gradient(other, 2, &gradient));
    options.struct_size = 0;
    tiffin_training* none = NULL;
    CHECK(is(tiffin_training_make(&block, 1, tensors, 3, &options, &none), TIFFIN_ERRC_ARGUMENT,
             "struct_size") &&
          none == NULL);
    CHECK(is(tiffin_training_make(&block, 1, tensors, 3, NULL, NULL), TIFFIN_ERRC_ARGUMENT, "training"));
    CHECK(is(tiffin_threads_make(0, &threads), TIFFIN_ERRC_OPTION, "count"));
    CHECK(!tiffin_training_gradient(NULL, 0, &gradient) && tiffin_training_ids(NULL, NULL, NULL) == 0);
    tiffin_training_clear(NULL);
    tiffin_training_free(other);
    tiffin_training_free(training);
    tiffin_training_free(NULL);
    tiffin_threads_free(threads);
    tiffin_threads_free(NULL);
    CHECK(tiffin_threads_executor(NULL) == NULL);
}

int main(void) {
    compositions();
    learns();
    printf("%d failed\n", failed);
    return failed != 0;
}
