// tiffin for C, continued: rows of tables that lie in files, larger than memory: read, addressed by the last token ids,
// trained. As in tiffin/tiffin.h, errors are values, and structs begin with their size.
#pragma once

#include <tiffin/tiffin.h>

#if defined(__cplusplus)
extern "C" {
#endif

// ---- rows that are read ----

// The rows of a table in a safetensors or GGUF file: read as they are asked for, through a cache if there is one, with
// edits that the file does not see (docs/tables.md). Any number of threads may read at the same time; edits are seen whole.
//
// A layer reads a table from them where its tensor is {name, rows, TIFFIN_DTYPE_ROWS}, of rank 0, or of a pool's shape (experts,
// vocab, width): each call reads the rows of its token ids, equal ones once, and allocates where they are more than ever
// before. The rows must outlive the layer. What a layer learns from is F32.
typedef struct tiffin_rows tiffin_rows;

// All zero but struct_size: mapped, without a cache of its own.
typedef struct tiffin_rows_options {
    size_t struct_size;
    int32_t direct;      // not 0: reads several rows at a time by system calls, instead of mapping the file
    size_t cache_rows;   // rows that are kept in memory, those read often; 0: as many as cache_bytes allow
    size_t cache_bytes;  // memory of these rows; 0: as many as cache_rows say; both 0: no cache
} tiffin_rows_options;

typedef struct tiffin_rows_shape {
    size_t struct_size;
    size_t rows, width;
    tiffin_dtype type;
    size_t row_bytes;  // as stored
} tiffin_rows_shape;

typedef struct tiffin_rows_counts {
    size_t struct_size;
    uint64_t hits, misses, bytes_read;  // of the cache; all 0 without one
} tiffin_rows_counts;

// Opens a tensor (rows, width), or a pool (experts, rows, width) as one table of all experts' rows, of the file at `path`.
// Errors: FILE, MISSING_TENSOR, SHAPE, DTYPE, OPTION, ARGUMENT. Cost: the header, and the memory of the cache.
TIFFIN_C_API tiffin_error* tiffin_rows_open(const char* path, const char* tensor,
                                            const tiffin_rows_options* options, tiffin_rows** rows);
// Frees it. NULL is allowed.
TIFFIN_C_API void tiffin_rows_free(tiffin_rows* rows);
// Rows that were added count. Errors: ARGUMENT.
TIFFIN_C_API tiffin_error* tiffin_rows_describe(const tiffin_rows* rows, tiffin_rows_shape* shape);
// to[i] = row ids[i] as f32, (count, width). Errors: TOKEN_ID, FILE, ARGUMENT; `to` is then unspecified.
TIFFIN_C_API tiffin_error* tiffin_rows_gather(const tiffin_rows* rows, const int32_t* ids, size_t count,
                                              float* to);
// to[g] = sum of weights[i] row ids[i], over the i from first[g] up to first[g + 1], or to the end for the last of `groups`:
// (groups, width) f32, i ascending. `weights` (count), or NULL: 1 each. An empty group's sum is 0.
// Errors: TOKEN_ID, FILE, ARGUMENT; SIZE where `first` does not begin at 0, descends or passes `count`.
TIFFIN_C_API tiffin_error* tiffin_rows_sum(const tiffin_rows* rows, const int32_t* ids, size_t count,
                                           const size_t* first, size_t groups, const float* weights,
                                           float* to);
// The rows of gather as they are stored, (count, row_bytes).
TIFFIN_C_API tiffin_error* tiffin_rows_read(const tiffin_rows* rows, const int32_t* ids, size_t count,
                                            void* to);
// Errors: ARGUMENT.
TIFFIN_C_API tiffin_error* tiffin_rows_count(const tiffin_rows* rows, tiffin_rows_counts* counts);
// Reads of row `id` give row `by` from now on. Errors: TOKEN_ID, ARGUMENT.
TIFFIN_C_API tiffin_error* tiffin_rows_replace(tiffin_rows* rows, int32_t id, int32_t by);
// Adds the mean of rows, rounded to the table's format, as a row of its own behind all others. Errors: TOKEN_ID, OPTION
// without ids, DTYPE where the format is only read, FILE, ARGUMENT.
TIFFIN_C_API tiffin_error* tiffin_rows_add_mean(tiffin_rows* rows, const int32_t* ids, size_t count,
                                                int32_t* id);
// Reverts the last replacement; 0 where there was none.
TIFFIN_C_API int tiffin_rows_undo(tiffin_rows* rows);

// ---- row numbers by the last token ids ----

// Hashes of the last ids of a sequence to a row in each of several tables (docs/tables.md#rows-by-the-last-ids). Any number
// of threads may use one.
typedef struct tiffin_ngrams tiffin_ngrams;

// Engram's hash, and Qwen's.
typedef struct tiffin_engram_hash {
    size_t struct_size;
    size_t order;                // N, 2 or more: the ids that are read, the token's own among them
    const int64_t* multipliers;  // (order)
    const size_t* heads;         // (order - 1): how many there are of n = 2, ..., N
    const int64_t* primes;       // of all heads, those of n = 2 first
    const int64_t* offsets;      // of all heads, which lie in one table; NULL: a table each
    size_t vocab;
    const int32_t* compressed;                           // (vocab): what an id counts as; NULL: as itself
    int32_t pad;                                         // what stands where there is no id
    int32_t unsigned_remainder, may_wrap, oldest_first;  // not 0: as tiffin::engram_hash says
} tiffin_engram_hash;

// LongCat's hash: `per_length` tables for each of n = 2, ..., longest, of some `ratio` * vocab rows.
typedef struct tiffin_longcat_hash {
    size_t struct_size;
    size_t vocab, ratio, longest, per_length;
} tiffin_longcat_hash;

typedef struct tiffin_ngrams_shape {
    size_t struct_size;
    size_t order, tables, vocab;
} tiffin_ngrams_shape;

// `end`: the end-of-sequence id, before which ids are missing; -1: none. Errors: OPTION, SIZE, ARGUMENT.
TIFFIN_C_API tiffin_error* tiffin_ngrams_engram(const tiffin_engram_hash* hash, int32_t end,
                                                tiffin_ngrams** ngrams);
TIFFIN_C_API tiffin_error* tiffin_ngrams_longcat(const tiffin_longcat_hash* hash, int32_t end,
                                                 tiffin_ngrams** ngrams);
// Those of a published model or adapter, and the rows of their table: of `layer`, or of the first that has some for -1.
// `constants`: a file of the hash's constants (docs/models.md#token-indexed-memories), or NULL. `rows` may be NULL.
// Errors: FILE, OPTION, MISSING_TENSOR, UNUSED_TENSOR, DTYPE, SHAPE, SIZE, ARGUMENT.
TIFFIN_C_API tiffin_error* tiffin_ngrams_open(const char* path, int64_t layer, const char* constants,
                                              const tiffin_rows_options* options, tiffin_ngrams** ngrams,
                                              tiffin_rows** rows);
// Frees them. NULL is allowed.
TIFFIN_C_API void tiffin_ngrams_free(tiffin_ngrams* ngrams);
// Errors: ARGUMENT.
TIFFIN_C_API tiffin_error* tiffin_ngrams_describe(const tiffin_ngrams* ngrams, tiffin_ngrams_shape* shape);
// The rows of a table: its row numbers are below. 0 where there is no such table.
TIFFIN_C_API int64_t tiffin_ngrams_rows(const tiffin_ngrams* ngrams, size_t table);

// The last ids of sequences. One call at a time.
typedef struct tiffin_histories tiffin_histories;
// Of `count` sequences that begin; the last `undoable` tokens of each can be undone. Errors: ARGUMENT.
TIFFIN_C_API tiffin_error* tiffin_histories_make(const tiffin_ngrams* ngrams, size_t count, size_t undoable,
                                                 tiffin_histories** histories);
// Frees them. NULL is allowed.
TIFFIN_C_API void tiffin_histories_free(tiffin_histories* histories);
// Removes the last tokens of a sequence. Errors: SIZE, ARGUMENT; nothing has changed then.
TIFFIN_C_API tiffin_error* tiffin_histories_undo(tiffin_histories* histories, size_t sequence, size_t tokens);
// Begins a sequence anew. Errors: SIZE, ARGUMENT.
TIFFIN_C_API tiffin_error* tiffin_histories_reset(tiffin_histories* histories, size_t sequence);
// Makes sequence `to` what `from` is, as a beam that splits does. Errors: SIZE, ARGUMENT.
TIFFIN_C_API tiffin_error* tiffin_histories_copy(tiffin_histories* histories, size_t from, size_t to);

// rows (tables, count): of each token, which is appended to its sequence, sequences[i], or 0 where `sequences` is NULL.
// Errors: TOKEN_ID, SIZE, ARGUMENT; nothing is written and no history has changed then.
TIFFIN_C_API tiffin_error* tiffin_ngrams_address(const tiffin_ngrams* ngrams, const int32_t* ids,
                                                 const uint32_t* sequences, size_t count,
                                                 tiffin_histories* histories, int32_t* rows);

// ---- rows that learn ----

// A table (rows, width) of F32 in a file, with the moments of AdamW and the count of steps of each row. What was changed
// since the last commit is rolled back if the run ends before the next (docs/training.md). One call at a time, and none while
// rows of it are read.
typedef struct tiffin_stored_table tiffin_stored_table;

typedef struct tiffin_stored_shape {
    size_t struct_size;
    size_t rows, width;
    uint64_t commits;
    int32_t unfinished;  // not 0: the last run ended between commits; first roll back, or keep its changes
} tiffin_stored_shape;

// All are read: beta1 of 0.9, beta2 of 0.95, eps of 1e-8 and a decay of 0.1 are usual.
typedef struct tiffin_adamw {
    size_t struct_size;
    double rate, beta1, beta2, eps, decay;
    double clip;  // the largest norm of all gradients of the step; 0: not clipped
} tiffin_adamw;

// Makes the file; first(user, id, to) writes the values of each row, NULL: zeros. Errors: FILE, where there is one; SHAPE,
// ARGUMENT.
TIFFIN_C_API tiffin_error* tiffin_stored_table_create(const char* path, size_t rows, size_t width,
                                                      void (*first)(void* user, size_t id, float* to),
                                                      void* user, tiffin_stored_table** table);
// Errors: FILE, ARGUMENT.
TIFFIN_C_API tiffin_error* tiffin_stored_table_open(const char* path, tiffin_stored_table** table);
// Closes the file; what is not committed is undone when it is next opened and rolled back. NULL is allowed.
TIFFIN_C_API void tiffin_stored_table_free(tiffin_stored_table* table);
// Errors: ARGUMENT.
TIFFIN_C_API tiffin_error* tiffin_stored_table_describe(const tiffin_stored_table* table,
                                                        tiffin_stored_shape* shape);
// The table's values as rows that are read, as they are at the time: `table` must outlive them. Options: those of a cache.
// Errors: ARGUMENT.
TIFFIN_C_API tiffin_error* tiffin_stored_table_rows(const tiffin_stored_table* table,
                                                    const tiffin_rows_options* options, tiffin_rows** rows);
// The values of rows and their moments, each (count, width), and their counts of steps (count). Each may be NULL.
// Errors: TOKEN_ID, FILE, ARGUMENT.
TIFFIN_C_API tiffin_error* tiffin_stored_table_read(tiffin_stored_table* table, const int32_t* ids,
                                                    size_t count, float* values, float* first_moments,
                                                    float* second_moments, int32_t* steps);
// A step of AdamW on rows of different ids, ascending, with gradients (count, width).
// Errors: VALUE for a gradient that is not finite, OPTION, TOKEN_ID, ARGUMENT, before anything is written; FILE.
TIFFIN_C_API tiffin_error* tiffin_stored_table_step(tiffin_stored_table* table, const int32_t* ids,
                                                    size_t count, const float* gradients,
                                                    const tiffin_adamw* how);
// Makes the rows as they are those of the next commit. Returns when the disk has them. Errors: FILE, ARGUMENT.
TIFFIN_C_API tiffin_error* tiffin_stored_table_commit(tiffin_stored_table* table);
// Makes all rows what they were at the last commit. Errors: FILE, ARGUMENT.
TIFFIN_C_API tiffin_error* tiffin_stored_table_roll_back(tiffin_stored_table* table);
// Makes the rows as a run that ended left them those of the next commit. Errors: FILE, ARGUMENT.
TIFFIN_C_API tiffin_error* tiffin_stored_table_keep_changes(tiffin_stored_table* table);

#if defined(__cplusplus)
}
#endif
