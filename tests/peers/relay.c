/* relay N PROGRAM [ARGUMENT...]: starts N copies, each with a pipe for its output, and passes on what comes.
 * It knows no lines, no labels and no limits: the ceiling that prun's plain output is measured against. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/wait.h>
#include <unistd.h>

enum { PIECE_BYTES = 64 * 1024, MAX_RANKS = 64 };

static void fail(const char *what)
{
    perror(what);
    exit(125);
}

static void start(int rank, int epoll, char **argv)
{
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) != 0)
        fail("relay: pipe");
    pid_t pid = fork();
    if (pid < 0)
        fail("relay: fork");
    if (pid == 0) {
        char number[16];
        snprintf(number, sizeof number, "%d", rank);
        setenv("PRUN_RANK", number, 1);
        dup2(ends[1], STDOUT_FILENO);
        execvp(argv[0], argv);
        perror(argv[0]);
        _exit(127);
    }
    close(ends[1]);
    struct epoll_event readable = { .events = EPOLLIN, .data.fd = ends[0] };
    if (epoll_ctl(epoll, EPOLL_CTL_ADD, ends[0], &readable) != 0)
        fail("relay: epoll_ctl");
}

static void write_all(const char *bytes, ssize_t count)
{
    while (count > 0) {
        ssize_t written = write(STDOUT_FILENO, bytes, count);
        if (written < 0 && errno != EINTR)
            fail("relay: write");
        if (written > 0) {
            bytes += written;
            count -= written;
        }
    }
}

int main(int argc, char **argv)
{
    static char piece[PIECE_BYTES];
    int open_pipes = argc > 2 ? atoi(argv[1]) : 0;
    if (open_pipes < 1 || open_pipes > MAX_RANKS) {
        fprintf(stderr, "usage: relay N PROGRAM [ARGUMENT...], N at most %d\n", MAX_RANKS);
        return 2;
    }
    int epoll = epoll_create1(EPOLL_CLOEXEC);
    for (int rank = 0, count = open_pipes; rank < count; rank++)
        start(rank, epoll, argv + 2);

    while (open_pipes > 0) {
        struct epoll_event ready[MAX_RANKS];
        int count = epoll_wait(epoll, ready, MAX_RANKS, -1);
        for (int i = 0; i < count; i++) {
            ssize_t got = read(ready[i].data.fd, piece, sizeof piece);
            if (got > 0)
                write_all(piece, got);
            else if (got == 0 || errno != EINTR) {
                /* Taken out by hand: a child between fork and exec may still hold this end, and then close alone
                 * would leave it in the set and have the end of this pipe counted twice. */
                epoll_ctl(epoll, EPOLL_CTL_DEL, ready[i].data.fd, NULL);
                close(ready[i].data.fd);
                open_pipes--;
            }
        }
    }
    while (wait(NULL) > 0 || errno == EINTR)
        ;
    return 0;
}
