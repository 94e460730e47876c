// A polite process forks beside two that are busy, so that it is slow to get on; no child may be lost.
#include <signal.h>
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

static pid_t busy(void) {
    pid_t child = fork();
    if (child == 0) {
        for (;;) {
            for (volatile int i = 0; i < 20000; i++) {
            }
            getppid();
        }
    }
    return child;
}

int main(void) {
    int ended = 0;
    pid_t others[2] = {busy(), busy()};
    if (nice(8) != 8) return 1;
    for (int i = 0; i < 3; i++) {
        pid_t child = fork();
        if (child == 0) _exit(7);
        int status = 0;
        if (waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 7) ended++;
    }
    for (int i = 0; i < 2; i++) kill(others[i], SIGKILL), waitpid(others[i], 0, 0);
    printf("%d of 3\n", ended);
    return 0;
}
