// BUILD: -O1 -pthread
// Deep and wide recursion in three threads: many frames with the same contents.
#include <pthread.h>
#include <stdio.h>

__attribute__((noinline)) static long fib(int n) { return n < 2 ? n : fib(n - 1) + fib(n - 2); }

__attribute__((noinline)) static long ackermann(long m, long n) {
    return m == 0 ? n + 1 : n == 0 ? ackermann(m - 1, 1) : ackermann(m - 1, ackermann(m, n - 1));
}

static void *work(void *arg) {
    long sum = 0;
    for (int i = 0; i < 2; i++)
        sum += fib(29) + ackermann(2, 400);
    return (void *)sum;
}

int main(void) {
    pthread_t threads[3];
    long sum = 0;
    for (long i = 0; i < 3; i++)
        pthread_create(&threads[i], 0, work, (void *)i);
    for (int i = 0; i < 3; i++) {
        void *result;
        pthread_join(threads[i], &result);
        sum += (long)result;
    }
    printf("%ld\n", sum);
    return 0;
}
