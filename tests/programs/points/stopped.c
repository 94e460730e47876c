// BUILD: -pthread
// A process that is stopped in the middle of its own code, threads and instructions that repeat themselves included, and another that
// changes the memory they share meanwhile, then lets it go on. By whom it is stopped: another process, itself, a thread of its own.
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define STOPS 5

struct shared {
    volatile long stops, over;
    volatile unsigned char bytes[1 << 16];
};

static struct shared *shared;
static volatile long threads_ran, own_stops;

static void check(int ok, const char *what) {
    if (!ok) {
        printf("failed: %s, errno %d\n", what, errno);
        exit(1);
    }
}

static void pauses(long nanos) {
    struct timespec wait = {0, nanos};
    while (nanosleep(&wait, &wait) == -1 && errno == EINTR) {
    }
}

// Waits until the process is stopped; its memory changes only while it is.
static void controls(pid_t worker) {
    for (int i = 0; i < STOPS; i++) {
        pauses(15000000 + 1000000 * i);
        check(kill(worker, SIGSTOP) == 0, "kill");
        int status = 0;
        check(waitpid(worker, &status, WUNTRACED) == worker && WIFSTOPPED(status), "stopped");
        for (int at = i; at < 1 << 16; at += 97) shared->bytes[at]++;
        shared->stops++;
        do {
            check(kill(worker, SIGCONT) == 0, "kill");
            check(waitpid(worker, &status, WCONTINUED | WUNTRACED) == worker, "waitpid");
            // It may have stopped itself again at once.
        } while (!WIFCONTINUED(status));
    }
    shared->over = 1;
}

static void *adds(void *arg) {
    static unsigned char copy[1 << 16];
    long sum = 0;
    while (!shared->over) {
        for (int at = 0; at < 1 << 16; at++) sum += shared->bytes[at] * at;
        unsigned long count = sizeof copy;
        void *to = copy;
        const void *from = (void *)shared->bytes;
        __asm__ volatile("rep movsb" : "+c"(count), "+D"(to), "+S"(from) : : "memory");
        sum += copy[sum & 0xffff];
        threads_ran++;
    }
    return (void *)sum;
}

static void *stops_all(void *arg) {
    for (int i = 0; i < 3; i++) {
        pauses(7000000);
        own_stops++;
        // Whoever gets it, all stop; the controller lets them go on when its own turn has come.
        raise(SIGSTOP);
    }
    return arg;
}

static void work(int threads) {
    pthread_t tids[4];
    for (int i = 0; i < threads; i++) pthread_create(tids + i, 0, adds, 0);
    pthread_t stopper;
    if (threads > 1) pthread_create(&stopper, 0, stops_all, 0);
    void *sum = adds(0);
    for (int i = 0; i < threads; i++) pthread_join(tids[i], &sum);
    if (threads > 1) pthread_join(stopper, 0);
    _exit(threads_ran > 0 && shared->stops == STOPS ? 7 : 1);
}

int main(void) {
    shared = mmap(0, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    for (int threads = 0; threads < 3; threads++) {
        memset(shared, 0, sizeof *shared);
        pid_t worker = fork();
        if (worker == 0) work(threads);
        controls(worker);
        int status = 0;
        pid_t found;
        // Its own stops may come last.
        while ((found = waitpid(worker, &status, WUNTRACED)) == worker && WIFSTOPPED(status)) kill(worker, SIGCONT);
        check(found == worker && WIFEXITED(status) && WEXITSTATUS(status) == 7, "ended");
    }
    printf("stopped %d times\n", 3 * STOPS);
    return 0;
}
