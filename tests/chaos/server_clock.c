/* Preloaded into a Redis server: its wall clock is wrong by the seconds that a file holds.
 *
 * libfaketime cannot be used: it calls the memory allocator, and jemalloc, which Redis is linked
 * with, asks for the time in its own start. Here the kernel is asked without the C library.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static const volatile int64_t *wrong_by;

__attribute__((constructor)) static void open_file(void)
{
    const char *path = getenv("SERVER_CLOCK");
    int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    if (file < 0)
        return;
    void *mapped = mmap(NULL, sizeof *wrong_by, PROT_READ, MAP_SHARED, file, 0);
    if (mapped != MAP_FAILED)
        wrong_by = mapped;
    close(file);
}

int clock_gettime(clockid_t clock, struct timespec *found)
{
    int failed = (int)syscall(SYS_clock_gettime, clock, found);
    if (!failed && wrong_by && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE))
        found->tv_sec += *wrong_by;
    return failed;
}

int gettimeofday(struct timeval *restrict found, void *restrict zone)
{
    struct timespec now;
    (void)zone;
    if (clock_gettime(CLOCK_REALTIME, &now))
        return -1;
    found->tv_sec = now.tv_sec;
    found->tv_usec = now.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *found)
{
    struct timespec now;
    if (clock_gettime(CLOCK_REALTIME, &now))
        return -1;
    if (found)
        *found = now.tv_sec;
    return now.tv_sec;
}
