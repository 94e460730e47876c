// BUILD: -pthread
// Instructions that repeat themselves, long and short, forward and back, in three threads.
#include <pthread.h>
#include <stdio.h>
#include <string.h>

enum { SIZE = 1 << 16 };
static unsigned char from[3][SIZE], to[3][SIZE];

static void *work(void *arg) {
    long me = (long)arg, sum = 0;
    for (int round = 0; round < 1000; round++) {
        unsigned char *source = from[me], *target = to[me];
        long length = round % 7 ? SIZE : round % 100 + 1, left = length;
        __asm__ volatile("rep stosb" : "+D"(source), "+c"(left) : "a"(round) : "memory");
        source = from[me], left = length;
        __asm__ volatile("rep movsb" : "+S"(source), "+D"(target), "+c"(left) : : "memory");
        source = from[me] + length - 1, target = to[me] + length - 1, left = length / 16 + 1;
        __asm__ volatile("std\n rep movsb\n cld" : "+S"(source), "+D"(target), "+c"(left) : : "memory", "cc");
        to[me][length - 1] ^= 1;
        source = from[me], target = to[me], left = length;
        __asm__ volatile("repe cmpsb" : "+S"(source), "+D"(target), "+c"(left) : : "memory", "cc");
        sum += left;
        target = to[me], left = length;
        __asm__ volatile("repne scasb" : "+D"(target), "+c"(left) : "a"(round ^ 1) : "memory", "cc");
        sum += left;
    }
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
