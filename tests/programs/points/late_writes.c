// BUILD: -pthread
// Calls that wait fill memory which another thread looks at meanwhile, in every usual way; and forks that copy such memory.
#define _GNU_SOURCE
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/select.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define ROUNDS 2

static volatile unsigned char seen[1 << 17];
static volatile long spun, sum;
static int pipes[2], sockets[2];

static void check(int ok, const char *what) {
    if (!ok) {
        printf("failed: %s, errno %d\n", what, errno);
        exit(1);
    }
}

// Another process sends, a piece at a time, while this one waits and looks.
static pid_t sender(int fd, int pieces, size_t each) {
    pid_t child = fork();
    if (child == 0) {
        char *bytes = malloc(each);
        memset(bytes, 'x', each);
        for (int i = 0; i < pieces; i++) {
            struct timespec wait = {0, 3000000};
            nanosleep(&wait, 0);
            for (size_t done = 0; done < each;) done += write(fd, bytes + done, each - done);
        }
        _exit(pieces);
    }
    return child;
}

// Counts until the byte changes: how far it gets depends on when the kernel writes it.
static void *looks(void *arg) {
    volatile unsigned char *at = arg;
    long n = 0;
    while (*at == 0) n++;
    spun += n;
    return 0;
}

static pthread_t looker(volatile void *at) {
    pthread_t thread;
    check(pthread_create(&thread, 0, looks, (void *)at) == 0, "pthread_create");
    return thread;
}

static void ends(pthread_t thread, pid_t child, int status) {
    int code = 0;
    check(pthread_join(thread, 0) == 0, "pthread_join");
    check(waitpid(child, &code, 0) == child && WEXITSTATUS(code) == status, "waitpid");
    memset((void *)seen, 0, sizeof seen);
}

static void reads(void) {
    pid_t child = sender(pipes[1], 1, 100);
    pthread_t thread = looker(seen + 99);
    check(read(pipes[0], (void *)seen, 4096) == 100, "read");
    ends(thread, child, 1);
    child = sender(pipes[1], 1, 100);
    thread = looker(seen + 5000);
    struct iovec parts[2] = {{(void *)(seen + 10), 50}, {(void *)(seen + 4960), 100}};
    check(readv(pipes[0], parts, 2) == 100 && seen[59] == 'x' && seen[60] == 0, "readv");
    ends(thread, child, 1);
}

static void receives(void) {
    pid_t child = sender(sockets[1], 5, 20000);
    pthread_t thread = looker(seen + 99999);
    check(recv(sockets[0], (void *)seen, 100000, MSG_WAITALL) == 100000, "recv");
    ends(thread, child, 5);
    child = sender(sockets[1], 1, 30);
    struct msghdr *message = (void *)(seen + 8192);
    struct iovec parts[2] = {{(void *)seen, 10}, {(void *)(seen + 100), 50}};
    message->msg_iov = parts;
    message->msg_iovlen = 2;
    message->msg_control = (void *)(seen + 9000);
    message->msg_controllen = 64;
    thread = looker(seen + 119);
    check(recvmsg(sockets[0], message, 0) == 30, "recvmsg");
    check(message->msg_iov == parts && message->msg_control == seen + 9000, "pointers stay");
    check(message->msg_controllen == 0 && parts[1].iov_base == seen + 100, "lengths are written");
    ends(thread, child, 1);
}

static void waits(void) {
    char byte;
    pid_t child = sender(pipes[1], 1, 1);
    struct pollfd *fds = (void *)seen;
    fds[0] = (struct pollfd){pipes[0], POLLIN, 0};
    pthread_t thread = looker(&fds[0].revents);
    check(poll(fds, 1, 100000) == 1 && fds[0].fd == pipes[0], "poll");
    check(read(pipes[0], &byte, 1) == 1, "read");
    ends(thread, child, 1);

    int group = epoll_create1(0);
    struct epoll_event event = {EPOLLIN, {.u64 = 0x0101010101010101}};
    check(epoll_ctl(group, EPOLL_CTL_ADD, pipes[0], &event) == 0, "epoll_ctl");
    child = sender(pipes[1], 1, 1);
    thread = looker(seen + 4);
    check(epoll_wait(group, (void *)seen, 8, 100000) == 1, "epoll_wait");
    check(read(pipes[0], &byte, 1) == 1, "read");
    ends(thread, child, 1);

    child = sender(pipes[1], 3, 1);
    volatile int *status = (void *)seen;
    thread = looker((volatile char *)status + 1);
    check(waitpid(child, (int *)status, 0) == child && WEXITSTATUS(*status) == 3, "waitpid");
    check(pthread_join(thread, 0) == 0, "pthread_join");
    memset((void *)seen, 0, 16);
    for (int i = 0; i < 3; i++) check(read(pipes[0], &byte, 1) == 1, "read");

    child = sender(pipes[1], 1, 1);
    fd_set *set = (void *)seen;
    struct timeval *left = (void *)(seen + 4096);
    FD_SET(pipes[0], set);
    *left = (struct timeval){100, 0};
    check(select(pipes[0] + 1, set, 0, 0, left) == 1 && left->tv_sec < 100, "select");
    check(read(pipes[0], &byte, 1) == 1, "read");
    check(waitpid(child, 0, 0) == child, "waitpid");
    close(group);
}

// A bad buffer fails as it does without threads; a part of one that is there is filled.
static void *fails(void *arg) {
    char *page = mmap(0, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    mprotect(page + 4096, 4096, PROT_READ);
    check(write(pipes[1], "abc", 3) == 3, "write");
    check(read(pipes[0], (void *)8, 3) == -1 && errno == EFAULT, "read to nowhere");
    check(write(pipes[1], "abc", 3) == 3, "write");
    check(read(pipes[0], page, 8192) >= 3 && page[2] == 'c', "read near an end");
    check(recvmsg(sockets[0], (void *)8, 0) == -1 && errno == EFAULT, "recvmsg of no message");
    return arg;
}

// Forks while other threads' calls write: a child has memory from before or after, as the recording says.
static void *forks(void *arg) {
    for (int i = 0; i < 20; i++) {
        pid_t child = fork();
        if (child == 0) {
            long n = 0;
            for (int at = 0; at < 4096; at++) n += seen[at];
            for (volatile int j = 0; j < 20000; j++) {}
            _exit(n & 63);
        }
        int status = 0;
        check(waitpid(child, &status, 0) == child, "waitpid");
        sum += WEXITSTATUS(status);
    }
    return arg;
}

static void copies(void) {
    pthread_t threads[2];
    pid_t child = sender(pipes[1], 40, 64);
    for (int i = 0; i < 2; i++) pthread_create(threads + i, 0, forks, 0);
    for (int done = 0; done < 40 * 64;) done += read(pipes[0], (void *)(seen + done), 4096);
    for (int i = 0; i < 2; i++) pthread_join(threads[i], 0);
    check(waitpid(child, 0, 0) == child, "waitpid");
    memset((void *)seen, 0, sizeof seen);
}

int main(void) {
    check(pipe(pipes) == 0 && socketpair(AF_UNIX, SOCK_STREAM, 0, sockets) == 0, "pipe");
    for (int i = 0; i < ROUNDS; i++) {
        reads();
        receives();
        waits();
    }
    pthread_t thread = looker(seen);
    pthread_t failing;
    pthread_create(&failing, 0, fails, 0);
    pthread_join(failing, 0);
    seen[0] = 1;
    pthread_join(thread, 0);
    seen[0] = 0;
    copies();
    printf("spun %s\n", spun > 0 ? "on" : "not at all");
    return 0;
}
