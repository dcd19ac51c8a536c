/*
 * libcomm: collectives between the processes of one machine.
 *
 * Every function that returns comm_result_t returns COMM_OK or the code of an
 * error; comm_last_error() then has the sentence for people. After an error
 * other than COMM_ERROR_INVALID_ARGUMENT, COMM_ERROR_NO_MEMORY and
 * COMM_ERROR_NO_THREAD a communicator can only be finalized.
 *
 * All ranks make the same calls in the same order, on host and GPU memory alike,
 * with the same count, type, op and root; if they do not, all get
 * COMM_ERROR_MISMATCH or COMM_ERROR_PEER. A rank that waits on the host for one
 * that waits in a stream is found out after 2 s; not so after a call was
 * captured in a graph, in messages, or on a communicator that was split off,
 * where only PRUN_COMM_TIMEOUT_MS ends the wait.
 * Counts are in elements. Buffers need the alignment of their element. With a
 * count of 0 the buffers may be NULL.
 *
 * Data is in the host's memory; only comm_allreduce, comm_broadcast and what is
 * said to be for GPUs take device memory. Calls of several threads on one
 * communicator take turns. A process that was forked from one that has joined
 * cannot use its communicator.
 */
#ifndef LIBCOMM_H
#define LIBCOMM_H

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define COMM_API __attribute__((visibility("default")))
#else
#define COMM_API
#endif

/* The version that this header is of: major * 10000 + minor * 100 + patch. */
#define COMM_VERSION 100

/* A communicator: one rank's access to all ranks of its job, or to some of them. */
typedef struct comm comm_t;

/* A call that has returned before it is done. */
typedef struct comm_request comm_request_t;

/* What a call returns. */
typedef enum {
    COMM_OK = 0,
    COMM_ERROR_INVALID_ARGUMENT = 1, /* nothing was sent, the communicator is as before */
    COMM_ERROR_ENVIRONMENT = 2,
    COMM_ERROR_SEGMENT = 3,
    COMM_ERROR_ALREADY_JOINED = 4,
    COMM_ERROR_PEER = 5, /* a peer exited, left or failed: the sentence names it */
    COMM_ERROR_ABORTED = 6,
    COMM_ERROR_TIMEOUT = 7,
    COMM_ERROR_MISMATCH = 8,
    COMM_ERROR_CORRUPT = 9,
    COMM_ERROR_UNUSABLE = 10,
    COMM_ERROR_FORKED = 11,
    COMM_ERROR_INTERNAL = 12,
    COMM_ERROR_DEVICE = 13, /* the CUDA driver */
    COMM_ERROR_NO_MEMORY = 14,
    COMM_ERROR_NO_THREAD = 15 /* for comm_iallreduce and comm_ibarrier */
} comm_result_t;

/* Element types. 16-bit floats are added up in 32 bits. */
typedef enum {
    COMM_F64 = 1,
    COMM_F32 = 2,
    COMM_F16 = 3,
    COMM_BF16 = 4,
    COMM_I8 = 5,
    COMM_U8 = 6,
    COMM_I32 = 7,
    COMM_U32 = 8,
    COMM_I64 = 9,
    COMM_U64 = 10,
    COMM_I16 = 11, /* from here on reduced on the host only */
    COMM_U16 = 12,
    COMM_E4M3 = 13, /* 8-bit floats, added up in 32 bits; what is too large becomes the largest */
    COMM_E5M2 = 14
} comm_type_t;

/*
 * Reductions. Integers wrap in sum and prod. avg is the true sum divided by the
 * number of ranks; integers are cut towards zero. min and max of floats are NaN
 * where any rank has one, and of zeros of both signs the one of the lower rank.
 */
typedef enum {
    COMM_SUM = 1,
    COMM_PROD = 2,
    COMM_MIN = 3,
    COMM_MAX = 4,
    COMM_AVG = 5,
    COMM_BAND = 6, /* from here on integers only, and on the host only */
    COMM_BOR = 7,
    COMM_BXOR = 8,
    COMM_LAND = 9,
    COMM_LOR = 10
} comm_op_t;

/*
 * Joins the job that prun started this program for, and returns once all its
 * ranks have joined. A program that prun did not start is rank 0 of 1.
 */
COMM_API comm_result_t comm_init(comm_t **comm);

/* This rank, how many there are, and this rank on its node; -1 for NULL. */
COMM_API int comm_rank(const comm_t *comm);
COMM_API int comm_size(const comm_t *comm);
COMM_API int comm_local_rank(const comm_t *comm);

/* Returns once all ranks have called it. */
COMM_API comm_result_t comm_barrier(const comm_t *comm);

/*
 * Reduces count elements over all ranks into everyone's recv, with the same
 * bits on all of them. In place where send == recv.
 */
COMM_API comm_result_t comm_allreduce(const comm_t *comm, const void *send, void *recv,
                                      size_t count, comm_type_t type, comm_op_t op);

