/* Every call once, and what C can get wrong. */
#include <libcomm.h>

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHECK(condition)                                                                           \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            fprintf(stderr, "%s:%d: %s (%s)\n", __FILE__, __LINE__, #condition, comm_last_error()); \
            exit(1);                                                                               \
        }                                                                                          \
    } while (0)

int main(void) {
    comm_t *comm = NULL;
    CHECK(comm_last_error()[0] == '\0');
    CHECK(comm_version() == COMM_VERSION);
    CHECK(comm_init(&comm) == COMM_OK && comm != NULL);
    const int rank = comm_rank(comm), size = comm_size(comm);
    CHECK(comm_local_rank(comm) == rank);
    CHECK(comm_barrier(comm) == COMM_OK);

    float data[1000], sum[1000];
    for (int i = 0; i < 1000; i++)
        data[i] = (float)(i + rank);
    CHECK(comm_allreduce(comm, data, sum, 1000, COMM_F32, COMM_SUM) == COMM_OK);
    for (int i = 0; i < 1000; i++)
        CHECK(sum[i] == (float)(size * i + size * (size - 1) / 2));
    CHECK(comm_allreduce(comm, data, data, 1000, COMM_F32, COMM_SUM) == COMM_OK); /* in place */
    CHECK(memcmp(data, sum, sizeof data) == 0);

    int64_t *all = malloc((size_t)size * sizeof *all), mine = 7 * rank, part = 0;
    CHECK(all != NULL);
    CHECK(comm_allgather(comm, &mine, all, 1, COMM_I64) == COMM_OK);
    for (int r = 0; r < size; r++)
        CHECK(all[r] == 7 * r);
    CHECK(comm_reduce_scatter(comm, all, &part, 1, COMM_I64, COMM_MAX) == COMM_OK);
    CHECK(part == mine);
    CHECK(comm_broadcast(comm, &mine, 1, COMM_I64, size - 1) == COMM_OK);
    CHECK(mine == 7 * (size - 1));
    free(all);

    CHECK(comm_allreduce(comm, NULL, NULL, 0, COMM_F32, COMM_SUM) == COMM_OK);
    CHECK(comm_allreduce(comm, NULL, sum, 1, COMM_F32, COMM_SUM) == COMM_ERROR_INVALID_ARGUMENT);
    CHECK(strcmp(comm_last_error(), "allreduce: send is null, for 1 elements") == 0);
    CHECK(comm_allreduce(comm, data, sum, 1, (comm_type_t)99, COMM_SUM) == COMM_ERROR_INVALID_ARGUMENT);
    CHECK(strstr(comm_last_error(), "99 is no comm_type_t") != NULL);
    CHECK(comm_broadcast(comm, data, 1, COMM_F32, -1) == COMM_ERROR_INVALID_ARGUMENT);
    CHECK(comm_barrier(NULL) == COMM_ERROR_INVALID_ARGUMENT);
    CHECK(strcmp(comm_error_string(COMM_ERROR_TIMEOUT), "a peer did not come before the deadline") == 0);

    /* No GPU has been used, so none is in the way of another. */
    CHECK(comm_detour(comm) == NULL && comm_detour(NULL) == NULL);

    /* Messages round a ring, and to the next rank. */
    const int next = (rank + 1) % size, last = (rank + size - 1) % size;
    int32_t out[3] = {rank, rank + 1, rank + 2}, in[3] = {0};
    CHECK(comm_sendrecv(comm, out, 3, next, in, 3, last, COMM_I32, 5) == COMM_OK);
    CHECK(in[0] == last && in[2] == last + 2);
    CHECK(comm_send(comm, out, 3, COMM_I32, next, 0) == COMM_OK);
    CHECK(comm_recv(comm, in, 3, COMM_I32, last, 0) == COMM_OK);
    CHECK(comm_send(comm, out, 3, COMM_I32, size, 0) == COMM_ERROR_INVALID_ARGUMENT);
    CHECK(comm_send(comm, out, 3, COMM_I32, next, -1) == COMM_ERROR_INVALID_ARGUMENT);

    /* Rank r gives r + 1 numbers. */
    size_t counts[64], total = 0;
    for (int r = 0; r < size; r++)
        total += counts[r] = (size_t)r + 1;
    uint16_t *gathered = calloc(total, sizeof *gathered), given[64];
    CHECK(gathered != NULL);
    for (int i = 0; i <= rank; i++)
        given[i] = (uint16_t)(100 * rank + i);
    CHECK(comm_allgatherv(comm, given, gathered, counts, COMM_U16) == COMM_OK);
    CHECK(gathered[total - 1] == 100 * (size - 1) + size - 1);
    CHECK(comm_allgatherv(comm, given, gathered, NULL, COMM_U16) == COMM_ERROR_INVALID_ARGUMENT);
    free(gathered);

    /* Requests, one after the other. */
    comm_request_t *first = NULL, *second = NULL, *third = NULL;
    int done = 0;
    for (int i = 0; i < 1000; i++)
        data[i] = 1.0f;
    CHECK(comm_iallreduce(comm, data, sum, 1000, COMM_F32, COMM_SUM, &first) == COMM_OK);
    CHECK(comm_ibarrier(comm, &second) == COMM_OK);
    CHECK(comm_iallreduce(comm, data, sum, 1, COMM_F32, (comm_op_t)77, &third) == COMM_ERROR_INVALID_ARGUMENT);
    CHECK(third == NULL && comm_wait(&third) == COMM_OK);
    while (!done)
        CHECK(comm_test(&first, &done) == COMM_OK);
    CHECK(first == NULL && sum[999] == (float)size);
    CHECK(comm_wait(&second) == COMM_OK && second == NULL);

    /* Everyone alone, and a copy of all. */
    comm_t *alone = NULL, *copy = NULL, *none = comm;
    CHECK(comm_split(comm, rank, 0, &alone) == COMM_OK && comm_size(alone) == 1);
    CHECK(comm_dup(comm, &copy) == COMM_OK && comm_rank(copy) == rank && comm_size(copy) == size);
    CHECK(comm_split(comm, -1, 0, &none) == COMM_OK && none == NULL);
    CHECK(comm_barrier(copy) == COMM_OK && comm_barrier(alone) == COMM_OK && comm_barrier(comm) == COMM_OK);
    CHECK(comm_finalize(alone) == COMM_OK && comm_finalize(copy) == COMM_OK);

    CHECK(comm_finalize(comm) == COMM_OK);
    printf("rank %d of %d: fine\n", rank, size);
    return 0;
}
