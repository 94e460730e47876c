// BUILD: -pthread
// Children that make calls, threads, processes and programs, handle signals and map memory, and tell in shared memory how far they came, are killed
// from outside wherever they are. So many, of one kind if that is given.
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { KINDS = 8, STEPS = 8 };
static volatile unsigned long *steps;
static int zero, ends[2];

static void on_signal(int signal) { steps[5]++; }

static void *comes_and_goes(void *arg) {
    steps[6]++;
    return NULL;
}

static void *stays(void *arg) {
    for (;;) {
        steps[7]++;
        getppid();
    }
}

static void calls(void) {
    char buffer[64];
    getppid();
    steps[1]++;
    read(zero, buffer, sizeof buffer);
    steps[2]++;
    write(ends[1], buffer, 8);
    steps[3]++;
    read(ends[0], buffer, 8);
    steps[4]++;
}

static void once(int kind) {
    pthread_t thread;
    switch (kind) {
    case 0: calls(); break;
    case 1:
        if (!fork()) _exit(0);
        wait(NULL);
        break;
    case 2:
        if (!vfork()) {
            execl("/bin/true", "true", NULL);
            _exit(9);
        }
        wait(NULL);
        break;
    case 3: {
        char *page = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        page[0] = 1;
        mprotect(page, 4096, PROT_READ);
        munmap(page, 4096);
        break;
    }
    case 4: __builtin_ia32_rdtsc(); break;
    case 5: raise(SIGUSR1); break;
    case 6:
        if (!pthread_create(&thread, NULL, comes_and_goes, NULL)) pthread_join(thread, NULL);
        break;
    case 7: nanosleep(&(struct timespec){0, 10000}, NULL); break;
    }
}

static void work(int kind, int alone) {
    pthread_t thread;
    signal(SIGUSR1, on_signal);
    if (!alone) pthread_create(&thread, NULL, stays, NULL);
    for (;;) {
        steps[0]++;
        once(kind);
    }
}

int main(int argc, char **argv) {
    steps = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    zero = open("/dev/zero", O_RDONLY);
    pipe(ends);
    for (int i = 0; i < atoi(argv[1]); i++) {
        for (int j = 0; j < STEPS; j++)
            steps[j] = 0;
        // Every second one makes nothing but calls.
        int kind = argc > 2 ? atoi(argv[2]) : i % 2 ? i / 2 % KINDS : 0;
        int child = fork();
        if (child == 0) work(kind, i % 4 != 3);
        printf("%d\n", child);
        fflush(stdout);
        int status;
        waitpid(child, &status, 0);
        printf("%d of %d:", status, kind);
        for (int j = 0; j < STEPS; j++)
            printf(" %lu", steps[j]);
        puts("");
        fflush(stdout);
    }
    puts("ended");
}
