// BUILD: -pthread
// One thread wakes up often and has little to do; three others compute all the time, and then three make calls.
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>

enum { BUSY = 3, WAKES = 50 };
static volatile int done;
static int zero;

static void *computes(void *arg) {
    volatile unsigned long sum = 0;
    while (!done) sum++;
    return NULL;
}

static void *calls(void *arg) {
    char bytes[16];
    while (!done) read(zero, bytes, sizeof bytes);
    return NULL;
}

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec + time.tv_nsec / 1e9;
}

// In microseconds, each time.
static int wakes_beside(void *(*busy)(void *)) {
    pthread_t threads[BUSY];
    done = 0;
    for (int i = 0; i < BUSY; i++) pthread_create(&threads[i], NULL, busy, NULL);
    double begun = now();
    for (int i = 0; i < WAKES; i++) usleep(1000);
    double took = now() - begun;
    done = 1;
    for (int i = 0; i < BUSY; i++) pthread_join(threads[i], NULL);
    return took * 1e6 / WAKES;
}

int main(void) {
    zero = open("/dev/zero", O_RDONLY);
    int computing = wakes_beside(computes);
    printf("%d and %d\n", computing, wakes_beside(calls));
}