/*
 * The same on memory that a GPU reaches, in the order of stream, a cudaStream_t
 * or CUstream (NULL: the default stream). comm_allreduce on such memory is this
 * with NULL. Returns before it is done and can be captured in a graph, except
 * where processes share a GPU, when it waits. The
 * first call sets up the GPUs and cannot be captured.
 *
 * What goes wrong after it has returned, in a replayed graph too, is reported by
 * comm_async_error and by every later call, on host memory too; the output is
 * undefined then. Calls in several streams take turns: do not destroy the stream
 * of the last call before there was one in another stream, or comm_finalize,
 * since the next call waits for it. A replay is seen by the GPU alone: it must
 * not run at the same time as another call or replay on this communicator, so
 * let it share a stream with them, or wait for an event, on every rank alike.
 */
COMM_API comm_result_t comm_allreduce_stream(const comm_t *comm, const void *send, void *recv,
                                             size_t count, comm_type_t type, comm_op_t op,
                                             void *stream);

/*
 * Whether a call on device memory has failed after it returned. Never waits.
 * While another thread is inside a call, it also tells whether the job was
 * aborted.
 */
COMM_API comm_result_t comm_async_error(const comm_t *comm);

/*
 * Why data between the ranks' GPUs goes through the host's memory, and which
 * of them cannot reach which: a sentence, valid as long as the communicator.
 * NULL if it does not, before the first call on GPU memory, and for NULL.
 * Unless PRUN_P2P=off asks for it, rank 0 also prints it to stderr, once.
 */
COMM_API const char *comm_detour(const comm_t *comm);

/*
 * Reduces send, of count elements for each rank, over all ranks; rank r gets
 * part r in recv. In place where recv is this rank's part of send.
 */
COMM_API comm_result_t comm_reduce_scatter(const comm_t *comm, const void *send, void *recv,
                                           size_t count, comm_type_t type, comm_op_t op);

/*
 * Puts the count elements of each rank into everyone's recv, in the order of
 * the ranks. In place where send is this rank's part of recv.
 */
COMM_API comm_result_t comm_allgather(const comm_t *comm, const void *send, void *recv,
                                      size_t count, comm_type_t type);

/*
 * The same with counts[r] elements from rank r; all ranks give the same counts,
 * one for each rank. In place where send is this rank's place in recv.
 */
COMM_API comm_result_t comm_allgatherv(const comm_t *comm, const void *send, void *recv,
                                       const size_t *counts, comm_type_t type);

/* Puts the root's buffer of count elements into everyone's. */
COMM_API comm_result_t comm_broadcast(const comm_t *comm, void *buffer, size_t count,
                                      comm_type_t type, int root);

/* The same on memory that a GPU reaches, in the order of stream: as comm_allreduce_stream. */
COMM_API comm_result_t comm_broadcast_stream(const comm_t *comm, void *buffer, size_t count,
                                             comm_type_t type, int root, void *stream);

/*
 * Reduces count elements over all ranks into the root's recv; the others' is
 * not looked at. In place where send == recv.
 */
COMM_API comm_result_t comm_reduce(const comm_t *comm, const void *send, void *recv, size_t count,
                                   comm_type_t type, comm_op_t op, int root);

/* Reduces over ranks 0 to this one. In place where send == recv. */
COMM_API comm_result_t comm_scan(const comm_t *comm, const void *send, void *recv, size_t count,
                                 comm_type_t type, comm_op_t op);

/*
 * Puts the count elements of each rank into the root's recv, in their order. In
 * place where the root's send is its part of recv.
 */
COMM_API comm_result_t comm_gather(const comm_t *comm, const void *send, void *recv, size_t count,
                                   comm_type_t type, int root);

/*
 * Puts part r, of count elements, of the root's send into rank r's recv. In place
 * where the root's recv is its part of send.
 */
COMM_API comm_result_t comm_scatter(const comm_t *comm, const void *send, void *recv, size_t count,
                                    comm_type_t type, int root);

/*
 * Puts part i, of count elements, of rank r's send into part r of rank i's recv.
 * The two are apart.
 */
COMM_API comm_result_t comm_alltoall(const comm_t *comm, const void *send, void *recv, size_t count,
                                     comm_type_t type);

/*
 * Messages between two ranks arrive in the order in which they were sent. The
 * receiver gives the sender's type, count and tag (0 or more); if they differ,
 * both get COMM_ERROR_MISMATCH or COMM_ERROR_PEER, which name both. comm_send
 * returns once data may be used again: up to 255 KiB it does not wait for the
 * receiver while there is room, a longer message moves as it is received.
 * comm_sendrecv does both at once, so that ranks may pass data round a ring.
 */
COMM_API comm_result_t comm_send(const comm_t *comm, const void *data, size_t count,
                                 comm_type_t type, int to, int tag);
COMM_API comm_result_t comm_recv(const comm_t *comm, void *data, size_t count, comm_type_t type,
                                 int from, int tag);
