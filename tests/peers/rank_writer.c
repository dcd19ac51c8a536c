/* rank_writer SHAPE AMOUNT [EXIT]: what a rank writes to its standard output, then its exit status (0).
 *
 *   lines BYTES    80-byte lines, each in a write of its own: a program whose output is line-buffered
 *   blocks BYTES   the same lines in writes of 64 KiB, which cut lines in two: a program whose output is a pipe
 *   split COUNT    lines in two writes each, a moment apart: a program that prints a line piece by piece
 *   long COUNT     lines of 200 000 bytes
 *
 * Every line of `split` and `long` names its rank and number and ends in `|`, so that a reader can tell whether it came
 * through whole: `rank R line I ` + letters of that rank + `|`. */
#define _GNU_SOURCE
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
    LINE_BYTES = 80,
    WRITE_BYTES = 64 * 1024,
    STREAM_BYTES = 5 * WRITE_BYTES, /* the least common multiple of both: the stream repeats after it */
    SPLIT_LINE_BYTES = 100,
    LONG_LINE_BYTES = 200 * 1000,
    PAUSE_US = 2000,
};

static int rank_from_environment(void)
{
    const char *names[] = { "PRUN_RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK" };
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (getenv(names[i]) != NULL)
            return atoi(getenv(names[i]));
    return 0;
}

static void write_all(const char *bytes, size_t count)
{
    while (count > 0) {
        ssize_t written = write(STDOUT_FILENO, bytes, count);
        if (written < 0 && errno != EINTR) {
            perror("rank_writer: write");
            exit(1);
        }
        if (written > 0) {
            bytes += written;
            count -= written;
        }
    }
}

static void write_stream(int rank, long long total, size_t piece)
{
    static char stream[STREAM_BYTES];
    for (size_t at = 0; at < STREAM_BYTES; at++)
        stream[at] = at % LINE_BYTES == LINE_BYTES - 1 ? '\n' : 'a' + (rank + at % LINE_BYTES) % 26;
    for (long long done = 0; done < total; done += piece) {
        size_t count = total - done < (long long)piece ? (size_t)(total - done) : piece;
        write_all(stream + done % STREAM_BYTES, count);
    }
}

static void write_numbered(int rank, long long count, size_t line_bytes, int split)
{
    char *line = malloc(line_bytes);
    for (long long number = 0; number < count; number++) {
        memset(line, 'a' + rank % 26, line_bytes);
        int head = snprintf(line, line_bytes, "rank %d line %lld ", rank, number);
        line[head] = 'a' + rank % 26; /* over the terminating zero */
        memcpy(line + line_bytes - 2, "|\n", 2);
        size_t first = split ? line_bytes / 2 : line_bytes;
        write_all(line, first);
        if (split) {
            usleep(PAUSE_US);
            write_all(line + first, line_bytes - first);
        }
    }
    free(line);
}

int main(int argc, char **argv)
{
    const char *shape = argc > 2 ? argv[1] : "";
    long long amount = argc > 2 ? atoll(argv[2]) : 0;
    int rank = rank_from_environment();

    if (strcmp(shape, "lines") == 0)
        write_stream(rank, amount, LINE_BYTES);
    else if (strcmp(shape, "blocks") == 0)
        write_stream(rank, amount, WRITE_BYTES);
    else if (strcmp(shape, "split") == 0)
        write_numbered(rank, amount, SPLIT_LINE_BYTES, 1);
    else if (strcmp(shape, "long") == 0)
        write_numbered(rank, amount, LONG_LINE_BYTES, 0);
    else {
        fprintf(stderr, "usage: rank_writer lines|blocks|split|long AMOUNT [EXIT]\n");
        return 2;
    }
    return argc > 3 ? atoi(argv[3]) : 0;
}
