// BUILD: -pthread
// Reads of much that wait while another thread computes, and that signals interrupt: with EINTR, and so that they begin anew.
#include <assert.h>
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

enum { LENGTH = 4 << 20 };
static int pair[2], ends[2];
static char *into;
static volatile int handled, done;
static volatile unsigned long sum;

static void on_signal(int signo) { handled++; }

static ssize_t reads(int how) {
    struct iovec parts[2] = {{into, LENGTH / 2}, {into + LENGTH / 2, LENGTH / 2}};
    struct msghdr message = {.msg_iov = parts, .msg_iovlen = 2};
    switch (how) {
    case 0: return recv(pair[0], into, LENGTH, 0);
    case 1: return readv(pair[0], parts, 2);
    case 2: return recvmsg(pair[0], &message, 0);
    default: return read(ends[0], into, LENGTH);
    }
}

static void *computes(void *arg) {
    while (!done)
        sum = sum * 33 + 1;
    return NULL;
}

// Signals this thread until its handler has run, then writes what it waits for.
static void *disturbs(void *arg) {
    long how = ((long *)arg)[0];
    pthread_t reader = (pthread_t)((long *)arg)[1];
    int before = handled;
    usleep(3000);
    pthread_kill(reader, SIGUSR1);
    while (handled == before)
        usleep(500);
    usleep(2000);
    assert(write(how < 3 ? pair[1] : ends[1], "some bytes", 10) == 10);
    return NULL;
}

int main(void) {
    into = malloc(LENGTH);
    assert(!socketpair(AF_UNIX, SOCK_STREAM, 0, pair) && !pipe(ends));
    pthread_t computer;
    pthread_create(&computer, NULL, computes, NULL);
    for (int round = 0; round < 24; round++) {
        int how = round % 4, again = round / 4 % 2;
        struct sigaction action = {.sa_handler = on_signal, .sa_flags = again ? SA_RESTART : 0};
        sigaction(SIGUSR1, &action, NULL);
        pthread_t other;
        long arg[2] = {how, (long)pthread_self()};
        pthread_create(&other, NULL, disturbs, arg);
        ssize_t got = reads(how);
        int error = got < 0 ? errno : 0;
        pthread_join(other, NULL);
        if (got < 0)
            assert(error == EINTR && reads(how) == 10);
        printf("%d %d: %zd %d\n", how, again, got, error);
    }
    done = 1;
    pthread_join(computer, NULL);
    return 0;
}
