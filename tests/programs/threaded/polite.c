// BUILD: -O1 -pthread -D_GNU_SOURCE
// Two threads with the same work, one of which has asked for the lowest priority: how far is it when the other is done?
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <sys/resource.h>
#include <unistd.h>

static atomic_int here;
static volatile int progress[2];
static int polite_then;

static void *work(void *arg) {
    long me = (long)arg;
    if (me && setpriority(PRIO_PROCESS, gettid(), 19) != 0)
        return (void *)1;
    atomic_fetch_add(&here, 1);
    while (here < 2)
        ;
    while (progress[me] < 1000) {
        for (volatile int i = 0; i < 1000000; i++)
            ;
        progress[me]++;
    }
    if (!me)
        polite_then = progress[1];
    return 0;
}

int main(void) {
    pthread_t threads[2];
    int failed = 0;
    for (long i = 0; i < 2; i++)
        pthread_create(&threads[i], 0, work, (void *)i);
    for (int i = 0; i < 2; i++) {
        void *result;
        pthread_join(threads[i], &result);
        failed |= result != 0;
    }
    printf("%d of %d\n", polite_then, progress[1]);
    return failed;
}
