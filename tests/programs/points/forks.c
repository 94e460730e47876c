// BUILD: -pthread
// Threads that fork, wait, and run commands, all at once. The leaders of their children leave a thread behind that never ends by itself.
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

static void *spins(void *arg) {
    for (;;) {
    }
    return arg;
}

static void *forks(void *arg) {
    for (int i = 0; i < 3; i++) {
        pid_t child = fork();
        if (child == 0) {
            pthread_t thread;
            pthread_create(&thread, 0, spins, 0);
            usleep(3000);
            _exit(i);
        }
        int status;
        waitpid(child, &status, 0);
        *(int *)arg += WEXITSTATUS(status);
        if (system("exit 3") != 3 << 8) *(int *)arg = -100;
    }
    return 0;
}

int main(void) {
    int sums[4] = {0};
    pthread_t threads[4];
    for (int i = 0; i < 4; i++) pthread_create(threads + i, 0, forks, sums + i);
    for (int i = 0; i < 4; i++) pthread_join(threads[i], 0);
    printf("%d %d %d %d\n", sums[0], sums[1], sums[2], sums[3]);
    return 6;
}
