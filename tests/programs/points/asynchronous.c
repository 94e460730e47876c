// Signals that come at arbitrary instructions: in tight loops, in loops whose registers repeat and only memory differs, in vector code,
// in string instructions, in recursion, with handlers that jump out, nest, and run on a stack of their own.
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>

static volatile sig_atomic_t seen;
static volatile long counter;
static sigjmp_buf out;
static volatile int jumping;
static char from[1 << 20], to[1 << 20];

static void handler(int signal) {
    volatile char scratch[300];
    memset((char *)scratch, signal, sizeof scratch);
    seen++;
    if (jumping) siglongjmp(out, 1);
}

static long recurse(long n) { return n < 2 ? n : recurse(n - 1) + recurse(n - 2); }

static void every(long microseconds) {
    struct itimerval timer = {{0, microseconds}, {0, microseconds}};
    setitimer(ITIMER_REAL, &timer, 0);
}

static void until(int more) {
    int goal = seen + more;
    double x[4] = {1, 2, 3, 4};
    while (seen < goal) {
        // Only memory tells one turn from the next.
        for (int i = 0; i < 100000; i++) counter++;
        for (int i = 0; i < 20000; i++)
            for (int j = 0; j < 4; j++) x[j] = x[j] * 1.0000001 + 0.25;
        __builtin_memcpy(to, from, sizeof to);
        __asm__ volatile("rep movsb" : : "S"(from), "D"(to), "c"(sizeof to) : "memory");
        recurse(15);
    }
    from[0] = (char)x[0];
}

int main(void) {
    stack_t stack = {.ss_sp = malloc(1 << 16), .ss_size = 1 << 16};
    sigaltstack(&stack, 0);
    struct sigaction action = {.sa_handler = handler, .sa_flags = SA_RESTART};
    sigaction(SIGALRM, &action, 0);
    every(3000);
    until(15);
    action.sa_flags |= SA_ONSTACK;
    sigaction(SIGALRM, &action, 0);
    until(10);
    action.sa_flags |= SA_NODEFER;
    sigaction(SIGALRM, &action, 0);
    jumping = 1;
    for (volatile int i = 0; i < 5;)
        if (sigsetjmp(out, 1) == 0)
            for (;;);
        else
            i++;
    jumping = 0;
    every(0);
    printf("%d %s\n", (int)seen, counter > 0 ? "counted" : "not");
    fflush(stdout);
    signal(SIGALRM, SIG_DFL);
    every(20000);
    // Killed just behind a store, almost surely.
    for (;;) __asm__ volatile(".rept 32\n incq %0\n .endr" : "+m"(counter));
}
