// Starts programs one after another in a process group of its own, which is stopped and let go on from outside all the time.
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

int main(void) {
    int status, failed = 0;
    setsid();
    printf("%d\n", getpid());
    fflush(stdout);
    for (int i = 0; i < 50; i++) {
        pid_t child = fork();
        if (!child) {
            execl("/bin/true", "true", NULL);
            _exit(9);
        }
        pid_t ended = waitpid(child, &status, 0);
        if (ended != child || status) failed++, printf("%d: %m, %x\n", ended, status);
    }
    printf("%d failed\nended\n", failed);
    return 0;
}
