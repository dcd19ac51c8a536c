/* spawn_wait N PROGRAM [ARGUMENT...]: starts N copies and waits for them, the least that any launcher must do.
 * It makes no pipes, watches nothing and forwards nothing: the floor that prun's start-up is measured against. */
#define _GNU_SOURCE
#include <errno.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>

extern char **environ;

int main(int argc, char **argv)
{
    int count = argc > 2 ? atoi(argv[1]) : 0;
    if (count < 1) {
        fprintf(stderr, "usage: spawn_wait N PROGRAM [ARGUMENT...]\n");
        return 2;
    }
    int worst = 0;
    for (int i = 0; i < count; i++) {
        pid_t pid;
        int error = posix_spawnp(&pid, argv[2], NULL, NULL, argv + 2, environ);
        if (error != 0) {
            fprintf(stderr, "spawn_wait: cannot start %s: %s\n", argv[2], strerror(error));
            return 125;
        }
    }
    for (int status; wait(&status) > 0 || errno == EINTR;)
        if (status != 0)
            worst = 1;
    return worst;
}
