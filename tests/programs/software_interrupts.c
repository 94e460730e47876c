// Interrupts that instructions ask for, and the signals that the kernel makes of them.
#define _GNU_SOURCE
#include <assert.h>
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <ucontext.h>

static sigjmp_buf back;
static volatile int got, code;
static volatile long trap;
static unsigned char *volatile where;

static void on_signal(int signal, siginfo_t *info, void *context) {
    got = signal, code = info->si_code;
    trap = ((ucontext_t *)context)->uc_mcontext.gregs[REG_TRAPNO];
    where = (unsigned char *)((ucontext_t *)context)->uc_mcontext.gregs[REG_RIP];
    siglongjmp(back, 1);
}

#define RAISE(instruction)                                                                                             \
    if (!sigsetjmp(back, 1)) {                                                                                         \
        asm volatile(instruction);                                                                                     \
        assert(0);                                                                                                     \
    } else                                                                                                             \
        printf("%s: signal %d, code %d, trap %ld, behind %02x\n", instruction, got, code, trap, where[-1])

int main() {
    struct sigaction action = {.sa_sigaction = on_signal, .sa_flags = SA_SIGINFO};
    for (int signal = SIGILL; signal <= SIGSEGV; signal++)
        sigaction(signal, &action, NULL);
    for (int i = 0; i < 3; i++) {
        RAISE("nop; int $4; nop");
        RAISE("nop; int $3; nop");
        RAISE("nop; int3; nop");
        RAISE("nop; .byte 0xf1; nop");
        RAISE("nop; int $5; nop");
        RAISE("nop; int $255; nop");
        RAISE("nop; hlt; nop");
        RAISE("nop; ud2; nop");
    }
    puts("ok");
}
