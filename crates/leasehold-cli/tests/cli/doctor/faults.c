/* A machine with faults, for a server that runs with this library (LD_PRELOAD). Each fault begins when its
   file exists in the directory $FAULTS: `slow-disk`, an fdatasync that does not return for a minute, and
   `busy`, a process that seems to use a whole processor. */

#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

long syscall(long number, ...);

static int has(const char *fault) {
    char path[4096];
    const char *directory = getenv("FAULTS");
    if (directory == NULL) return 0;
    snprintf(path, sizeof path, "%s/%s", directory, fault);
    return access(path, F_OK) == 0;
}

int fdatasync(int file) {
    if (has("slow-disk")) sleep(60);
    return (int)syscall(SYS_fdatasync, file);
}

int getrusage(int who, struct rusage *usage) {
    int result = (int)syscall(SYS_getrusage, who, usage);
    if (result == 0 && has("busy")) {
        struct timespec now;
        clock_gettime(CLOCK_MONOTONIC, &now);
        usage->ru_utime.tv_sec = now.tv_sec;
        usage->ru_utime.tv_usec = now.tv_nsec / 1000;
    }
    return result;
}
