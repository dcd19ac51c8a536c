/* What MPI_Allreduce makes of known inputs, for libcomm to be compared with: prints a line a case, in hexadecimal. */
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
    size_t counts[] = {1, 2, 3, 17, 1000, 65537};
    for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++)
        for (size_t o = 0; o < sizeof ops / sizeof *ops; o++)
            for (size_t c = 0; c < sizeof counts / sizeof *counts; c++) {
                if (ops[o].integers && kinds[k].is_float)
                    continue;
                size_t count = counts[c], bytes = count * kinds[k].bytes;
                unsigned char *send = malloc(bytes), *recv = malloc(bytes);
                number++;
                for (size_t i = 0; i < count; i++) {
                    uint64_t word = input(rank, i, number);
                    double d = (double)(int32_t)word / 65536;
                    float f = (float)d;
                    unsigned char *at = send + i * kinds[k].bytes;
                    if (kinds[k].is_float)
                        memcpy(at, kinds[k].bytes == 8 ? (void *)&d : (void *)&f, kinds[k].bytes);
                    else
                        memcpy(at, &word, kinds[k].bytes);
                }
                MPI_Allreduce(send, recv, (int)count, kinds[k].type, ops[o].op, MPI_COMM_WORLD);
                uint64_t hash = 0xcbf29ce484222325u;
                for (size_t i = 0; i < bytes; i++)
                    hash = (hash ^ recv[i]) * 0x100000001b3u;
                if (rank == 0)
                    printf("%s %s %zu %016llx\n", kinds[k].name, ops[o].name, count, (unsigned long long)hash);
                free(send);
                free(recv);
            }
    MPI_Finalize();
    return 0;
}
