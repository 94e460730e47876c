// BUILD: -O2 -pthread
// Tight loops in registers, with a lock and an atomic counter now and then, and vector arithmetic.
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static atomic_long total;
static long guarded;
static double sums[4][64];

static void *work(void *arg) {
    long me = (long)arg;
    uint64_t x = me * 0x9E3779B97F4A7C15ull + 1;
    for (int i = 0; i < 25000; i++) {
        for (int k = 0; k < 300; k++) {
            x ^= x << 13;
            x ^= x >> 7;
            x ^= x << 17;
        }
        for (int k = 0; k < 64; k++)
            sums[me][k] += (double)(x & 0xff) * k;
        atomic_fetch_add(&total, x & 7);
        if (i % 512 == 0) {
            pthread_mutex_lock(&lock);
            guarded += x & 15;
            pthread_mutex_unlock(&lock);
        }
    }
    return (void *)x;
}

int main(void) {
    pthread_t threads[4];
    uint64_t mixed = 0;
    double sum = 0;
    for (long i = 0; i < 4; i++)
        pthread_create(&threads[i], 0, work, (void *)i);
    for (int i = 0; i < 4; i++) {
        void *result;
        pthread_join(threads[i], &result);
        mixed ^= (uint64_t)result;
        sum += sums[i][63];
    }
    printf("%ld %ld %lx %.0f\n", guarded, (long)total, mixed, sum);
    return 0;
}
