// Namespaces that another process made, joined by `setns`: host names, mounts, networks, clocks that are ahead, process ids.
#define _GNU_SOURCE
#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define CHECK(condition)                                                                                               \
    do {                                                                                                               \
        if (!(condition)) {                                                                                            \
            printf("line %d: %s\n", __LINE__, #condition);                                                             \
            exit(1);                                                                                                   \
        }                                                                                                              \
    } while (0)

#ifndef CLONE_NEWTIME
#define CLONE_NEWTIME 0x80
#endif

enum { DAY = 86400 };

static int up[2], down[2];
static char byte;

static time_t monotonic(void)
{
    struct timespec t;
    CHECK(clock_gettime(CLOCK_MONOTONIC, &t) == 0);
    return t.tv_sec;
}

static void join(pid_t of, const char *name, int kind)
{
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/ns/%s", of, name);
    int fd = open(path, O_RDONLY);
    CHECK(fd >= 0 && setns(fd, kind) == 0 && close(fd) == 0);
}

static int end_of(pid_t child)
{
    int status;
    CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status));
    return WEXITSTATUS(status);
}

// Says that the namespaces are there, and waits until they were joined.
static void hold(void)
{
    CHECK(write(up[1], "x", 1) == 1 && read(down[0], &byte, 1) == 1);
}

static void others(time_t before)
{
    pid_t maker = fork();
    if (maker == 0) {
        CHECK(unshare(CLONE_NEWUTS | CLONE_NEWNS | CLONE_NEWNET | CLONE_NEWIPC | CLONE_NEWTIME) == 0);
        CHECK(sethostname("inner", 5) == 0);
        FILE *offsets = fopen("/proc/self/timens_offsets", "w");
        CHECK(offsets && fprintf(offsets, "monotonic %d 0\n", DAY) > 0 && fclose(offsets) == 0);
        pid_t later = fork();
        if (later == 0) {
            CHECK(monotonic() >= before + DAY);
            struct timespec until;
            clock_gettime(CLOCK_MONOTONIC, &until);
            until.tv_sec++;
            CHECK(clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, 0) == 0);
            _exit(4);
        }
        CHECK(end_of(later) == 4);
        hold();
        _exit(5);
    }
    CHECK(read(up[0], &byte, 1) == 1);
    join(maker, "uts", CLONE_NEWUTS);
    join(maker, "ipc", CLONE_NEWIPC);
    join(maker, "net", CLONE_NEWNET);
    join(maker, "mnt", CLONE_NEWNS);
    join(maker, "time_for_children", CLONE_NEWTIME);
    char name[16] = "";
    CHECK(gethostname(name, sizeof name) == 0 && !strcmp(name, "inner"));
    pid_t child = fork();
    if (child == 0)
        _exit(monotonic() >= before + DAY ? 6 : 1);
    CHECK(end_of(child) == 6 && write(down[1], "y", 1) == 1 && end_of(maker) == 5);
}

static void processes(void)
{
    pid_t maker = fork();
    if (maker == 0) {
        CHECK(unshare(CLONE_NEWPID) == 0);
        pid_t first = fork();
        if (first == 0) {
            CHECK(getpid() == 1);
            hold();
            _exit(7);
        }
        _exit(end_of(first) + 1);
    }
    CHECK(read(up[0], &byte, 1) == 1);
    join(maker, "pid_for_children", CLONE_NEWPID);
    pid_t child = fork();
    if (child == 0) {
        CHECK(getpid() == 2);
        execlp("sh", "sh", "-c", "exit $$", (char *)0);
        _exit(1);
    }
    CHECK(end_of(child) == 2 && write(down[1], "y", 1) == 1 && end_of(maker) == 8);
}

int main(void)
{
    CHECK(pipe(up) == 0 && pipe(down) == 0);
    time_t before = monotonic();
    // Where these may not be made, or the kernel has none, there is nothing to join.
    pid_t probe = fork();
    if (probe == 0)
        _exit(unshare(CLONE_NEWUSER) || unshare(CLONE_NEWNET | CLONE_NEWTIME | CLONE_NEWPID));
    if (end_of(probe) == 0) {
        CHECK(unshare(CLONE_NEWUSER) == 0);
        others(before);
        processes();
    }
    puts("joined_namespaces: all joined");
    return 0;
}
