// BUILD: -O2 -pthread
// Four threads that compute, each for itself. Argument: millions of rounds of each.
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

static long millions = 15;

static void *work(void *arg) {
    uint64_t x = (uintptr_t)arg;
    for (long i = 0; i < millions * 1000000; i++)
        x = (x ^ x >> 29) * 0xBF58476D1CE4E5B9ull + i;
    return (void *)(uintptr_t)x;
}

int main(int argc, char **argv) {
    pthread_t threads[4];
    uint64_t mixed = 0;
    if (argc > 1)
        millions = atol(argv[1]);
    for (long i = 0; i < 4; i++)
        pthread_create(&threads[i], 0, work, (void *)(i + 1));
    for (int i = 0; i < 4; i++) {
        void *result;
        pthread_join(threads[i], &result);
        mixed ^= (uintptr_t)result;
    }
    printf("%lx\n", (long)mixed);
    return 0;
}
