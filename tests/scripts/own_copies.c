// BUILD: -pthread
// A program and a library that is linked to it or loaded later, each with variables of which every thread has its own copy.
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#ifdef LIBRARY
__thread long library_own = 70;
// Too much to be given to every thread in advance.
__thread char large[1 << 20];

long *of_library(void) {
    large[0] = 1;
    return &library_own;
}
#else
__thread char before[40] __attribute__((aligned(64)));
__thread int my_own = 3;
static __thread int zeroed;
static pthread_barrier_t barrier;
static long *(*of_library)(void);

static void stop_here(long number) {
    printf("%d %d\n", my_own, zeroed);
}

static void *worker(void *arg) {
    long number = (long)arg;
    pthread_barrier_wait(&barrier);
    my_own += (int)number;
    zeroed = 100 * (int)number;
    before[0] = (char)number;
    errno = (int)number + 20;
    if (of_library)
        *of_library() += number;
    pthread_barrier_wait(&barrier);
    if (number == 2)
        stop_here(number);
    pthread_barrier_wait(&barrier);
    return 0;
}

int main(int argc, char **argv) {
    pthread_t threads[2];
    pthread_barrier_init(&barrier, 0, 3);
    for (long i = 0; i < 2; i++)
        pthread_create(&threads[i], 0, worker, (void *)(i + 1));
#ifndef STATIC
    if (argc > 1) {
        // The memory of an earlier library's number has to be told from this one's.
        void *first = dlopen(argv[1], RTLD_NOW);
        long *(*of_first)(void) = (long *(*)(void))dlsym(first, "of_library");
        *of_first() = 5;
        dlclose(first);
        void *second = dlopen(argv[1], RTLD_NOW);
        of_library = (long *(*)(void))dlsym(second, "of_library");
    }
#endif
    errno = 9;
    pthread_barrier_wait(&barrier);
    pthread_barrier_wait(&barrier);
    pthread_barrier_wait(&barrier);
    for (int i = 0; i < 2; i++)
        pthread_join(threads[i], 0);
    puts("ok");
    return 0;
}
#endif
