// `cpuid` in a loop: where it does not trap, a program is most often interrupted just behind it.
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

static long sum;

static void *run(void *p)
{
    for (long i = 0; i < 3000; i++) {
        unsigned a = 0, b, c = 0, d;
        __asm__ volatile("cpuid" : "+a"(a), "=b"(b), "+c"(c), "=d"(d));
        __atomic_add_fetch(&sum, b & 1, __ATOMIC_RELAXED);
    }
    return p;
}

int main(void)
{
    pthread_t thread;
    if (pthread_create(&thread, 0, run, 0))
        abort();
    run(0);
    pthread_join(thread, 0);
    puts("identified: done");
    return 0;
}
