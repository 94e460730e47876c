// BUILD: -O2 -pthread
// Four threads that compute, share an atomic counter, and take a lock now and then. Argument: rounds of each.
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static atomic_long total;
static long guarded;
static int rounds = 40000;

static void *work(void *arg) {
    uint64_t x = (uintptr_t)arg * 0x9E3779B97F4A7C15ull + 1;
    for (int i = 0; i < rounds; i++) {
        for (int k = 0; k < 200; k++) {
            x ^= x << 13;
            x ^= x >> 7;
            x ^= x << 17;
            if ((x & 3) == 0)
                x += k;
        }
        atomic_fetch_add(&total, x & 7);
        if (i % 16 == 0) {
            pthread_mutex_lock(&lock);
            guarded += x & 15;
            if (guarded & 1)
                guarded ^= i;
            pthread_mutex_unlock(&lock);
        }
    }
    return (void *)(uintptr_t)x;
}

int main(int argc, char **argv) {
    pthread_t threads[4];
    uint64_t mixed = 0;
    if (argc > 1)
        rounds = atoi(argv[1]);
    for (long i = 0; i < 4; i++)
        pthread_create(&threads[i], 0, work, (void *)(i + 1));
    for (int i = 0; i < 4; i++) {
        void *result;
        pthread_join(threads[i], &result);
        mixed ^= (uintptr_t)result;
    }
    printf("%ld %ld %lx\n", guarded, atomic_load(&total), (long)mixed);
    return 0;
}
