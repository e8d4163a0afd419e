/* The job of every measurement: says when it ran its first instruction of main, on the clock all processes share.
 *
 *   stamp FIFO TAG            write "TAG nanoseconds", end
 *   stamp FIFO TAG stubborn   the same, then stay and ignore SIGTERM
 *   stamp FIFO TAG tree N     the same, then stay as N processes that do nothing
 *   stamp                     end at once
 *
 * Linked statically, so that what it measures is the start and not the loader. What stays, stays ten minutes at most.
 */
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static void stay(void) {
    alarm(600);
    for (;;)
        pause();
}

int main(int argc, char **argv) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    if (argc < 3)
        return 0;
    int stubborn = argc > 3 && !strcmp(argv[3], "stubborn");
    int tree = argc > 4 && !strcmp(argv[3], "tree") ? atoi(argv[4]) : 0;
    if (stubborn)
        signal(SIGTERM, SIG_IGN);
    for (int n = 1; n < tree; n++)
        if (fork() == 0)
            stay();
    char line[128];
    int size = snprintf(line, sizeof line, "%s %lld\n", argv[2], t.tv_sec * 1000000000LL + t.tv_nsec);
    int fd = open(argv[1], O_WRONLY | O_NONBLOCK | O_CLOEXEC); /* nobody reads any more: fail, do not wait */
    if (fd < 0 || write(fd, line, size) != size)
        return 1;
    close(fd);
    if (stubborn || tree)
        stay();
    return 0;
}
