// tiffin/tiffin_rows.h from C: rows in files, alone and under a layer, row numbers by the last ids, tables that learn, and what
// is refused. Exits with 1 if a check fails. Its argument: a folder of its own.
#include <tiffin/tiffin_rows.h>
#include <tiffin/tiffin_training.h>

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "checks.h"

enum { d = 5, f = 7, vocab = 4, tokens = 3 };

static float table[vocab * f];
static char path[4096], stored_path[4096];

static int write_table(void) {
    FILE* const file = fopen(path, "wb");
    if (file == NULL) return 0;
    char header[96];
    memset(header, ' ', sizeof header);
    const int length = snprintf(header, sizeof header,
                                "{\"table\":{\"dtype\":\"F32\",\"shape\":[%d,%d],\"data_offsets\":[0,%d]}}",
                                (int)vocab, (int)f, (int)sizeof table);
    header[length] = ' ';
    const unsigned char size[8] = {sizeof header};
    const int written = fwrite(size, 1, 8, file) == 8 &&
                        fwrite(header, 1, sizeof header, file) == sizeof header &&
                        fwrite(table, 1, sizeof table, file) == sizeof table;
    return fclose(file) == 0 && written;
}

static void rows_alone(tiffin_rows* rows) {
    tiffin_rows_shape shape = {.struct_size = sizeof shape};
    CHECK(fine(tiffin_rows_describe(rows, &shape)) && shape.rows == vocab && shape.width == f);
    const int32_t ids[2] = {3, 0};
    float found[2 * f];
    CHECK(fine(tiffin_rows_gather(rows, ids, 2, found)));
    CHECK(memcmp(found, table + 3 * f, f * sizeof *table) == 0 &&
          memcmp(found + f, table, f * sizeof *table) == 0);
    const int32_t beyond = vocab;
    CHECK(is(tiffin_rows_gather(rows, &beyond, 1, found), TIFFIN_ERRC_TOKEN_ID, "ids"));
    CHECK(is(tiffin_rows_gather(NULL, ids, 2, found), TIFFIN_ERRC_ARGUMENT, "rows"));
    const size_t first[3] = {0, 0, 1}, back[2] = {0, 3};
    const float weights[2] = {2, -0.5f};
    float sums[3 * f];
    CHECK(fine(tiffin_rows_sum(rows, ids, 2, first, 3, weights, sums)));
    for (int j = 0; j < f; ++j)
        CHECK(sums[j] == 0 && sums[f + j] == 2 * table[3 * f + j] && sums[2 * f + j] == -0.5f * table[j]);
    CHECK(fine(tiffin_rows_sum(rows, ids, 2, first, 1, NULL, sums)) && sums[1] == table[3 * f + 1] + table[1]);
    CHECK(is(tiffin_rows_sum(rows, ids, 2, back, 2, NULL, sums), TIFFIN_ERRC_SIZE, "first[1] = 3"));
    CHECK(is(tiffin_rows_sum(rows, &beyond, 1, first, 1, NULL, sums), TIFFIN_ERRC_TOKEN_ID, "ids"));
    CHECK(is(tiffin_rows_sum(rows, ids, 2, NULL, 1, NULL, sums), TIFFIN_ERRC_ARGUMENT, "first"));
    CHECK(fine(tiffin_rows_sum(rows, NULL, 0, NULL, 0, NULL, NULL)));
    CHECK(fine(tiffin_rows_replace(rows, 3, 1)) && fine(tiffin_rows_gather(rows, ids, 1, found)));
    CHECK(memcmp(found, table + f, f * sizeof *table) == 0 && tiffin_rows_undo(rows) &&
          !tiffin_rows_undo(rows));
}

