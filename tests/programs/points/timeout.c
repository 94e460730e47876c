// BUILD: -pthread
// A timeout that is far too long to matter, unless the only thread that could run does not: fails when the worker makes no progress for
// half a second while the main thread sleeps.
#include <pthread.h>
#include <semaphore.h>
#include <time.h>

static sem_t done;

static void *work(void *arg) {
    for (volatile int i = 0; i < 1000; i++);
    sem_post(&done);
    return arg;
}

int main(void) {
    pthread_t worker;
    struct timespec until;
    sem_init(&done, 0, 0);
    pthread_create(&worker, 0, work, 0);
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_nsec += 500000000;
    until.tv_sec += until.tv_nsec / 1000000000;
    until.tv_nsec %= 1000000000;
    return sem_timedwait(&done, &until) != 0;
}
