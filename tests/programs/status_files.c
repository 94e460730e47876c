// `/proc/PID/status` tells of the program's own tracers and filters, and of nobody else's, however it is read.
#define _GNU_SOURCE
#include <assert.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

static char text[8192];

static void load(const char *path) {
    FILE *file = fopen(path, "r");
    assert(file);
    size_t len = fread(text, 1, sizeof text - 1, file);
    fclose(file);
    text[len] = 0;
    assert(len > 500 && text[len - 1] == '\n');
}

// Whether the text has this line.
static int has(const char *line) {
    size_t len = strlen(line);
    for (const char *at = text; (at = strstr(at, line)); at++)
        if (at[-1] == '\n' && at[len] == '\n')
            return 1;
    return 0;
}

static void check_free(const char *path) {
    load(path);
    assert(has("TracerPid:\t0"));
}

static void *thread(void *unused) {
    char path[64];
    snprintf(path, sizeof path, "/proc/self/task/%ld/status", syscall(SYS_gettid));
    check_free("/proc/thread-self/status");
    assert(has("State:\tR (running)") && has("Threads:\t2"));
    check_free(path);
    assert(has("State:\tR (running)"));
    check_free("/proc/self/status");
    return unused;
}

// Byte by byte, into several buffers, and from the middle, it is one text.
static void pieces(void) {
    static char again[8192];
    char *volatile nowhere = (char *)8;
    int fd = open("/proc/self/status", O_RDONLY);
    int len = 0;
    while (read(fd, text + len, 1) == 1)
        len++;
    text[len] = 0;
    assert(has("TracerPid:\t0") && lseek(fd, 0, SEEK_CUR) == len);
    assert(read(fd, again, 1) == 0);
    assert(lseek(fd, 0, SEEK_SET) == 0);
    struct iovec parts[2] = {{again, 100}, {again + 100, sizeof again - 100}};
    assert(readv(fd, parts, 2) > 500);
    // What is counted may have more digits by then.
    int same = strstr(text, "VmPeak") - text;
    assert(same > 200 && memcmp(text, again, same) == 0);
    assert(pread(fd, again, 50, 7) == 50 && memcmp(again, text + 7, 50) == 0);
    assert(lseek(fd, 0, SEEK_SET) == 0 && read(fd, nowhere, 50) == -1);
    assert(lseek(fd, 0, SEEK_CUR) == 0 && read(fd, again, 0) == 0);
    close(fd);
}

static void traced(void) {
    char path[64], line[64];
    int status, child = fork();
    if (child == 0) {
        assert(ptrace(PTRACE_TRACEME, 0, 0, 0) == 0);
        raise(SIGSTOP);
        snprintf(line, sizeof line, "TracerPid:\t%d", getppid());
        load("/proc/self/status");
        _exit(has(line) && has("State:\tR (running)") ? 0 : 1);
    }
    assert(waitpid(child, &status, 0) == child && WIFSTOPPED(status));
    snprintf(path, sizeof path, "/proc/%d/status", child);
    snprintf(line, sizeof line, "TracerPid:\t%d", getpid());
    load(path);
    assert(has(line) && has("State:\tt (tracing stop)"));
    assert(ptrace(PTRACE_CONT, child, 0, 0) == 0);
    assert(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

// `/proc` knows the first process of a namespace by another id than that does itself.
static void in_namespace(void) {
    int status, child = fork();
    if (child == 0) {
        // Not everybody may.
        if (unshare(CLONE_NEWUSER | CLONE_NEWPID) != 0)
            _exit(0);
        int first = fork();
        if (first == 0) {
            check_free("/proc/self/status");
            _exit(0);
        }
        assert(waitpid(first, &status, 0) == first);
        _exit(status != 0);
    }
    assert(waitpid(child, &status, 0) == child && status == 0);
}

static int filters(void) {
    load("/proc/self/status");
    return atoi(strstr(text, "Seccomp_filters:") + strlen("Seccomp_filters:"));
}

static void filtered(void) {
    int before = filters();
    struct sock_filter all = BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
    struct sock_fprog program = {1, &all};
    assert(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0);
    load("/proc/self/status");
    assert(has("NoNewPrivs:\t1") && has("TracerPid:\t0"));
    assert(syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &program) == 0);
    assert(filters() == before + 1 && has("Seccomp:\t2"));
}

int main(void) {
    check_free("/proc/self/status");
    assert(has("State:\tR (running)"));
    pieces();
    pthread_t other;
    assert(pthread_create(&other, NULL, thread, NULL) == 0 && pthread_join(other, NULL) == 0);
    traced();
    in_namespace();
    filtered();
    puts("ok");
    return 0;
}
