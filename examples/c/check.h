/* How these examples report what went wrong: one sentence on stderr, and exit code 1. */
#ifndef CHECK_H
#define CHECK_H

#include <libcomm.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

/* Makes a call of libcomm; if that fails, says which call and why, and ends the program. prun then ends the
 * other ranks. */
#define CHECK(call)                                                                                          \
    do {                                                                                                     \
        if ((call) != COMM_OK) {                                                                             \
            fprintf(stderr, "error: %s\n  cause: %s\n", #call, comm_last_error());                           \
            exit(EXIT_FAILURE);                                                                              \
        }                                                                                                    \
    } while (0)

/* Says what is wrong on this rank; returns the exit code. */
__attribute__((format(printf, 2, 3))) static inline int fail(int rank, const char *format, ...) {
    va_list values;
    va_start(values, format);
    fprintf(stderr, "error: rank %d ", rank);
    vfprintf(stderr, format, values);
    fputc('\n', stderr);
    va_end(values);
    return EXIT_FAILURE;
}

#endif
