// BUILD: -O2 -D_GNU_SOURCE
// An instruction that has read the time stamp counter often is forbidden to, and allowed to again: it faults at its own address, all
// registers as they were.
#include <assert.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/prctl.h>
#include <ucontext.h>
#include <x86intrin.h>

enum { TOLD = 5, TIMES = 10 };

static uint64_t places[TIMES];
static int faults;

__attribute__((noinline)) static uint64_t reading(void) { return __rdtsc(); }

static void on_fault(int signal, siginfo_t *info, void *context) {
    greg_t *registers = ((ucontext_t *)context)->uc_mcontext.gregs;
    places[faults++] = registers[REG_RIP];
    registers[REG_RIP] += 2;
    registers[REG_RAX] = TOLD;
    registers[REG_RDX] = 0;
}

static uint64_t many_after(uint64_t last) {
    for (int i = 0; i < 5000; i++) {
        uint64_t now = reading();
        assert(now > last);
        last = now;
    }
    return last;
}

int main(void) {
    struct sigaction action = {.sa_sigaction = on_fault, .sa_flags = SA_SIGINFO};
    assert(sigaction(SIGSEGV, &action, NULL) == 0);
    uint64_t last = many_after(0);
    assert(prctl(PR_SET_TSC, PR_TSC_SIGSEGV) == 0);
    for (int i = 0; i < TIMES; i++) assert(reading() == TOLD);
    for (int i = 0; i < TIMES; i++) assert(places[i] - (uint64_t)reading < 16 && places[i] == places[0]);
    assert(prctl(PR_SET_TSC, PR_TSC_ENABLE) == 0);
    many_after(last);
    assert(faults == TIMES);
    puts("ok");
    return 0;
}
