// BUILD: -pthread
// Loops whose rounds have the same registers, whatever round it is: only memory tells them apart.
#include <pthread.h>
#include <stdio.h>

static volatile long common, own[3];

static void *work(void *arg) {
    volatile long *left = arg;
    for (int part = 0; part < 3; part++) {
        *left = 3000000;
        __asm__ volatile("1: addq $1, (%1)\n decq (%0)\n jnz 1b" : : "r"(left), "r"(&common) : "memory", "cc");
        *left = 3000000;
        __asm__ volatile("1: addq $1, (%1)\n decq (%0)\n jnz 1b" : : "r"(left), "r"(&common) : "memory", "cc");
    }
    return 0;
}

int main(void) {
    pthread_t threads[3];
    for (int i = 0; i < 3; i++)
        pthread_create(&threads[i], 0, work, (void *)&own[i]);
    for (int i = 0; i < 3; i++)
        pthread_join(threads[i], 0);
    // An increment is one instruction, and one thread runs at a time.
    printf("%ld\n", common);
    return common != 3 * 3 * 2 * 3000000L;
}
