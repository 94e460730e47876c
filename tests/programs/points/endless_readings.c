// BUILD: -O2
// Reads the time stamp counter in several places, and computes, until it is asked to end.
#include <signal.h>
#include <stdio.h>
#include <unistd.h>
#include <x86intrin.h>
static volatile sig_atomic_t ends;
static volatile unsigned long others, told;
static void on_term(int signo) { ends = 1; }
static void on_other(int signo) { others += __rdtsc(); }
int main(void) {
    signal(SIGTERM, on_term), signal(SIGUSR1, on_other), setvbuf(stdout, NULL, _IOLBF, 0);
    printf("%d\n", getpid());
    unsigned long sum = 0, last = 0;
    unsigned processor;
    while (!ends) {
        for (int k = 0; k < 2000; k++) {
            sum += k;
            __asm__ volatile("" : "+r"(sum));
        }
        for (int k = 0; k < 30; k++) {
            unsigned long now = __rdtsc(), then = __rdtscp(&processor);
            if (now <= last || then <= now) return 1;
            last = then;
            sum = sum * 31 + now + then;
        }
    }
    printf("%lx\n%s\n", sum + others, "ended");
    return 0;
}