// A layer over rows of a file gives what it gives over memory.
static void rows_of_a_layer(tiffin_rows* rows) {
    float gate[f * d], down[d * f], x[tokens * d], y[tokens * d], again[tokens * d];
    for (int i = 0; i < f * d; ++i) gate[i] = down[i] = (float)(i % 9 - 4) / 8;
    for (int i = 0; i < tokens * d; ++i) x[i] = (float)(i % 5 - 2);
    const int32_t ids[tokens] = {2, 0, 2};
    const tiffin_block_option block = {"block", "stem"};
    tiffin_tensor tensors[] = {{"gate_proj.weight", gate, TIFFIN_DTYPE_F32, 2, {f, d}},
                               {"stem_embed.weight", table, TIFFIN_DTYPE_F32, 2, {vocab, f}},
                               {"down_proj.weight", down, TIFFIN_DTYPE_F32, 2, {d, f}}};
    tiffin_tensor in_file[] = {
        tensors[0], {.name = "stem_embed.weight", .data = rows, .type = TIFFIN_DTYPE_ROWS}, tensors[2]};
    static char workspace[1 << 16];
    tiffin_call call = {.struct_size = sizeof call,
                        .tokens = tokens,
                        .x = x,
                        .token_ids = ids,
                        .y = y,
                        .workspace = workspace,
                        .workspace_bytes = sizeof workspace};
    tiffin_layer *layer = NULL, *other = NULL;
    CHECK(fine(tiffin_layer_make(&block, 1, tensors, 3, NULL, &layer)) &&
          fine(tiffin_layer_run(layer, &call)));
    CHECK(fine(tiffin_layer_make(&block, 1, in_file, 3, NULL, &other)) &&
          tiffin_layer_reads_token_ids(other));
    call.y = again;
    CHECK(fine(tiffin_layer_run(other, &call)) && memcmp(y, again, sizeof y) == 0);
    call.token_ids = NULL;
    CHECK(is(tiffin_layer_run(other, &call), TIFFIN_ERRC_SIZE, "token_ids"));
    const int32_t beyond[tokens] = {0, 1, vocab};
    call.token_ids = beyond;
    CHECK(is(tiffin_layer_run(other, &call), TIFFIN_ERRC_TOKEN_ID, "token_ids[2] = 4"));
    tiffin_layer_free(layer);
    tiffin_layer_free(other);

    tiffin_training *here = NULL, *there = NULL;
    CHECK(fine(tiffin_training_make(&block, 1, tensors, 3, NULL, &here)));
    CHECK(fine(tiffin_training_make(&block, 1, in_file, 3, NULL, &there)));
    tiffin_training_call step = {
        .struct_size = sizeof step, .tokens = tokens, .x = x, .token_ids = ids, .y = y};
    CHECK(fine(tiffin_training_forward(here, &step)));
    step.y = again;
    CHECK(fine(tiffin_training_forward(there, &step)) && memcmp(y, again, sizeof y) == 0);
    float dx[tokens * d], same[tokens * d];
    tiffin_backward_call back = {.struct_size = sizeof back, .dy = x, .dx = dx};
    CHECK(fine(tiffin_training_backward(here, &back)));
    // A forward that is refused leaves the last as it was.
    step.token_ids = beyond;
    CHECK(is(tiffin_training_forward(there, &step), TIFFIN_ERRC_TOKEN_ID, "token_ids"));
    back.dx = same;
    CHECK(fine(tiffin_training_backward(there, &back)) && memcmp(dx, same, sizeof dx) == 0);
    tiffin_training_free(here);
    tiffin_training_free(there);

    in_file[1].rank = 2, in_file[1].shape[0] = vocab, in_file[1].shape[1] = f + 1;
    CHECK(is(tiffin_layer_make(&block, 1, in_file, 3, NULL, &layer), TIFFIN_ERRC_SHAPE, "stem_embed"));
    in_file[1].rank = 0, in_file[1].data = NULL;
    CHECK(is(tiffin_layer_make(&block, 1, in_file, 3, NULL, &layer), TIFFIN_ERRC_ARGUMENT, "stem_embed"));
}

static void row_numbers(void) {
    const int64_t multipliers[] = {3, 5}, primes[] = {101, 103};
    const size_t heads = 2;
    tiffin_engram_hash hash = {.struct_size = sizeof hash,
                               .order = 2,
                               .multipliers = multipliers,
                               .heads = &heads,
                               .primes = primes,
                               .vocab = 50};
    tiffin_ngrams* ngrams = NULL;
    CHECK(fine(tiffin_ngrams_engram(&hash, -1, &ngrams)));
    tiffin_ngrams_shape shape = {.struct_size = sizeof shape};
    CHECK(fine(tiffin_ngrams_describe(ngrams, &shape)) && shape.order == 2 && shape.tables == 2 &&
          shape.vocab == 50);
    CHECK(tiffin_ngrams_rows(ngrams, 1) == 103 && tiffin_ngrams_rows(ngrams, 2) == 0);
    tiffin_histories* past = NULL;
    CHECK(fine(tiffin_histories_make(ngrams, 2, 2, &past)));
    const int32_t ids[] = {7, 49, 7}, beyond = 50;
    const uint32_t of[] = {0, 0, 1};
    int32_t rows[6], again[2];
    CHECK(fine(tiffin_ngrams_address(ngrams, ids, of, 3, past, rows)));
    CHECK(rows[0] == 21 && rows[1] == ((49 * 3) ^ (7 * 5)) % 101 && rows[4] == ((49 * 3) ^ (7 * 5)) % 103 &&
          rows[2] == 21);
    CHECK(is(tiffin_ngrams_address(ngrams, &beyond, NULL, 1, past, rows), TIFFIN_ERRC_TOKEN_ID, "ids[0]"));
    CHECK(fine(tiffin_histories_undo(past, 0, 1)) &&
          fine(tiffin_ngrams_address(ngrams, ids + 1, NULL, 1, past, again)));
    CHECK(again[0] == rows[1] && again[1] == rows[4]);
    CHECK(fine(tiffin_histories_copy(past, 1, 0)) && fine(tiffin_histories_reset(past, 1)));
    CHECK(fine(tiffin_ngrams_address(ngrams, ids + 1, NULL, 1, past, again)) && again[0] == rows[1]);
    CHECK(is(tiffin_histories_undo(past, 2, 1), TIFFIN_ERRC_SIZE, "sequence"));
    CHECK(is(tiffin_histories_reset(past, 2), TIFFIN_ERRC_SIZE, "sequence"));
    CHECK(is(tiffin_histories_copy(past, 0, 2), TIFFIN_ERRC_SIZE, "to"));
    tiffin_histories_free(past);
    tiffin_ngrams_free(ngrams);
    hash.order = 1;
    CHECK(is(tiffin_ngrams_engram(&hash, -1, &ngrams), TIFFIN_ERRC_SIZE, "order"));
    hash.order = 2, hash.primes = NULL;
    CHECK(is(tiffin_ngrams_engram(&hash, -1, &ngrams), TIFFIN_ERRC_ARGUMENT, "primes"));
    const tiffin_longcat_hash longcat = {
        .struct_size = sizeof longcat, .vocab = 10, .ratio = 2, .longest = 3, .per_length = 2};
    CHECK(fine(tiffin_ngrams_longcat(&longcat, 9, &ngrams)) && tiffin_ngrams_rows(ngrams, 3) == 27);
    tiffin_ngrams_free(ngrams);
    CHECK(is(tiffin_ngrams_open("nowhere.gguf", -1, NULL, NULL, &ngrams, NULL), TIFFIN_ERRC_FILE, "nowhere"));
    tiffin_ngrams_free(NULL);
    tiffin_histories_free(NULL);
}

