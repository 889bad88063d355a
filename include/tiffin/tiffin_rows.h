// tiffin for C, continued: rows of tables that lie in files, larger than memory. As in tiffin/tiffin.h, errors are values,
// and structs begin with their size.
#pragma once

#include <tiffin/tiffin.h>

#if defined(__cplusplus)
extern "C" {
#endif

// The rows of a table in a safetensors or GGUF file: read as they are asked for, through a cache if there is one, with
// edits that the file does not see (docs/tables.md). Any number of threads may read at the same time; edits are seen whole.
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
TIFFIN_C_API tiffin_error* tiffin_rows_open(const char* path, const char* tensor, const tiffin_rows_options* options,
                                            tiffin_rows** rows);
// Frees it. NULL is allowed.
TIFFIN_C_API void tiffin_rows_free(tiffin_rows* rows);
// Rows that were added count. Errors: ARGUMENT.
TIFFIN_C_API tiffin_error* tiffin_rows_describe(const tiffin_rows* rows, tiffin_rows_shape* shape);
// to[i] = row ids[i] as f32, (count, width). Errors: TOKEN_ID, FILE, ARGUMENT; `to` is then unspecified.
TIFFIN_C_API tiffin_error* tiffin_rows_gather(const tiffin_rows* rows, const int32_t* ids, size_t count, float* to);
// The same as they are stored, (count, row_bytes).
TIFFIN_C_API tiffin_error* tiffin_rows_read(const tiffin_rows* rows, const int32_t* ids, size_t count, void* to);
// Errors: ARGUMENT.
TIFFIN_C_API tiffin_error* tiffin_rows_count(const tiffin_rows* rows, tiffin_rows_counts* counts);
// Reads of row `id` give row `by` from now on. Errors: TOKEN_ID, ARGUMENT.
TIFFIN_C_API tiffin_error* tiffin_rows_replace(tiffin_rows* rows, int32_t id, int32_t by);
// Adds the mean of rows, rounded to the table's format, as a row of its own behind all others. Errors: TOKEN_ID, OPTION
// without ids, DTYPE where the format is only read, FILE, ARGUMENT.
TIFFIN_C_API tiffin_error* tiffin_rows_add_mean(tiffin_rows* rows, const int32_t* ids, size_t count, int32_t* id);
// Reverts the last replacement; 0 where there was none.
TIFFIN_C_API int tiffin_rows_undo(tiffin_rows* rows);

#if defined(__cplusplus)
}
#endif
