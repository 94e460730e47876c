/* A loop that counts in memory where an image of registers was left behind, its header still whole. Prints "counted". */
#include <immintrin.h>
#include <signal.h>
#include <stdio.h>
#include <sys/time.h>

static char image[4096] __attribute__((aligned(4096)));

static void on_alarm(int signal)
{
    (void)signal;
}

__attribute__((target("xsavec"))) static void save(void)
{
    __asm__ volatile("xsavec %0" : "=m"(image) : "a"(6), "d"(0) : "memory");
}

int main(void)
{
    if (!__builtin_cpu_supports("avx")) {
        puts("counted");
        return 0;
    }
    save();
    /* Over the upper halves of the vector registers. */
    unsigned *frame = (unsigned *)(image + 640);
    frame[0] = 7;
    frame[2] = 0;
    signal(SIGALRM, on_alarm);
    struct itimerval often = {{0, 5000}, {0, 5000}};
    setitimer(ITIMER_REAL, &often, NULL);
    __asm__ volatile("1: incl %0; cmpl $200000000, %0; jne 1b" : "+m"(frame[2]) : : "cc", "memory");
    puts("counted");
    return 0;
}
