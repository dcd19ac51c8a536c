/* The twin of prun's rank program for MPI: the same batches, data small enough to be exact, every element compared.
 * Arguments: collective type op root count in_place warmup batches iterations batch_ms check. Rank 0 prints one line. */
#include <mpi.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int rank, ranks, root, in_place;
static size_t count, width;
static const char *what, *op_name;
static MPI_Datatype type;
static MPI_Op op;
static char *send, *recv;

static const struct { const char *name; int width; char kind; } TYPES[] = {
    {"double", 8, 'f'}, {"float", 4, 'f'}, {"int8", 1, 'i'}, {"uint8", 1, 'u'}, {"int16", 2, 'i'}, {"uint16", 2, 'u'},
    {"int32", 4, 'i'}, {"uint32", 4, 'u'}, {"int64", 8, 'i'}, {"uint64", 8, 'u'},
};
static int type_at;

static int is(const char *name) { return strcmp(what, name) == 0; }

/* What rank r sends at index i: below 3, so that sums of 8-bit elements fit for 63 ranks. */
static int value(int r, size_t i) { return (int)((i + 7 * (size_t)r) % 251 % 3); }

static void put(char *buffer, size_t i, int x)
{
    char *at = buffer + i * width;
    if (TYPES[type_at].kind == 'f') {
        if (width == 8) *(double *)at = x; else *(float *)at = (float)x;
    } else switch (width) {
        case 1: *(int8_t *)at = (int8_t)x; break;
        case 2: *(int16_t *)at = (int16_t)x; break;
        case 4: *(int32_t *)at = x; break;
        default: *(int64_t *)at = x;
    }
}

static int is_value(const char *buffer, size_t i, int x)
{
    char wanted[8];
    put(wanted, 0, x);
    return memcmp(buffer + i * width, wanted, width) == 0;
}

static int reduced(size_t i, int of)
{
    int x = value(0, i);
    for (int r = 1; r < of; r++) {
        int y = value(r, i);
        if (op == MPI_SUM) x += y;
        else if (op == MPI_PROD) x *= y;
        else if (op == MPI_MIN) x = y < x ? y : x;
        else if (op == MPI_MAX) x = y > x ? y : x;
        else if (op == MPI_BAND) x &= y;
        else if (op == MPI_BOR) x |= y;
        else if (op == MPI_BXOR) x ^= y;
        else if (op == MPI_LAND) x = x && y;
        else x = x || y;
    }
    return op == MPI_LAND || op == MPI_LOR ? x != 0 : x;
}

static void call(void)
{
    MPI_Comm c = MPI_COMM_WORLD;
    int n = (int)count;
    void *from = in_place ? MPI_IN_PLACE : (void *)send;
    if (is("allreduce")) MPI_Allreduce(from, recv, n, type, op, c);
    else if (is("reduce")) MPI_Reduce(in_place && rank != root ? (void *)recv : from, recv, n, type, op, root, c);
    else if (is("broadcast")) MPI_Bcast(recv, n, type, root, c);
    else if (is("allgather")) MPI_Allgather(from, n, type, recv, n, type, c);
    else if (is("reduce_scatter")) MPI_Reduce_scatter_block(from, recv, n, type, op, c);
    else if (is("gather")) MPI_Gather(in_place && rank != root ? (void *)recv : from, n, type, recv, n, type, root, c);
    else if (is("scatter")) {
        if (in_place) MPI_Scatter(recv, n, type, rank == root ? MPI_IN_PLACE : (void *)recv, n, type, root, c);
        else MPI_Scatter(send, n, type, recv, n, type, root, c);
    }
    else if (is("alltoall")) MPI_Alltoall(send, n, type, recv, n, type, c);
    else if (is("scan")) MPI_Scan(from, recv, n, type, op, c);
    else if (is("sendrecv"))
        MPI_Sendrecv(send, n, type, (rank + 1) % ranks, 0, recv, n, type, (rank + ranks - 1) % ranks, 0, c, MPI_STATUS_IGNORE);
    else MPI_Barrier(c);
}

/* Elements of the buffers, in parts of `count`. */
static size_t send_parts(void) { return is("reduce_scatter") || is("scatter") || is("alltoall") ? (size_t)ranks : 1; }
static size_t recv_parts(void) { return is("allgather") || is("gather") || is("alltoall") ? (size_t)ranks : 1; }

static void fill(void)
{
    size_t parts = send_parts(), own = 0;
    char *target = in_place ? recv : send;
    if (in_place && (is("allgather") || is("gather"))) own = (size_t)rank * count;
    if (is("gather") && rank != root && in_place) own = 0;
    memset(recv, 0xa5, width * count * (in_place && parts > recv_parts() ? parts : recv_parts()));
    for (size_t i = 0; i < parts * count; i++) put(target, own + i, value(rank, i));
}

