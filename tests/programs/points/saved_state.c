/* Images that xsavec stores while the processor is free to call components in use or not. Prints "saved". */
#include <immintrin.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/time.h>

enum { SIZE = 4096, SIGNALS = 25 };
static char images[4][SIZE] __attribute__((aligned(SIZE)));
static volatile sig_atomic_t signals;

static void on_alarm(int signal)
{
    (void)signal;
    signals++;
}

/* All SSE registers are 0: some were something else before, some never were. */
__attribute__((target("xsavec,sse2"), noinline)) static void save(char *image, int written)
{
    __asm__ volatile("pxor %%xmm0, %%xmm0; pxor %%xmm1, %%xmm1; pxor %%xmm2, %%xmm2; pxor %%xmm3, %%xmm3\n"
                     "pxor %%xmm4, %%xmm4; pxor %%xmm5, %%xmm5; pxor %%xmm6, %%xmm6; pxor %%xmm7, %%xmm7\n"
                     "pxor %%xmm8, %%xmm8; pxor %%xmm9, %%xmm9; pxor %%xmm10, %%xmm10; pxor %%xmm11, %%xmm11\n"
                     "pxor %%xmm12, %%xmm12; pxor %%xmm13, %%xmm13; pxor %%xmm14, %%xmm14; pxor %%xmm15, %%xmm15\n"
                     "test %1, %1; jz 1f; pcmpeqd %%xmm3, %%xmm3; pxor %%xmm3, %%xmm3; 1: xsavec %0"
                     : "=m"(*(char(*)[SIZE])image)
                     : "r"(written), "a"(6), "d"(0)
                     : "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10",
                       "xmm11", "xmm12", "xmm13", "xmm14", "xmm15", "memory", "cc");
}

int main(void)
{
    if (!__builtin_cpu_supports("avx")) {
        puts("saved");
        return 0;
    }
    memset(images, 0x55, sizeof images);
    struct sigaction action = {.sa_handler = on_alarm};
    sigaction(SIGALRM, &action, NULL);
    struct itimerval often = {{0, 3000}, {0, 3000}};
    setitimer(ITIMER_REAL, &often, NULL);
    for (unsigned turn = 0; signals < SIGNALS; turn++) {
        save(images[turn % 4], turn % 8 < 4);
        for (volatile int i = 0; i < 3000; i++) {
        }
    }
    puts("saved");
    return 0;
}
