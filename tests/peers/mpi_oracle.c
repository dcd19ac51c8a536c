/*
 * What MPI's collectives make of known inputs between two ranks, for libcomm to be compared with. A line a case: the
 * call, type, operation, count, and a hash of each rank's receive buffer.
 */
#include <mpi.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The inputs of libcomm/tests/oracle.rs: a generator by rank, element and case. */
static uint64_t input(int rank, size_t index, int number)
{
    uint64_t x = (index + 1) * 0x9e3779b97f4a7c15u ^ (uint64_t)rank << 40 ^ (uint64_t)number << 50;
    x = (x ^ x >> 29) * 0xbf58476d1ce4e5b9u;
    return x ^ x >> 32;
}

struct kind {
    const char *name;
    MPI_Datatype type;
    size_t bytes;
    int is_float;
};

enum call { ALLREDUCE, REDUCE, SCAN, REDUCE_SCATTER, BROADCAST, ALLGATHER, GATHER, SCATTER, ALLTOALL, CALLS };
static const char *names[CALLS] = {"allreduce", "reduce", "scan", "reduce_scatter", "broadcast",
                                   "allgather", "gather", "scatter", "alltoall"};

/* Rank 1 is the root. send and recv have 2 * count elements; what a call does not write stays zero. */
static void carry_out(enum call call, void *send, void *recv, int count, size_t bytes, MPI_Datatype type, MPI_Op op)
{
    MPI_Comm all = MPI_COMM_WORLD;
    switch (call) {
    case ALLREDUCE: MPI_Allreduce(send, recv, count, type, op, all); break;
    case REDUCE: MPI_Reduce(send, recv, count, type, op, 1, all); break;
    case SCAN: MPI_Scan(send, recv, count, type, op, all); break;
    case REDUCE_SCATTER: MPI_Reduce_scatter_block(send, recv, count, type, op, all); break;
    case BROADCAST:
        memcpy(recv, send, count * bytes);
        MPI_Bcast(recv, count, type, 1, all);
        break;
    case ALLGATHER: MPI_Allgather(send, count, type, recv, count, type, all); break;
    case GATHER: MPI_Gather(send, count, type, recv, count, type, 1, all); break;
    case SCATTER: MPI_Scatter(send, count, type, recv, count, type, 1, all); break;
    default: MPI_Alltoall(send, count, type, recv, count, type, all);
    }
}

static uint64_t hash_of(const unsigned char *data, size_t bytes)
{
    uint64_t hash = 0xcbf29ce484222325u;
    for (size_t i = 0; i < bytes; i++)
        hash = (hash ^ data[i]) * 0x100000001b3u;
    return hash;
}

int main(int argc, char **argv)
{
    int rank, number = 0;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    struct kind kinds[] = {
        {"f64", MPI_DOUBLE, 8, 1},   {"f32", MPI_FLOAT, 4, 1},    {"i8", MPI_INT8_T, 1, 0},    {"u8", MPI_UINT8_T, 1, 0},
        {"i16", MPI_INT16_T, 2, 0},  {"u16", MPI_UINT16_T, 2, 0}, {"i32", MPI_INT32_T, 4, 0},  {"u32", MPI_UINT32_T, 4, 0},
        {"i64", MPI_INT64_T, 8, 0},  {"u64", MPI_UINT64_T, 8, 0},
    };
    struct { const char *name; MPI_Op op; int integers; } ops[] = {
        {"sum", MPI_SUM, 0},  {"prod", MPI_PROD, 0}, {"min", MPI_MIN, 0},   {"max", MPI_MAX, 0},  {"band", MPI_BAND, 1},
        {"bor", MPI_BOR, 1},  {"bxor", MPI_BXOR, 1}, {"land", MPI_LAND, 1}, {"lor", MPI_LOR, 1},
    };
    size_t counts[] = {1, 3, 17, 1000, 65537};
    for (int call = 0; call < CALLS; call++)
        for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++)
            for (size_t o = 0; o < sizeof ops / sizeof *ops; o++)
                for (size_t c = 0; c < sizeof counts / sizeof *counts; c++) {
                    /* Calls that do not reduce are made once, and only the first with long messages. */
                    if ((ops[o].integers && kinds[k].is_float) || (call > REDUCE_SCATTER && o > 0) || (call > ALLREDUCE && c > 3))
                        continue;
                    size_t count = counts[c], size = kinds[k].bytes, bytes = 2 * count * size;
                    unsigned char *send = malloc(bytes), *recv = calloc(bytes, 1);
                    number++;
                    for (size_t i = 0; i < 2 * count; i++) {
                        uint64_t word = input(rank, i, number);
                        double d = (double)(int32_t)word / 65536;
                        float f = (float)d;
                        if (kinds[k].is_float)
                            memcpy(send + i * size, size == 8 ? (void *)&d : (void *)&f, size);
                        else
                            memcpy(send + i * size, &word, size);
                    }
                    carry_out(call, send, recv, (int)count, size, kinds[k].type, ops[o].op);
                    uint64_t hash = hash_of(recv, bytes), hashes[2];
                    MPI_Gather(&hash, 1, MPI_UINT64_T, hashes, 1, MPI_UINT64_T, 0, MPI_COMM_WORLD);
                    if (rank == 0)
                        printf("%s %s %s %zu %016llx %016llx\n", names[call], kinds[k].name, ops[o].name, count,
                               (unsigned long long)hashes[0], (unsigned long long)hashes[1]);
                    free(send);
                    free(recv);
                }
    MPI_Finalize();
    return 0;
}