static long wrong(void)
{
    long found = 0;
    size_t n = count;
    for (size_t i = 0; i < n; i++) {
        if (is("allreduce") || (is("reduce") && rank == root)) found += !is_value(recv, i, reduced(i, ranks));
        else if (is("scan")) found += !is_value(recv, i, reduced(i, rank + 1));
        else if (is("reduce_scatter")) found += !is_value(recv, i, reduced((size_t)rank * n + i, ranks));
        else if (is("broadcast")) found += !is_value(recv, i, value(root, i));
        else if (is("scatter"))
            found += !is_value(recv, i + (in_place && rank == root ? (size_t)rank * n : 0), value(root, (size_t)rank * n + i));
        else if (is("sendrecv")) found += !is_value(recv, i, value((rank + ranks - 1) % ranks, i));
        else if (is("allgather") || (is("gather") && rank == root) || is("alltoall"))
            for (int r = 0; r < ranks; r++)
                found += !is_value(recv, (size_t)r * n + i, value(r, is("alltoall") ? (size_t)rank * n + i : i));
    }
    return found;
}

static double slowest(double x)
{
    double all;
    MPI_Allreduce(&x, &all, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
    return all;
}

int main(int argc, char **argv)
{
    static const struct { const char *name; MPI_Op op; } OPS[] = {
        {"sum", MPI_SUM}, {"prod", MPI_PROD}, {"min", MPI_MIN}, {"max", MPI_MAX}, {"band", MPI_BAND},
        {"bor", MPI_BOR}, {"bxor", MPI_BXOR}, {"land", MPI_LAND}, {"lor", MPI_LOR},
    };
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    if (argc != 12) return 2;
    what = argv[1];
    op_name = argv[3];
    MPI_Datatype types[] = {MPI_DOUBLE, MPI_FLOAT, MPI_INT8_T, MPI_UINT8_T, MPI_INT16_T, MPI_UINT16_T, MPI_INT32_T,
                            MPI_UINT32_T, MPI_INT64_T, MPI_UINT64_T};
    for (size_t i = 0; i < sizeof TYPES / sizeof *TYPES; i++)
        if (strcmp(TYPES[i].name, argv[2]) == 0) { type = types[i]; type_at = (int)i; width = (size_t)TYPES[i].width; }
    op = MPI_SUM;
    for (size_t i = 0; i < sizeof OPS / sizeof *OPS; i++)
        if (strcmp(OPS[i].name, op_name) == 0) op = OPS[i].op;
    root = atoi(argv[4]);
    count = strtoull(argv[5], NULL, 10);
    in_place = atoi(argv[6]);
    int warmup = atoi(argv[7]), batches = atoi(argv[8]), check = atoi(argv[11]);
    long iterations = atol(argv[9]);
    double batch_s = atof(argv[10]) / 1e3;
    size_t most = send_parts() > recv_parts() ? send_parts() : recv_parts();
    send = malloc(width * count * most + 1);
    recv = malloc(width * count * most + 1);
    double *times = malloc(sizeof *times * (size_t)batches);
    fill();
    if (is("broadcast")) memcpy(recv, send, width * count);
    for (int i = 0; i < warmup; i++) call();
    double begin = MPI_Wtime();
    for (int i = 0; i < 3; i++) call();
    double one = slowest((MPI_Wtime() - begin) / 3);
    if (iterations == 0) {
        double fit = batch_s / one;
        iterations = fit < 3 ? 3 : fit > 20000 ? 20000 : (long)fit;
    }
    for (int b = 0; b < batches; b++) {
        MPI_Barrier(MPI_COMM_WORLD);
        begin = MPI_Wtime();
        for (long i = 0; i < iterations; i++) call();
        times[b] = slowest((MPI_Wtime() - begin) * 1e6 / (double)iterations);
    }
    long bad = 0, all = 0;
    if (check) {
        fill();
        if (is("broadcast")) for (size_t i = 0; i < count; i++) put(recv, i, value(rank, i));
        call();
        bad = wrong();
    }
    MPI_Reduce(&bad, &all, 1, MPI_LONG, MPI_SUM, 0, MPI_COMM_WORLD);
    if (rank == 0) {
        printf("{\"count\":%zu,\"entries\":[{\"variant\":\"MPI\",\"place\":\"%s\",\"batches\":[", count, in_place ? "in" : "out");
        for (int b = 0; b < batches; b++) printf("%s%.4f", b ? "," : "", times[b]);
        if (check) printf("],\"wrong\":%ld}]}\n", all);
        else printf("],\"wrong\":null}]}\n");
        fflush(stdout);
    }
    MPI_Finalize();
    return 0;
}
