/* The C interface from C99: numbers against double, what is refused and by which code, threads of the caller's. */
#define _POSIX_C_SOURCE 200809L
#include <tiffin/tiffin.h>

#include <math.h>
#include <pthread.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int failed = 0;
#define CHECK(condition)                                                   \
    do {                                                                   \
        if (!(condition)) {                                                \
            ++failed;                                                      \
            printf("%s:%d: not so: %s\n", __FILE__, __LINE__, #condition); \
        }                                                                  \
    } while (0)

/* Whether an error is of this kind and says this; it is freed. */
static int refused(tiffin_error* error, tiffin_errc code, const char* says) {
    const int as_wanted =
        tiffin_error_code(error) == code && strstr(tiffin_error_message(error), says) != NULL;
    if (!as_wanted) printf("got %d: %s\n", (int)tiffin_error_code(error), tiffin_error_message(error));
    tiffin_error_free(error);
    return as_wanted;
}
static int fine(tiffin_error* error) {
    return refused(error, TIFFIN_ERRC_NONE, "");
}

static uint32_t state = 1;
static float noise(void) {
    state = state * 1664525u + 1013904223u;
    return (float)(state >> 8) / 8388608.0f - 1.0f;
}
static float* numbers(size_t count) {
    float* const made = malloc(count * sizeof *made);
    if (made == NULL) exit(1);
    for (size_t i = 0; i < count; ++i) made[i] = noise();
    return made;
}

enum { tokens = 13, vocab = 11 };

/* SwiGLU, or STEM where there is a table: in double, and the same tensors for the library. */
typedef struct {
    size_t d, f;
    float *gate, *up, *down, *table, *x;
    int32_t ids[tokens];
    double* y;
    tiffin_block_option block;
    tiffin_tensor tensors[3];
} example;

static example make_example(size_t d, size_t f, int stem) {
    example e;
    memset(&e, 0, sizeof e);
    e.d = d;
    e.f = f;
    e.gate = numbers(f * d);
    e.up = stem ? NULL : numbers(f * d);
    e.table = stem ? numbers(vocab * f) : NULL;
    e.down = numbers(d * f);
    e.x = numbers(tokens * d);
    e.y = malloc(tokens * d * sizeof *e.y);
    double* const hidden = malloc(f * sizeof *hidden);
    if (e.y == NULL || hidden == NULL) exit(1);
    for (size_t t = 0; t < tokens; ++t) {
        e.ids[t] = (int32_t)((t * 7 + 3) % vocab);
        for (size_t i = 0; i < f; ++i) {
            double g = 0, u = 0;
            for (size_t k = 0; k < d; ++k) g += (double)e.gate[i * d + k] * (double)e.x[t * d + k];
            for (size_t k = 0; k < d && !stem; ++k) u += (double)e.up[i * d + k] * (double)e.x[t * d + k];
            if (stem) u = (double)e.table[(size_t)e.ids[t] * f + i];
            hidden[i] = g / (1 + exp(-g)) * u;
        }
        for (size_t j = 0; j < d; ++j) {
            double sum = 0;
            for (size_t i = 0; i < f; ++i) sum += hidden[i] * (double)e.down[j * f + i];
            e.y[t * d + j] = sum;
        }
    }
    free(hidden);
    e.block.key = "block";
    e.block.value = stem ? "stem" : "glu";
    const tiffin_tensor gate = {"gate_proj.weight", e.gate, TIFFIN_DTYPE_F32, 2, {f, d}};
    const tiffin_tensor up = {"up_proj.weight", e.up, TIFFIN_DTYPE_F32, 2, {f, d}};
    const tiffin_tensor table = {"stem_embed.weight", e.table, TIFFIN_DTYPE_F32, 2, {vocab, f}};
    const tiffin_tensor down = {"down_proj.weight", e.down, TIFFIN_DTYPE_F32, 2, {d, f}};
    e.tensors[0] = gate;
    e.tensors[1] = stem ? table : up;
    e.tensors[2] = down;
    return e;
}
static void free_example(example* e) {
    free(e->gate);
    free(e->up);
    free(e->down);
    free(e->table);
    free(e->x);
    free(e->y);
}
static tiffin_layer* prepared(const example* e, const tiffin_prepare_options* options) {
    tiffin_layer* layer = NULL;
    if (!fine(tiffin_layer_make(&e->block, 1, e->tensors, 3, options, &layer))) exit(1);
    return layer;
}
static tiffin_call call_of(const example* e, float* y, void* workspace, size_t bytes) {
    tiffin_call call;
    memset(&call, 0, sizeof call);
    call.struct_size = sizeof call;
    call.tokens = tokens;
    call.x = e->x;
    call.token_ids = e->table != NULL ? e->ids : NULL;
    call.y = y;
    call.workspace = workspace;
    call.workspace_bytes = bytes;
    return call;
}
static void* memory(size_t bytes) {
    void* const made = malloc(bytes);
    if (made == NULL) exit(1);
    return made;
}

/* The reference rounds once: half a unit in the last place. The others sum at most some tens of products in f32, of
   which the largest is near the largest result: a hundred units of that. */
static double bound_of(tiffin_backend backend, double y, double largest) {
    return backend == TIFFIN_BACKEND_REFERENCE ? ldexp(fabs(y), -24) + 1e-12 : 100 * ldexp(largest, -24);
}

/* `composition`: the block as text, or NULL for its kind. */
static void computes(size_t d, size_t f, int stem, const char* composition) {
    example e = make_example(d, f, stem);
    if (composition != NULL) {
        e.block.key = "composition";
        e.block.value = composition;
    }
    double largest = 0;
    for (size_t i = 0; i < tokens * d; ++i) largest = fmax(largest, fabs(e.y[i]));
    for (tiffin_backend backend = TIFFIN_BACKEND_SIMD; backend <= TIFFIN_BACKEND_REFERENCE; ++backend) {
        tiffin_prepare_options options = {.struct_size = sizeof options, .backend = backend};
        tiffin_layer* const layer = prepared(&e, &options);
        CHECK(tiffin_layer_d_model(layer) == d && tiffin_layer_d_ff(layer) == f);
        CHECK(tiffin_layer_choices(layer) == 0 && tiffin_layer_reads_residual(layer) == 0);
        CHECK(tiffin_layer_per_layer_input_width(layer) == 0);
        CHECK((tiffin_layer_reads_token_ids(layer) != 0) == (stem != 0));
        const size_t bytes = tiffin_layer_workspace_bytes(layer, tokens, 1);
        void* const workspace = memory(bytes);
        /* Rows of x and y apart from one another: what lies between those of y stays. */
        const size_t stride = d + 3;
        float* const x = numbers(tokens * stride);
        float* const y = numbers(tokens * stride);
        float* const before = memory(tokens * stride * sizeof *before);
        memcpy(before, y, tokens * stride * sizeof *before);
        for (size_t t = 0; t < tokens; ++t) memcpy(x + t * stride, e.x + t * d, d * sizeof *x);
        tiffin_call call = call_of(&e, y, workspace, bytes);
        call.x = x;
        call.x_stride = call.y_stride = stride;
        CHECK(fine(tiffin_layer_run(layer, &call)));
        for (size_t t = 0; t < tokens; ++t)
            for (size_t j = 0; j < stride; ++j) {
                const float got = y[t * stride + j];
                if (j >= d) {
                    CHECK(memcmp(&got, &before[t * stride + j], sizeof got) == 0);
                } else {
                    const double want = e.y[t * d + j];
                    CHECK(fabs((double)got - want) <= bound_of(backend, want, largest));
                }
            }
        call.tokens = 0;
        call.x = NULL;
        call.y = NULL;
        CHECK(fine(tiffin_layer_run(layer, &call)));
        free(workspace);
        free(x);
        free(y);
        free(before);
        tiffin_layer_free(layer);
    }
    free_example(&e);
}

static void is_refused_when_prepared(void) {
    example e = make_example(24, 40, 0);
    tiffin_layer* const untouched = (tiffin_layer*)&e;
    tiffin_layer* layer = untouched;
    tiffin_model* model = NULL;
    CHECK(refused(tiffin_layer_open("no/such.safetensors", NULL, &layer), TIFFIN_ERRC_FILE,
                  "no/such.safetensors"));
    CHECK(refused(tiffin_model_open("no/such.gguf", &model), TIFFIN_ERRC_FILE, "no/such.gguf"));
    CHECK(model == NULL);

    e.tensors[1].name = "upper.weight";
    tiffin_tensor two[4];
    memcpy(two, e.tensors, sizeof e.tensors);
    two[3] = e.tensors[1];
    two[1].name = "up_proj.weight";
    tiffin_error* const unused = tiffin_layer_make(&e.block, 1, two, 4, NULL, &layer);
    CHECK(strcmp(tiffin_error_where(unused), "upper.weight") == 0);
    CHECK(refused(unused, TIFFIN_ERRC_UNUSED_TENSOR, "upper.weight"));
    CHECK(refused(tiffin_layer_make(&e.block, 1, e.tensors, 3, NULL, &layer), TIFFIN_ERRC_MISSING_TENSOR,
                  "up_proj"));
    two[3] = two[0];
    CHECK(refused(tiffin_layer_make(&e.block, 1, two, 4, NULL, &layer), TIFFIN_ERRC_DUPLICATE_TENSOR,
                  "gate_proj"));
    two[1].shape[0] = 39;
    CHECK(refused(tiffin_layer_make(&e.block, 1, two, 3, NULL, &layer), TIFFIN_ERRC_SHAPE, "39"));
    two[1].shape[0] = 40;
    two[1].rank = 5;
    CHECK(refused(tiffin_layer_make(&e.block, 1, two, 3, NULL, &layer), TIFFIN_ERRC_SHAPE, "rank 5"));
    two[1].rank = 2;
    two[1].type = 99;
    CHECK(refused(tiffin_layer_make(&e.block, 1, two, 3, NULL, &layer), TIFFIN_ERRC_DTYPE, "99"));
    two[1].type = TIFFIN_DTYPE_I32;
    CHECK(refused(tiffin_layer_make(&e.block, 1, two, 3, NULL, &layer), TIFFIN_ERRC_DTYPE, "up_proj"));
    two[1].type = TIFFIN_DTYPE_AS_STORED;
    CHECK(refused(tiffin_layer_make(&e.block, 1, two, 3, NULL, &layer), TIFFIN_ERRC_DTYPE, "up_proj"));
    two[1].type = TIFFIN_DTYPE_F32;
    two[1].data = NULL;
    CHECK(refused(tiffin_layer_make(&e.block, 1, two, 3, NULL, &layer), TIFFIN_ERRC_MISSING_TENSOR, "null"));
    two[1].name = NULL;
    CHECK(refused(tiffin_layer_make(&e.block, 1, two, 3, NULL, &layer), TIFFIN_ERRC_ARGUMENT, "tensor 1"));
    e.tensors[1].name = "up_proj.weight";

    tiffin_block_option twice[] = {{"block", "glu"}, {"block", "mlp"}};
    CHECK(refused(tiffin_layer_make(twice, 2, e.tensors, 3, NULL, &layer), TIFFIN_ERRC_OPTION, "twice"));
    tiffin_block_option text = {"composition", "ffn(gate(sillu), dense)"};
    CHECK(refused(tiffin_layer_make(&text, 1, e.tensors, 3, NULL, &layer), TIFFIN_ERRC_OPTION,
                  "'sillu' at byte 9"));
    twice[1].key = "odd";
    CHECK(refused(tiffin_layer_make(twice, 2, e.tensors, 3, NULL, &layer), TIFFIN_ERRC_OPTION, "odd"));
    twice[1].value = NULL;
    CHECK(refused(tiffin_layer_make(twice, 2, e.tensors, 3, NULL, &layer), TIFFIN_ERRC_ARGUMENT, "option 1"));
    CHECK(refused(tiffin_layer_make(NULL, 0, NULL, 0, NULL, &layer), TIFFIN_ERRC_OPTION, "block"));

    tiffin_prepare_options options = {.struct_size = sizeof options - 1};
    CHECK(refused(tiffin_layer_make(&e.block, 1, e.tensors, 3, &options, &layer), TIFFIN_ERRC_ARGUMENT,
                  "struct_size"));
    options.struct_size = sizeof options;
    options.backend = 7;
    CHECK(refused(tiffin_layer_make(&e.block, 1, e.tensors, 3, &options, &layer), TIFFIN_ERRC_OPTION,
                  "backend"));
    options.backend = TIFFIN_BACKEND_EIGEN;
    options.tables = TIFFIN_DTYPE_BF16;
    CHECK(refused(tiffin_layer_make(&e.block, 1, e.tensors, 3, &options, &layer), TIFFIN_ERRC_OPTION,
                  "tables"));
    options.backend = TIFFIN_BACKEND_SIMD;
    options.weights = TIFFIN_DTYPE_Q6_K;
    CHECK(
        refused(tiffin_layer_make(&e.block, 1, e.tensors, 3, &options, &layer), TIFFIN_ERRC_OPTION, "Q6_K"));
    options.weights = -1;
    CHECK(refused(tiffin_layer_make(&e.block, 1, e.tensors, 3, &options, &layer), TIFFIN_ERRC_OPTION,
                  "weights"));
    options.weights = TIFFIN_DTYPE_AS_STORED;
    const tiffin_executor none = {NULL, NULL, 1, NULL};
    options.executor = &none;
    CHECK(refused(tiffin_layer_make(&e.block, 1, e.tensors, 3, &options, &layer), TIFFIN_ERRC_ARGUMENT,
                  "executor.run"));

    CHECK(refused(tiffin_layer_make(&e.block, 1, e.tensors, 3, NULL, NULL), TIFFIN_ERRC_ARGUMENT,
                  "layer: is NULL"));
    CHECK(refused(tiffin_layer_make(NULL, 1, e.tensors, 3, NULL, &layer), TIFFIN_ERRC_ARGUMENT,
                  "block: is NULL"));
    CHECK(refused(tiffin_layer_make(&e.block, 1, NULL, 3, NULL, &layer), TIFFIN_ERRC_ARGUMENT,
                  "tensors: is NULL"));
    CHECK(refused(tiffin_layer_open(NULL, NULL, &layer), TIFFIN_ERRC_ARGUMENT, "path: is NULL"));
    CHECK(refused(tiffin_layer_open("x", NULL, NULL), TIFFIN_ERRC_ARGUMENT, "layer: is NULL"));
    CHECK(refused(tiffin_model_open(NULL, &model), TIFFIN_ERRC_ARGUMENT, "path: is NULL"));
    CHECK(refused(tiffin_model_open("x", NULL), TIFFIN_ERRC_ARGUMENT, "model: is NULL"));
    CHECK(refused(tiffin_model_layer(NULL, 0, NULL, &layer), TIFFIN_ERRC_ARGUMENT, "model: is NULL"));
    CHECK(layer == untouched);
    free_example(&e);
}

static void is_refused_when_called(void) {
    example e = make_example(24, 40, 1);
    tiffin_layer* const layer = prepared(&e, NULL);
    CHECK(strcmp(tiffin_layer_in_place(layer, 0), "stem_embed.weight") == 0);
    CHECK(tiffin_layer_in_place(layer, 1) == NULL);
    CHECK(tiffin_layer_held_bytes(layer) > 0);
    const size_t bytes = tiffin_layer_workspace_bytes(layer, tokens, 1);
    void* const workspace = memory(bytes);
    float* const y = numbers(tokens * e.d);
    float* const before = memory(tokens * e.d * sizeof *before);
    memcpy(before, y, tokens * e.d * sizeof *before);
    const tiffin_call good = call_of(&e, y, workspace, bytes);
    tiffin_call bad = good;
    bad.struct_size = sizeof bad + 8;
    CHECK(refused(tiffin_layer_run(layer, &bad), TIFFIN_ERRC_ARGUMENT, "struct_size"));
    bad = good;
    bad.struct_size = 0;
    CHECK(refused(tiffin_layer_run(layer, &bad), TIFFIN_ERRC_ARGUMENT, "struct_size 0"));
    CHECK(refused(tiffin_layer_run(NULL, &good), TIFFIN_ERRC_ARGUMENT, "layer: is NULL"));
    CHECK(refused(tiffin_layer_run(layer, NULL), TIFFIN_ERRC_ARGUMENT, "call: is NULL"));
    bad = good;
    bad.x = NULL;
    CHECK(refused(tiffin_layer_run(layer, &bad), TIFFIN_ERRC_ARGUMENT, "x: is NULL"));
    bad = good;
    bad.y = NULL;
    CHECK(refused(tiffin_layer_run(layer, &bad), TIFFIN_ERRC_ARGUMENT, "y: is NULL"));
    bad = good;
    bad.workspace = NULL;
    CHECK(refused(tiffin_layer_run(layer, &bad), TIFFIN_ERRC_ARGUMENT, "workspace: is NULL"));
    bad.workspace_bytes = 0;
    CHECK(refused(tiffin_layer_run(layer, &bad), TIFFIN_ERRC_WORKSPACE, "has 0 bytes"));
    bad = good;
    bad.workspace_bytes = 100;
    CHECK(refused(tiffin_layer_run(layer, &bad), TIFFIN_ERRC_WORKSPACE, "has 100 bytes"));
    bad = good;
    bad.token_ids = NULL;
    CHECK(refused(tiffin_layer_run(layer, &bad), TIFFIN_ERRC_SIZE, "token_ids"));
    bad = good;
    bad.x_stride = e.d - 1;
    CHECK(refused(tiffin_layer_run(layer, &bad), TIFFIN_ERRC_SIZE, "stride"));
    bad = good;
    bad.x = y + e.d;
    bad.tokens = tokens - 1;
    CHECK(refused(tiffin_layer_run(layer, &bad), TIFFIN_ERRC_OVERLAP, "overlaps x"));
    const tiffin_executor none = {NULL, NULL, 1, NULL};
    bad = good;
    bad.executor = &none;
    CHECK(refused(tiffin_layer_run(layer, &bad), TIFFIN_ERRC_ARGUMENT, "executor.run"));
    e.ids[tokens - 1] = vocab;
    bad = good;
    bad.token_ids = e.ids;
    CHECK(refused(tiffin_layer_run(layer, &bad), TIFFIN_ERRC_TOKEN_ID, "token_ids[12] = 11"));
    e.ids[tokens - 1] = -1;
    CHECK(refused(tiffin_layer_run(layer, &bad), TIFFIN_ERRC_TOKEN_ID, "= -1"));
    CHECK(memcmp(y, before, tokens * e.d * sizeof *y) == 0);
    free(y);
    free(before);
    free(workspace);
    tiffin_layer_free(layer);
    free_example(&e);
}

/* An executor: each call of it starts two threads that take every second task. */
typedef struct {
    size_t runs, tasks;
} count;
typedef struct {
    void (*task)(void*, size_t);
    void* arg;
    size_t first, n, done;
} half;
static void* run_half(void* given) {
    half* const mine = given;
    for (size_t i = mine->first; i < mine->n; i += 2, ++mine->done) mine->task(mine->arg, i);
    return NULL;
}
static void run_on_two(void* user, size_t n, void (*task)(void*, size_t), void* arg) {
    count* const counted = user;
    half halves[2] = {{task, arg, 0, n, 0}, {task, arg, 1, n, 0}};
    pthread_t threads[2];
    for (int i = 0; i < 2; ++i)
        if (pthread_create(&threads[i], NULL, run_half, &halves[i]) != 0) exit(1);
    for (int i = 0; i < 2; ++i) pthread_join(threads[i], NULL);
    if (halves[0].done + halves[1].done != n) exit(1);
    ++counted->runs;
    counted->tasks += n;
}
static void note_progress(void* user, size_t done, size_t bytes) {
    size_t* const told = user;
    if (done < told[0] || done > bytes) exit(1);
    told[0] = done;
    told[1] = bytes;
}

typedef struct {
    const tiffin_layer* layer;
    const example* e;
    const float* want;
    int good;
} caller;
static void* call_often(void* given) {
    caller* const mine = given;
    const size_t d = tiffin_layer_d_model(mine->layer),
                 bytes = tiffin_layer_workspace_bytes(mine->layer, tokens, 1);
    void* const workspace = memory(bytes);
    float* const y = memory(tokens * d * sizeof *y);
    mine->good = 1;
    for (int i = 0; i < 50; ++i) {
        memset(y, 0, tokens * d * sizeof *y);
        const tiffin_call call = call_of(mine->e, y, workspace, bytes);
        tiffin_error* const error = tiffin_layer_run(mine->layer, &call);
        if (error != NULL || memcmp(y, mine->want, tokens * d * sizeof *y) != 0) mine->good = 0;
        tiffin_error_free(error);
    }
    free(y);
    free(workspace);
    return NULL;
}

static void runs_on_threads(void) {
    example e = make_example(264, 1000, 1);
    tiffin_layer* const layer = prepared(&e, NULL);
    const size_t bytes = tiffin_layer_workspace_bytes(layer, tokens, 2);
    void* const workspace = memory(bytes);
    float* const serial = numbers(tokens * e.d);
    tiffin_call call = call_of(&e, serial, workspace, bytes);
    CHECK(fine(tiffin_layer_run(layer, &call)));

    /* Tasks by the caller's threads, when called and when prepared: the same bits. */
    count counted = {0, 0};
    const tiffin_executor two = {run_on_two, &counted, 2, NULL};
    float* const threaded = numbers(tokens * e.d);
    call.y = threaded;
    call.executor = &two;
    CHECK(fine(tiffin_layer_run(layer, &call)));
    CHECK(counted.runs > 0 && counted.tasks >= 2 * counted.runs);
    CHECK(memcmp(serial, threaded, tokens * e.d * sizeof *serial) == 0);
    size_t told[2] = {0, 0};
    tiffin_prepare_options options = {
        .struct_size = sizeof options, .executor = &two, .progress = note_progress, .progress_user = told};
    counted.tasks = 0;
    tiffin_layer* const by_two = prepared(&e, &options);
    CHECK(counted.tasks > 0);
    CHECK(told[0] == told[1] && told[1] == (2 * e.d + vocab) * e.f * sizeof(float));
    call.executor = NULL;
    memset(threaded, 0, tokens * e.d * sizeof *threaded);
    CHECK(fine(tiffin_layer_run(by_two, &call)));
    CHECK(memcmp(serial, threaded, tokens * e.d * sizeof *serial) == 0);
    tiffin_layer_free(by_two);

    /* One layer, two threads that call it. */
    caller callers[2] = {{layer, &e, serial, 0}, {layer, &e, serial, 0}};
    pthread_t threads[2];
    for (int i = 0; i < 2; ++i)
        if (pthread_create(&threads[i], NULL, call_often, &callers[i]) != 0) exit(1);
    for (int i = 0; i < 2; ++i) pthread_join(threads[i], NULL);
    CHECK(callers[0].good && callers[1].good);
    free(serial);
    free(threaded);
    free(workspace);
    tiffin_layer_free(layer);
    free_example(&e);
}

/* An executor that does not keep its word, from hand-over `good` on. */
typedef enum { RUNS_ALL, RUNS_NONE, LEAVES_FIRST, LEAVES_LAST, ONE_FOR_ANOTHER, ONE_TWICE, SAYS_NO } fault;
typedef struct {
    fault how;
    size_t good, handed;
} faulty;
static int run_checked(void* user, size_t n, void (*task)(void*, size_t), void* arg) {
    faulty* const mine = user;
    const fault how = mine->handed++ < mine->good ? RUNS_ALL : mine->how;
    if (how == RUNS_NONE) return 0;
    const size_t end = how == LEAVES_LAST || how == SAYS_NO ? n - 1 : n;
    for (size_t i = how == LEAVES_FIRST ? 1 : 0; i < end; ++i)
        task(arg, how == ONE_FOR_ANOTHER && i == 1 ? 0 : i);
    if (how == ONE_TWICE) task(arg, 0);
    return how == SAYS_NO ? 7 : 0;
}
static void run_unchecked(void* user, size_t n, void (*task)(void*, size_t), void* arg) {
    (void)run_checked(user, n, task, arg);
}
static void is_never_run(void* user, size_t n, void (*task)(void*, size_t), void* arg) {
    (void)user, (void)n, (void)task, (void)arg;
    exit(1);
}

/* What the structs were before executors had a run_checked, as a caller of then has them. */
typedef struct {
    void (*run)(void* user, size_t n, void (*task)(void* arg, size_t i), void* arg);
    void* user;
    size_t concurrency;
} first_executor;
enum {
    first_call_size = offsetof(tiffin_call, executor_size),
    first_options_size = offsetof(tiffin_prepare_options, executor_size)
};

static void tasks_that_do_not_run(tiffin_backend backend) {
    example e = make_example(72, 300, 1);
    tiffin_prepare_options options = {.struct_size = sizeof options, .backend = backend};
    tiffin_layer* const layer = prepared(&e, &options);
    const size_t bytes = tiffin_layer_workspace_bytes(layer, tokens, 3);
    void* const workspace = memory(bytes);
    float* const right = numbers(tokens * e.d);
    float* const y = numbers(tokens * e.d);
    faulty mine = {RUNS_ALL, 0, 0};
    const tiffin_executor checked = {
        .run = is_never_run, .user = &mine, .concurrency = 3, .run_checked = run_checked};
    const tiffin_executor checked_alone = {.user = &mine, .concurrency = 3, .run_checked = run_checked};
    const tiffin_executor unchecked = {.run = run_unchecked, .user = &mine, .concurrency = 3};
    /* At the end of memory: an executor of then has nothing behind it. */
    first_executor* const first = memory(sizeof *first);
    first->run = run_unchecked;
    first->user = &mine;
    first->concurrency = 3;
    tiffin_call call = call_of(&e, right, workspace, bytes);
    call.executor = &checked;
    CHECK(fine(tiffin_layer_run(layer, &call)));
    const size_t hand_overs = mine.handed;
    CHECK(hand_overs > 0);
    call.y = y;
    for (int which = 0; which < 5; ++which) {
        tiffin_call one = call;
        one.executor = which == 0 ? &checked : which == 1 ? &checked_alone : &unchecked;
        if (which >= 3) one.executor = (const tiffin_executor*)(const void*)first;
        if (which == 3) one.struct_size = first_call_size;
        if (which == 4) one.executor_size = sizeof *first;
        for (fault how = RUNS_NONE; how <= SAYS_NO; ++how)
            for (size_t good = 0; good < hand_overs; ++good) {
                mine = (faulty){how, good, 0};
                memset(workspace, 0x7F, bytes); /* no expert, no number that is one */
                tiffin_error* const error = tiffin_layer_run(layer, &one);
                const int says = how == SAYS_NO && which < 2;
                CHECK(refused(error, TIFFIN_ERRC_EXECUTOR, says ? "run_checked: returned 7" : "tasks once"));
                CHECK(mine.handed == good + 1);
            }
        mine = (faulty){RUNS_ALL, 0, 0};
        memset(y, 0, tokens * e.d * sizeof *y);
        CHECK(fine(tiffin_layer_run(layer, &one)));
        CHECK(mine.handed == hand_overs);
        CHECK(memcmp(y, right, tokens * e.d * sizeof *y) == 0);
    }
    call.executor_size = sizeof checked + 8;
    CHECK(refused(tiffin_layer_run(layer, &call), TIFFIN_ERRC_ARGUMENT, "executor_size"));
    call.executor_size = sizeof checked;
    CHECK(fine(tiffin_layer_run(layer, &call)));

    /* Preparing. */
    options.executor = &checked;
    mine = (faulty){RUNS_ALL, 0, 0};
    tiffin_layer_free(prepared(&e, &options));
    const size_t packed = mine.handed;
    CHECK((packed > 0) == (backend == TIFFIN_BACKEND_SIMD));
    tiffin_layer* const untouched = (tiffin_layer*)&e;
    tiffin_layer* made = untouched;
    for (int which = 0; which < 3; ++which) {
        tiffin_prepare_options one = options;
        one.executor = which == 0   ? &checked
                       : which == 1 ? &unchecked
                                    : (const tiffin_executor*)(const void*)first;
        if (which == 2) one.struct_size = first_options_size;
        for (fault how = RUNS_NONE; how <= SAYS_NO; ++how)
            for (size_t good = 0; good < packed; ++good) {
                mine = (faulty){how, good, 0};
                CHECK(refused(tiffin_layer_make(&e.block, 1, e.tensors, 3, &one, &made), TIFFIN_ERRC_EXECUTOR,
                              "executor"));
                CHECK(made == untouched);
            }
        mine = (faulty){RUNS_ALL, 0, 0};
        tiffin_layer_free(prepared(&e, &one));
        CHECK(mine.handed == packed);
    }
    free(first);
    free(y);
    free(right);
    free(workspace);
    tiffin_layer_free(layer);
    free_example(&e);
}

static void nothing_of_null(void) {
    CHECK(tiffin_error_code(NULL) == TIFFIN_ERRC_NONE);
    CHECK(tiffin_error_message(NULL)[0] == '\0' && tiffin_error_where(NULL)[0] == '\0');
    tiffin_error_free(NULL);
    tiffin_model_free(NULL);
    tiffin_layer_free(NULL);
    CHECK(tiffin_model_layers(NULL) == 0 && tiffin_model_architecture(NULL)[0] == '\0');
    CHECK(tiffin_layer_d_model(NULL) == 0 && tiffin_layer_d_ff(NULL) == 0 && tiffin_layer_choices(NULL) == 0);
    CHECK(tiffin_layer_reads_token_ids(NULL) == 0 && tiffin_layer_reads_residual(NULL) == 0);
    CHECK(tiffin_layer_per_layer_input_width(NULL) == 0 && tiffin_layer_workspace_bytes(NULL, 1, 1) == 0);
    CHECK(tiffin_layer_in_place(NULL, 0) == NULL);
    CHECK(tiffin_layer_held_bytes(NULL) == 0);
}

int main(int argc, char** argv) {
    char version[64];
    const uint32_t v = tiffin_version();
    snprintf(version, sizeof version, "%u.%u.%u", (unsigned)(v >> 16), (unsigned)(v >> 8 & 255),
             (unsigned)(v & 255));
    CHECK(v == TIFFIN_C_VERSION);
    CHECK(argc == 2 && strcmp(version, argv[1]) == 0);
    const int amx = tiffin_permit_amx();
    CHECK((amx == 0 || amx == 1) && tiffin_permit_amx() == amx);
    nothing_of_null();
    for (int stem = 0; stem < 2; ++stem) {
        computes(24, 40, stem, NULL);
        computes(23, 41, stem, NULL);
        computes(1, 1, stem, NULL);
    }
    computes(24, 40, 0, "ffn(gate(silu), dense)");
    computes(39, 23, 1, "stem");
    is_refused_when_prepared();
    is_refused_when_called();
    runs_on_threads();
    for (tiffin_backend backend = TIFFIN_BACKEND_SIMD; backend <= TIFFIN_BACKEND_REFERENCE; ++backend)
        tasks_that_do_not_run(backend);
    printf("%d failed\n", failed);
    return failed != 0;
}
