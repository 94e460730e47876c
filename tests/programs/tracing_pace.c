// A tracer gets on with each stop of its tracee at once, as two processes do that take turns over pipes.
#define _GNU_SOURCE
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
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

enum { ROUNDS = 200 };

static long long now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000LL + t.tv_nsec;
}

static long long turns(void)
{
    int there[2], back[2], status;
    char byte = 'x';
    CHECK(pipe(there) == 0 && pipe(back) == 0);
    pid_t child = fork();
    if (child == 0) {
        for (int i = 0; i < ROUNDS; i++)
            if (read(there[0], &byte, 1) != 1 || write(back[1], &byte, 1) != 1)
                _exit(1);
        _exit(0);
    }
    long long since = now();
    for (int i = 0; i < ROUNDS; i++)
        CHECK(write(there[1], &byte, 1) == 1 && read(back[0], &byte, 1) == 1);
    long long took = now() - since;
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    return took;
}

static long long stops(void)
{
    int status;
    pid_t child = fork();
    if (child == 0) {
        ptrace(PTRACE_TRACEME, 0, 0, 0);
        raise(SIGSTOP);
        for (int i = 0; i < ROUNDS; i++)
            syscall(SYS_getppid);
        _exit(0);
    }
    CHECK(waitpid(child, &status, 0) == child && WIFSTOPPED(status));
    long long since = now();
    for (int i = 0; i < ROUNDS; i++) {
        CHECK(ptrace(PTRACE_SYSCALL, child, 0, 0) == 0);
        CHECK(waitpid(child, &status, 0) == child && WIFSTOPPED(status));
    }
    long long took = now() - since;
    CHECK(ptrace(PTRACE_CONT, child, 0, 0) == 0);
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    return took;
}

int main(void)
{
    long long least = 0;
    // The machine may be busy with something else at either.
    for (int tries = 0; tries < 5; tries++) {
        long long took = stops(), over = 10 * turns();
        if (took <= over) {
            puts("tracing_pace: no stop waited");
            return 0;
        }
        least = took;
    }
    printf("%d stops took %lld ns\n", ROUNDS, least);
    return 1;
}
