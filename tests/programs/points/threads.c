// BUILD: -pthread
// Threads that meet in every usual way: mutexes, condition variables, barriers, spinning, a lost update, thread-local data, many short
// lives, a robust mutex whose owner dies, a detached leader.
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t turned = PTHREAD_COND_INITIALIZER;
static pthread_barrier_t barrier;
static volatile long racy;
static long guarded;
static int turn;
static atomic_int flag;
static __thread long mine;
static pthread_mutex_t robust;

static void *counts(void *arg) {
    for (long i = 0; i < 30000000; i++) {
        racy++;
        mine++;
        if (i % 30000 == 0) {
            pthread_mutex_lock(&lock);
            guarded++;
            pthread_mutex_unlock(&lock);
        }
    }
    pthread_barrier_wait(&barrier);
    return (void *)(mine + (long)arg);
}

static void *ping(void *arg) {
    int me = (int)(long)arg;
    for (int i = 0; i < 200; i++) {
        pthread_mutex_lock(&lock);
        while (turn != me) pthread_cond_wait(&turned, &lock);
        turn = !me;
        pthread_cond_broadcast(&turned);
        pthread_mutex_unlock(&lock);
    }
    return 0;
}

static void *spins(void *arg) {
    while (!atomic_load(&flag)) {
    }
    return arg;
}

static void *dies(void *arg) {
    pthread_mutex_lock(&robust);
    return arg;
}

static void *brief(void *arg) {
    char text[32];
    snprintf(text, sizeof text, "%ld", (long)arg);
    return (void *)strlen(text);
}

static pthread_t leader;

static void *last(void *arg) {
    pthread_join(leader, 0);
    printf("leader gone\n");
    fflush(stdout);
    exit(7);
}

int main(void) {
    pthread_t t[8];
    void *result;
    long sum = 0;
    pthread_barrier_init(&barrier, 0, 4);
    for (long i = 0; i < 4; i++) pthread_create(&t[i], 0, counts, (void *)i);
    for (int i = 0; i < 4; i++) pthread_join(t[i], &result), sum += (long)result;
    printf("sum %ld guarded %ld racy %s\n", sum, guarded, racy <= 120000000 && racy >= 30000000 ? "plausible" : "impossible");

    for (long i = 0; i < 2; i++) pthread_create(&t[i], 0, ping, (void *)i);
    for (int i = 0; i < 2; i++) pthread_join(t[i], 0);

    pthread_create(&t[0], 0, spins, 0);
    sched_yield();
    for (volatile long i = 0; i < 30000000; i++);
    atomic_store(&flag, 1);
    pthread_join(t[0], 0);

    pthread_mutexattr_t attr;
    pthread_mutexattr_init(&attr);
    pthread_mutexattr_setrobust(&attr, PTHREAD_MUTEX_ROBUST);
    pthread_mutex_init(&robust, &attr);
    pthread_create(&t[0], 0, dies, 0);
    pthread_join(t[0], 0);
    printf("owner died %d\n", pthread_mutex_lock(&robust) == EOWNERDEAD);

    long digits = 0;
    for (long i = 0; i < 300; i++) {
        pthread_create(&t[0], 0, brief, (void *)i);
        pthread_join(t[0], &result);
        digits += (long)result;
    }
    printf("digits %ld\n", digits);
    fflush(stdout);

    leader = pthread_self();
    pthread_create(&t[0], 0, last, 0);
    pthread_exit(0);
}
