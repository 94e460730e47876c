// BUILD: -O1 -pthread
// The first thread spins, without a call, until another has computed something: it must be interrupted for that to be.
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>

static atomic_int done;
static volatile long sum;

static void *work(void *arg) {
    for (long i = 0; i < 50000000; i++)
        sum += i;
    done = 1;
    return 0;
}

int main(void) {
    pthread_t thread;
    pthread_create(&thread, 0, work, 0);
    while (!atomic_load_explicit(&done, memory_order_acquire))
        ;
    pthread_join(thread, 0);
    printf("sum %ld\n", sum);
    return 0;
}
