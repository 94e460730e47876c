// BUILD: -O2
// A timer's handler notes how far a computation has come, wherever that is interrupted.
#include <signal.h>
#include <stdio.h>
#include <sys/time.h>

static volatile unsigned long reached, noted[64];
static volatile int count;

static void handler(int signal) {
    if (count < 64)
        noted[count++] = reached;
}

int main(void) {
    struct sigaction action = {.sa_handler = handler};
    struct itimerval often = {{0, 20000}, {0, 20000}}, never = {{0, 0}, {0, 0}};
    unsigned long x = 1;
    sigaction(SIGALRM, &action, 0);
    setitimer(ITIMER_REAL, &often, 0);
    for (unsigned long i = 0; i < 200000000; i++) {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        reached = i;
    }
    setitimer(ITIMER_REAL, &never, 0);
    printf("%d times, %lx", count, x);
    for (int i = 0; i < count; i++)
        printf(" %lu", noted[i]);
    puts("");
    return 0;
}
