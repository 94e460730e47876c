// BUILD: -pthread
// A lock whose owner inherits priorities: the kernel marks it when somebody begins to wait. And calls that the recorder answers in threads' first
// steps, while others run.
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <sys/prctl.h>

static pthread_mutex_t lock;
static volatile int told;
static volatile unsigned long work = 1;

static void *wait_for_it(void *unused) {
    (void)unused;
    cpu_set_t set;
    int state = 0;
    CPU_ZERO(&set);
    sched_getaffinity(0, sizeof set, &set);
    prctl(PR_GET_TSC, &state);
    pthread_mutex_lock(&lock);
    told += CPU_COUNT(&set) > 0 && state == PR_TSC_ENABLE;
    pthread_mutex_unlock(&lock);
    return NULL;
}

int main(void) {
    pthread_mutexattr_t kind;
    pthread_mutexattr_init(&kind);
    pthread_mutexattr_setprotocol(&kind, PTHREAD_PRIO_INHERIT);
    pthread_mutex_init(&lock, &kind);
    pthread_t others[3];
    pthread_mutex_lock(&lock);
    for (int i = 0; i < 3; i++)
        pthread_create(&others[i], NULL, wait_for_it, NULL);
    for (long i = 0; i < 200000000; i++)
        work = work * 33 + 1;
    pthread_mutex_unlock(&lock);
    for (int i = 0; i < 3; i++)
        pthread_join(others[i], NULL);
    printf("told %d\n", told);
}
