// BUILD: -pthread -Wl,-z,lazy
// Functions are found at their first call, while registers of another thread are in use and not: what the linker leaves on the stack.
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static volatile int done;
static volatile double sum = 1;

static void handler(int number) {
    (void)number;
}

static void *spin(void *all) {
    volatile unsigned long state = getpid() + (unsigned long)all;
    while (!done) {
        state = state * 33 + 1;
        if (state % 1000003 == 0)
            sum *= 1.5;
    }
    return (void *)strtoul("7", NULL, 10);
}

int main(void) {
    pthread_t others[2];
    signal(SIGUSR1, handler);
    for (long i = 0; i < 2; i++)
        pthread_create(&others[i], NULL, spin, (void *)i);
    volatile unsigned long count = 0;
    for (long i = 0; i < 10000000; i++)
        count += i;
    char word[16];
    snprintf(word, sizeof word, "%d", atoi("12"));
    for (long i = 0; i < 10000000; i++)
        count += strlen(word);
    done = 1;
    void *last = NULL;
    for (int i = 0; i < 2; i++)
        pthread_join(others[i], &last);
    printf("%lu %ld\n", count, (long)last);
}
