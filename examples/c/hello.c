/* Every rank says who and where it is, and checks that the others are who they should be.
 *
 *     prun -n 4 ./hello
 */
#include "check.h"

#include <unistd.h>

int main(void) {
    comm_t *comm;
    CHECK(comm_init(&comm));
    int rank = comm_rank(comm), size = comm_size(comm);
    char host[256] = "";
    gethostname(host, sizeof host - 1);
    printf("hello from rank %d of %d, pid %ld, on %s\n", rank, size, (long)getpid(), host);

    int *ranks = calloc((size_t)size, sizeof *ranks);
    if (ranks == NULL)
        return fail(rank, "no memory for %d ranks", size);
    CHECK(comm_allgather(comm, &rank, ranks, 1, COMM_I32));
    for (int i = 0; i < size; i++)
        if (ranks[i] != i)
            return fail(rank, "in the place of rank %d there is %d", i, ranks[i]);
    free(ranks);
    CHECK(comm_finalize(comm));
    return EXIT_SUCCESS;
}
