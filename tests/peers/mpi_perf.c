/* How long MPI_Allreduce takes: the same loop, sizes and line as examples/collective_perf. Built with any mpicc. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static float element(int rank, size_t index)
{
    return (float)((index + 7 * (size_t)rank) % 101);
}

int main(int argc, char **argv)
{
    int rank, size;
    double batch_s = (argc > 1 ? atof(argv[1]) : 20) / 1e3;
    int batches = argc > 2 ? atoi(argv[2]) : 7;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    for (int arg = 3; arg < argc; arg++) {
        size_t bytes = strtoull(argv[arg], NULL, 10), count = bytes / 4 ? bytes / 4 : 1;
        float *send = malloc(4 * count), *recv = malloc(4 * count);
        double times[64];
        for (size_t i = 0; i < count; i++) {
            send[i] = element(rank, i);
            recv[i] = 0;
        }
        double begin = 0;
        for (int i = 0; i < 6; i++) {
            if (i == 3)
                begin = MPI_Wtime();
            MPI_Allreduce(send, recv, (int)count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
        }
        double calls = batch_s / ((MPI_Wtime() - begin) / 3);
        long n = calls < 3 ? 3 : calls > 20000 ? 20000 : (long)calls;
        MPI_Bcast(&n, 1, MPI_LONG, 0, MPI_COMM_WORLD);
        for (int batch = 0; batch < batches; batch++) {
            MPI_Barrier(MPI_COMM_WORLD);
            begin = MPI_Wtime();
            for (long i = 0; i < n; i++)
                MPI_Allreduce(send, recv, (int)count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
            times[batch] = (MPI_Wtime() - begin) * 1e6 / (double)n;
        }
        qsort(times, (size_t)batches, sizeof *times, by_value);
        long wrong = 0, all = 0;
        for (size_t i = 0; i < count; i++) {
            float wanted = 0;
            for (int r = 0; r < size; r++)
                wanted += element(r, i);
            wrong += recv[i] != wanted;
        }
        MPI_Allreduce(&wrong, &all, 1, MPI_LONG, MPI_SUM, MPI_COMM_WORLD);
        if (rank == 0) {
            printf("  %12zu %12.3f %9.3f %9.3f %7ld\n", 4 * count, times[batches / 2], 4 * (double)count / times[batches / 2] / 1e3, 0.0, all);
            fflush(stdout);
        }
        free(send);
        free(recv);
    }
    MPI_Finalize();
    return 0;
}
