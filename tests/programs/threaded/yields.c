// BUILD: -O1 -pthread
// Two threads that yield after every note: on one processor each yield lets the other go on.
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>

enum { NOTES = 200 };
static atomic_int count, here;
static int notes[2 * NOTES];

static void *work(void *arg) {
    atomic_fetch_add(&here, 1);
    while (here < 2)
        sched_yield();
    for (int i = 0; i < NOTES; i++) {
        notes[atomic_fetch_add(&count, 1)] = (int)(long)arg;
        sched_yield();
    }
    return 0;
}

int main(void) {
    pthread_t threads[2];
    int changes = 0;
    for (long i = 0; i < 2; i++)
        pthread_create(&threads[i], 0, work, (void *)i);
    for (int i = 0; i < 2; i++)
        pthread_join(threads[i], 0);
    for (int i = 1; i < 2 * NOTES; i++)
        changes += notes[i] != notes[i - 1];
    printf("%d changes of %d\n", changes, 2 * NOTES - 1);
    return 0;
}
