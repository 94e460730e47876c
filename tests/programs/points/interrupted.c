// BUILD: -pthread
// Threads and a timer that interrupt each other everywhere: between a call and its callee, between a return and what it returns to,
// in string instructions, in recursion.
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>

// Every instruction of it is a call or a return.
__asm__(".globl leaf\nleaf: ret\n.globl calls\ncalls: sub $8, %rsp\n.rept 200\ncall leaf\n.endr\nadd $8, %rsp\nret\n");
void calls(void);

static volatile sig_atomic_t alarms;
static volatile long shared;
static __thread long own;

static void on_alarm(int signal) { alarms++; }

static long fib(long n) { return n < 2 ? n : fib(n - 1) + fib(n - 2); }

static void *caller(void *arg) {
    for (long i = 0; i < 100000; i++) {
        calls();
        shared++;
        own++;
    }
    return (void *)own;
}

static void *copier(void *arg) {
    static char from[5000], to[5000];
    long sum = 0;
    for (long i = 0; i < 20000; i++) {
        memset(from, (int)i, sizeof from);
        __asm__ volatile("rep movsb" : : "S"(from), "D"(to), "c"(sizeof to) : "memory");
        sum += to[i % sizeof to] + fib(12);
        shared++;
    }
    return (void *)sum;
}

int main(void) {
    struct sigaction action = {.sa_handler = on_alarm, .sa_flags = SA_RESTART};
    struct itimerval every = {{0, 7000}, {0, 7000}}, never = {0};
    pthread_t threads[3];
    void *result;
    long sum = 0;
    sigaction(SIGALRM, &action, 0);
    setitimer(ITIMER_REAL, &every, 0);
    pthread_create(&threads[0], 0, caller, 0);
    pthread_create(&threads[1], 0, caller, 0);
    pthread_create(&threads[2], 0, copier, 0);
    calls();
    for (int i = 0; i < 3; i++) pthread_join(threads[i], &result), sum += (long)result;
    setitimer(ITIMER_REAL, &never, 0);
    printf("%s\n", sum > 200000 && alarms > 0 && shared <= 220000 ? "ok" : "wrong");
    return 0;
}
