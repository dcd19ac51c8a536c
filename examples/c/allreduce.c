/* Sums a vector over all ranks, checks every element of the result, and says how long it took.
 *
 *     prun -n 4 ./allreduce 1000000
 */
#include "check.h"

#include <time.h>

/* What `rank` adds at `index`: small whole numbers, so that float holds their sum exactly, in any order. */
static float element(int rank, size_t index) { return (float)((index + 7 * (size_t)rank) % 101); }

static double seconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

/* The number that `text` is, 0 if it is none. */
static size_t parse_count(const char *text) {
    char *end;
    long long count = strtoll(text, &end, 10);
    return *end == '\0' && count > 0 ? (size_t)count : 0;
}

int main(int argc, char **argv) {
    size_t count = argc > 1 ? parse_count(argv[1]) : 1 << 20;
    if (argc > 2 || count == 0) {
        fprintf(stderr, "usage: %s [COUNT]   sums COUNT floats, 1 or more (1048576 unless given)\n", argv[0]);
        return 2;
    }
    comm_t *comm;
    CHECK(comm_init(&comm));
    int rank = comm_rank(comm), size = comm_size(comm);
    float *send = malloc(count * sizeof *send), *receive = malloc(count * sizeof *receive);
    if (send == NULL || receive == NULL)
        return fail(rank, "no memory for 2 x %zu floats", count);
    for (size_t i = 0; i < count; i++) {
        send[i] = element(rank, i);
        receive[i] = -1;
    }
    CHECK(comm_barrier(comm));
    double start = seconds();
    CHECK(comm_allreduce(comm, send, receive, count, COMM_F32, COMM_SUM));
    double took = seconds() - start;

    for (size_t i = 0; i < count; i++) {
        float expected = 0;
        for (int from = 0; from < size; from++)
            expected += element(from, i);
        if (receive[i] != expected)
            return fail(rank, "got %g at element %zu of %zu, expected %g", receive[i], i, count, expected);
    }
    if (rank == 0)
        printf("%zu elements over %d ranks, exact: %.1f us on rank 0\n", count, size, took * 1e6);
    free(send);
    free(receive);
    CHECK(comm_finalize(comm));
    return EXIT_SUCCESS;
}
