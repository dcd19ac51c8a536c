/* A token goes round the ring of ranks, three times. Whoever holds it signs it, so that in the end it tells
 * whether each rank had it, once a round and in order.
 *
 *     prun -n 4 ./ring
 */
#include "check.h"

#include <inttypes.h>

enum { ROUNDS = 3 };

/* The token after `rank` signed it: another order of signatures gives another token. */
static uint64_t signed_by(int rank, uint64_t token) { return token * 1000003 + (uint64_t)rank + 1; }

int main(void) {
    comm_t *comm;
    CHECK(comm_init(&comm));
    int rank = comm_rank(comm), size = comm_size(comm);
    uint64_t token = 0, expected = 0;
    for (int round = 0; round < ROUNDS; round++)
        for (int holder = 0; holder < size; holder++) {
            if (rank == holder)
                token = signed_by(rank, token);
            CHECK(comm_broadcast(comm, &token, 1, COMM_U64, holder));
            expected = signed_by(holder, expected);
        }
    if (token != expected)
        return fail(rank, "got token %016" PRIx64 ", expected %016" PRIx64, token, expected);
    if (rank == 0)
        printf("the token went round %d ranks %d times and came back as %016" PRIx64 "\n", size, ROUNDS, token);
    CHECK(comm_finalize(comm));
    return EXIT_SUCCESS;
}