COMM_API comm_result_t comm_sendrecv(const comm_t *comm, const void *send, size_t send_count,
                                     int to, void *recv, size_t recv_count, int from,
                                     comm_type_t type, int tag);

/*
 * Calls that return before they are done. Data must stay as it is, and recv be
 * left alone, until the request is done. Requests and blocking calls of one
 * communicator happen in the order in which they are made, which must be the
 * same on all ranks; another rank may make the blocking call. A thread of the
 * library carries them on while the program computes. Host memory only: on a
 * GPU's, comm_allreduce_stream returns at once.
 */
COMM_API comm_result_t comm_iallreduce(const comm_t *comm, const void *send, void *recv,
                                       size_t count, comm_type_t type, comm_op_t op,
                                       comm_request_t **request);
COMM_API comm_result_t comm_ibarrier(const comm_t *comm, comm_request_t **request);

/*
 * comm_test sets done to whether the request is done and never waits; comm_wait
 * waits. Once it is done, both return its result, and it is gone: *request
 * becomes NULL, which both ignore. Every request must be waited for or tested
 * until done: otherwise comm_finalize returns an error.
 */
COMM_API comm_result_t comm_test(comm_request_t **request, int *done);
COMM_API comm_result_t comm_wait(comm_request_t **request);

/*
 * New communicators: one for all ranks that give the same color of 0 or more,
 * numbered by key and, for equal keys, by their ranks in comm. A rank with a
 * negative color gets NULL. comm_dup makes one of the same ranks. All ranks of
 * comm call them. The new one and the old one have nothing in common: calls on
 * both may be made in any order that all their ranks keep. Host memory only.
 * comm_finalize gives a communicator back; the job's own comes last. Sentences
 * of errors name ranks by their numbers in the job, and an error on one
 * communicator ends them all.
 */
COMM_API comm_result_t comm_split(const comm_t *comm, int color, int key, comm_t **part);
COMM_API comm_result_t comm_dup(const comm_t *comm, comm_t **copy);

/*
 * Zeroed memory that all ranks can reach, at a page: comm_allreduce from and to
 * such buffers, on every rank, moves data without a copy in between. For this
 * rank alone; the others need not call it. It takes memory as it is written, and
 * ends with comm_free, which ignores NULL, or with the communicator.
 */
COMM_API comm_result_t comm_alloc(const comm_t *comm, size_t bytes, void **address);
COMM_API comm_result_t comm_free(const comm_t *comm, void *address);

/*
 * Registers bytes of this rank's GPU memory at address, together with all ranks,
 * each with its own: peers may then write results straight into it, in calls
 * that go that way. All other calls go as without, and on GPUs that cannot map
 * each other's memory this does nothing. All ranks call both in the same order.
 * comm_deregister takes the same address, waits for all work of the GPU, and
 * comes before the memory is freed: a result in memory that was freed since, or
 * that begins in a registered range and ends behind it, is refused. A graph that
 * was captured over it is not replayed any more either. Memory of a
 * kind that cannot be shared, on any rank, is COMM_ERROR_INVALID_ARGUMENT on all,
 * and works as unregistered memory does.
 */
COMM_API comm_result_t comm_register(const comm_t *comm, void *address, size_t bytes);
COMM_API comm_result_t comm_deregister(const comm_t *comm, void *address);

/*
 * Zeroed memory of the current context's GPU, or of this rank's if there is no
 * context, registered together with all ranks; comm_free_device is called by all
 * as well, and ignores NULL. It ends with the communicator, too.
 */
COMM_API comm_result_t comm_alloc_device(const comm_t *comm, size_t bytes, void **address);
COMM_API comm_result_t comm_free_device(const comm_t *comm, void *address);

/*
 * Leaves together with all ranks. The communicator is gone afterwards, whatever
 * is returned. NULL is ignored. After all that, COMM_ERROR_INVALID_ARGUMENT if a
 * request was not waited for or a message of this rank was never received.
 */
COMM_API comm_result_t comm_finalize(comm_t *comm);

/*
 * Ends the job for all ranks: every wait and every later call fails. Waits for
 * nobody, and may be called while another thread is in a call. In a forked child
 * it does nothing and returns COMM_ERROR_FORKED.
 */
COMM_API comm_result_t comm_abort(const comm_t *comm);

/*
 * Tells a figure of the program's own, such as a loss or a time per step, to
 * whoever started it (`prun sweep`); dropped if nobody listens. Needs no
 * communicator.
 */
COMM_API comm_result_t comm_report(const char *name, double value);

/* The sentence of this thread's last error, valid until its next one. */
COMM_API const char *comm_last_error(void);

/* What a code means. */
COMM_API const char *comm_error_string(comm_result_t code);

/* The version of the library, as COMM_VERSION is of the header. */
COMM_API unsigned comm_version(void);

#ifdef __cplusplus
}
#endif

#endif
