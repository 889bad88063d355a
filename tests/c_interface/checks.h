// What the tests in C share: checks that are counted, and what becomes of errors.
#pragma once

#include <tiffin/tiffin.h>

#include <stdio.h>
#include <string.h>

static int failed = 0;
#define CHECK(condition)                                                         \
    do {                                                                         \
        if (!(condition)) {                                                      \
            printf("%s:%d: %s does not hold\n", __FILE__, __LINE__, #condition); \
            ++failed;                                                            \
        }                                                                        \
    } while (0)

// Frees the error; whether it is of this kind and speaks of `says`.
static int is(tiffin_error* error, tiffin_errc code, const char* says) {
    const int same = tiffin_error_code(error) == code && strstr(tiffin_error_message(error), says) != NULL;
    if (!same) printf("%d: %s\n", (int)tiffin_error_code(error), tiffin_error_message(error));
    tiffin_error_free(error);
    return same;
}
static int fine(tiffin_error* error) {
    return is(error, TIFFIN_ERRC_NONE, "");
}
