// BUILD: -O1 -pthread
// Two threads that increment one variable without a lock, in several instructions: what is lost depends on where each was interrupted.
#include <pthread.h>
#include <stdio.h>

static volatile long counter;

static void *work(void *arg) {
    for (long i = 0; i < 20000000; i++) {
        long seen = counter;
        __asm__ volatile("" : "+r"(seen));
        counter = seen + 1;
    }
    return 0;
}

int main(void) {
    pthread_t threads[2];
    for (int i = 0; i < 2; i++)
        pthread_create(&threads[i], 0, work, 0);
    for (int i = 0; i < 2; i++)
        pthread_join(threads[i], 0);
    printf("counted %ld, lost %ld\n", counter, 40000000 - counter);
    return 0;
}
