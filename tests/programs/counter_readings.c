// BUILD: -O2 -pthread
// Reads the time stamp counter so often that most of it is answered without a stop: alone and with the processor, with known values in
// all registers, in threads and processes that tell each other what they read, and while a timer interrupts. It never goes back nor
// stands still. With an argument, so often, and what all readings come to is printed; with another one, nothing but instructions runs.
#include <assert.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>
#include <x86intrin.h>

static uint64_t all;

static void take(uint64_t now) { all = (all ^ now) * 0x9e3779b97f4a7c15; }

static void alone(int count) {
    uint64_t last = 0;
    for (int i = 0; i < count; i++) {
        uint64_t now = __rdtsc();
        assert(now > last);
        take(now);
        last = now;
    }
}

static void with_processor(int count) {
    uint64_t last = 0;
    for (int i = 0; i < count; i++) {
        unsigned processor = -1;
        uint64_t now = __rdtscp(&processor);
        assert(now > last && processor < 1u << 24);
        take(now + processor);
        last = now;
    }
}

// Every other register, and the flags, are as they were.
static void registers(int count) {
    for (uint64_t i = 0; i < count; i++) {
        uint64_t low = ~0, high = ~0, flags, changed;
        uint64_t want = 0x202 | (i & 1) | (i & 2 ? 0x40 : 0) | (i & 4 ? 0x800 : 0) | (i & 8 ? 0x400 : 0);
        asm volatile("push %[want]\n\t"
                     "mov $1, %%ecx; mov $3, %%ebx; mov $4, %%esi; mov $5, %%edi; mov $8, %%r8d; mov $9, %%r9d\n\t"
                     "mov $10, %%r10d; mov $11, %%r11d; mov $12, %%r12d; mov $13, %%r13d; mov $14, %%r14d\n\t"
                     "popf\n\t"
                     "rdtsc; .byte 0x0f, 0x1f, 0x44, 0, 0\n\t"
                     "pushf\n\t"
                     "cld\n\t"
                     "sub $1, %%rcx; sub $3, %%rbx; sub $4, %%rsi; sub $5, %%rdi; sub $8, %%r8; sub $9, %%r9\n\t"
                     "sub $10, %%r10; sub $11, %%r11; sub $12, %%r12; sub $13, %%r13; sub $14, %%r14\n\t"
                     "or %%rbx, %%rcx; or %%rsi, %%rcx; or %%rdi, %%rcx; or %%r8, %%rcx; or %%r9, %%rcx\n\t"
                     "or %%r10, %%rcx; or %%r11, %%rcx; or %%r12, %%rcx; or %%r13, %%rcx; or %%r14, %%rcx\n\t"
                     "pop %%rbx"
                     : "=a"(low), "=d"(high), "=c"(changed), "=b"(flags)
                     : [want] "r"(want)
                     : "rsi", "rdi", "r8", "r9", "r10", "r11", "r12", "r13", "r14", "cc", "memory");
        assert(changed == 0 && low >> 32 == 0 && high >> 32 == 0);
        assert((flags & ~0x10100ul) == want);
        take(high << 32 | low);
    }
}

// What was read last by anybody.
static _Atomic uint64_t *newest;

static void in_turns(int count) {
    for (int i = 0; i < count; i++) {
        uint64_t before = *newest;
        _mm_lfence();
        uint64_t now = __rdtsc();
        assert(now >= before);
        while (before < now && !__atomic_compare_exchange_n((uint64_t *)newest, &before, now, 0, 5, 5)) {}
    }
}

static void *thread(void *count) {
    in_turns((intptr_t)count);
    return 0;
}

static void threads(int count) {
    pthread_t others[3];
    for (int i = 0; i < 3; i++) assert(pthread_create(others + i, 0, thread, (void *)(intptr_t)count) == 0);
    in_turns(count);
    for (int i = 0; i < 3; i++) pthread_join(others[i], 0);
    take(*newest);
}

static void processes(int count) {
    for (int i = 0; i < 3; i++) {
        if (fork() == 0) {
            in_turns(count);
            _exit(0);
        }
    }
    in_turns(count);
    for (int status; wait(&status) > 0;) assert(status == 0);
    take(*newest);
}

static volatile uint64_t read_by_handler;
static volatile int handled;

static void on_alarm(int signal) {
    uint64_t now = __rdtsc();
    assert(now > read_by_handler);
    read_by_handler = now;
    handled++;
}

static void interrupted(int times) {
    struct sigaction action = {.sa_handler = on_alarm, .sa_flags = SA_RESTART};
    assert(sigaction(SIGALRM, &action, 0) == 0);
    struct itimerval each = {{0, 1000}, {0, 1000}}, never = {};
    assert(setitimer(ITIMER_REAL, &each, 0) == 0);
    uint64_t last = 0;
    while (handled < times) {
        uint64_t before = read_by_handler;
        uint64_t now = __rdtsc();
        assert(now > last && now > before);
        take(now);
        last = now;
    }
    assert(setitimer(ITIMER_REAL, &never, 0) == 0);
    take(read_by_handler);
}

int main(int argc, char **argv) {
    newest = mmap(0, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    int some = argc > 1 ? atoi(argv[1]) : 20000;
    alone(some);
    with_processor(some);
    registers(some / 10);
    if (argc < 3) {
        interrupted(100);
        processes(some / 10);
        threads(some / 10);
    }
    if (argc > 1) printf("%016lx\n", all);
    puts("ok");
    return 0;
}