static void first(void* user, size_t id, float* to) {
    ++*(int*)user;
    for (int i = 0; i < f; ++i) to[i] = (float)id;
}

static void learns(void) {
    int called = 0;
    tiffin_stored_table *stored = NULL, *other = NULL;
    CHECK(fine(tiffin_stored_table_create(stored_path, vocab, f, first, &called, &stored)) &&
          called == vocab);
    CHECK(is(tiffin_stored_table_open(stored_path, &other), TIFFIN_ERRC_FILE, "stored"));
    const int32_t ids[] = {1, 3}, turned[] = {3, 1};
    float gradients[2 * f], values[2 * f], moments[2 * f];
    int32_t steps[2];
    for (int i = 0; i < 2 * f; ++i) gradients[i] = i < f ? 1 : -1;
    tiffin_adamw how = {.struct_size = sizeof how, .rate = 0.5, .beta1 = 0.9, .beta2 = 0.95, .eps = 0};
    CHECK(fine(tiffin_stored_table_step(stored, ids, 2, gradients, &how)));
    CHECK(fine(tiffin_stored_table_read(stored, turned, 2, values, moments, NULL, steps)));
    // The first step of Adam is the rate, against the gradient.
    CHECK(fabsf(values[0] - 3.5F) < 1e-5F && fabsf(values[f] - 0.5F) < 1e-5F && steps[0] == 1 &&
          moments[0] < 0);
    CHECK(is(tiffin_stored_table_step(stored, turned, 2, gradients, &how), TIFFIN_ERRC_OPTION, "ids[1] = 1"));
    how.rate = NAN;
    CHECK(is(tiffin_stored_table_step(stored, ids, 2, gradients, &how), TIFFIN_ERRC_OPTION, "rate"));
    how.rate = 1, gradients[0] = INFINITY;
    CHECK(is(tiffin_stored_table_step(stored, ids, 2, gradients, &how), TIFFIN_ERRC_VALUE, "gradients"));
    CHECK(fine(tiffin_stored_table_roll_back(stored)));
    CHECK(fine(tiffin_stored_table_read(stored, ids, 2, values, NULL, NULL, steps)) && values[0] == 1 &&
          steps[0] == 0);
    CHECK(fine(tiffin_stored_table_commit(stored)));
    tiffin_stored_shape shape = {.struct_size = sizeof shape};
    CHECK(fine(tiffin_stored_table_describe(stored, &shape)) && shape.rows == vocab && shape.width == f &&
          shape.commits == 1 && !shape.unfinished);
    tiffin_stored_table_free(stored);
    CHECK(fine(tiffin_stored_table_open(stored_path, &stored)) &&
          fine(tiffin_stored_table_keep_changes(stored)));
    tiffin_stored_table_free(stored);
    tiffin_stored_table_free(NULL);
    CHECK(is(tiffin_stored_table_commit(NULL), TIFFIN_ERRC_ARGUMENT, "table"));
}

int main(int count, char** arguments) {
    if (count != 2) return 2;
    snprintf(path, sizeof path, "%s/rows_test.safetensors", arguments[1]);
    snprintf(stored_path, sizeof stored_path, "%s/rows_test.stored", arguments[1]);
    remove(stored_path);
    for (int i = 0; i < vocab * f; ++i) table[i] = (float)(i * 7 % 11) - 5;
    CHECK(write_table());
    tiffin_rows* rows = NULL;
    const tiffin_rows_options options = {.struct_size = sizeof options, .cache_rows = 2};
    CHECK(fine(tiffin_rows_open(path, "table", &options, &rows)));
    if (rows != NULL) {
        rows_alone(rows);
        rows_of_a_layer(rows);
    }
    tiffin_rows_free(rows);
    tiffin_rows_free(NULL);
    row_numbers();
    learns();
    printf("%d failed\n", failed);
    return failed != 0;
}
