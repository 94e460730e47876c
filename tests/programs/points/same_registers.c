/* A loop that keeps everything in memory: whenever a signal comes, the registers are as they were when the handler of the last one
 * returned. Prints "counted". */
#include <signal.h>
#include <stdio.h>
#include <sys/time.h>

enum { SIGNALS = 40 };
static volatile unsigned long turns, seen[SIGNALS];
static volatile long signals;

static void on_alarm(int signal)
{
    (void)signal;
    if (signals < SIGNALS) {
        seen[signals++] = turns;
    }
}

int main(void)
{
    struct sigaction action = {.sa_handler = on_alarm};
    sigaction(SIGALRM, &action, NULL);
    struct itimerval often = {{0, 5000}, {0, 5000}};
    setitimer(ITIMER_REAL, &often, NULL);
    __asm__ volatile("1: incq %0; cmpq %2, %1; jl 1b" : "+m"(turns), "+m"(signals) : "i"(SIGNALS) : "cc", "memory");
    int rising = 1;
    for (int i = 1; i < SIGNALS; i++) {
        rising &= seen[i] >= seen[i - 1];
    }
    puts(rising ? "counted" : "lost");
    return 0;
}
