// System calls of the 32-bit table, by `int 0x80`: results, memory, and every register as the instruction leaves it.
#define _GNU_SOURCE
#include <assert.h>
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

struct registers {
    uint64_t rax, rbx, rcx, rdx, rsi, rdi, rbp, r8, r9, r10, r11, r12, r13, r14, r15, flags;
};

void interrupt(struct registers *registers);
// Stores all registers before the call's results are looked at.
__asm__(".globl interrupt\n"
        "interrupt:\n"
        "  push %rbx; push %rbp; push %r12; push %r13; push %r14; push %r15; push %rdi\n"
        "  pushq 120(%rdi); popfq\n"
        "  mov (%rdi), %rax; mov 8(%rdi), %rbx; mov 16(%rdi), %rcx; mov 24(%rdi), %rdx; mov 32(%rdi), %rsi\n"
        "  mov 48(%rdi), %rbp; mov 56(%rdi), %r8; mov 64(%rdi), %r9; mov 72(%rdi), %r10; mov 80(%rdi), %r11\n"
        "  mov 88(%rdi), %r12; mov 96(%rdi), %r13; mov 104(%rdi), %r14; mov 112(%rdi), %r15; mov 40(%rdi), %rdi\n"
        "  int $0x80\n"
        "  pushfq; push %rdi; mov 16(%rsp), %rdi\n"
        "  mov %rax, (%rdi); mov %rbx, 8(%rdi); mov %rcx, 16(%rdi); mov %rdx, 24(%rdi); mov %rsi, 32(%rdi)\n"
        "  mov %rbp, 48(%rdi); mov %r8, 56(%rdi); mov %r9, 64(%rdi); mov %r10, 72(%rdi); mov %r11, 80(%rdi)\n"
        "  mov %r12, 88(%rdi); mov %r13, 96(%rdi); mov %r14, 104(%rdi); mov %r15, 112(%rdi)\n"
        "  pop %rax; mov %rax, 40(%rdi); popq 120(%rdi); pop %rdi\n"
        "  pop %r15; pop %r14; pop %r13; pop %r12; pop %rbp; pop %rbx; ret\n");

#define DIRTY 0x123456700000000

static int32_t call(uint32_t nr, uint32_t b, uint32_t c, uint32_t d, uint32_t si, uint32_t di, uint32_t bp)
{
    // The upper halves are nothing to the kernel.
    struct registers before = {DIRTY | nr, DIRTY | b, DIRTY | c, DIRTY | d, DIRTY | si, DIRTY | di, DIRTY | bp,
                               8, 9, 10, 11, 12, 13, 14, 15, 0xa97};
    struct registers after = before;
    interrupt(&after);
    assert(after.rbx == before.rbx && after.rcx == before.rcx && after.rdx == before.rdx);
    assert(after.rsi == before.rsi && after.rdi == before.rdi && after.rbp == before.rbp);
    assert(after.r12 == 12 && after.r13 == 13 && after.r14 == 14 && after.r15 == 15);
    // Old kernels cleared these.
    assert((after.r8 == 8 && after.r9 == 9 && after.r10 == 10 && after.r11 == 11) ||
           (after.r8 == 0 && after.r9 == 0 && after.r10 == 0 && after.r11 == 0));
    assert((after.flags & 0xcd5) == (before.flags & 0xcd5));
    return (int32_t)after.rax;
}

static int32_t call3(uint32_t nr, uint32_t b, uint32_t c, uint32_t d)
{
    return call(nr, b, c, d, 0, 0, 0);
}

static sigjmp_buf none;

static void no_such_interrupt(int sig)
{
    (void)sig;
    siglongjmp(none, 1);
}

static volatile sig_atomic_t alarms;

static void on_alarm(int sig)
{
    (void)sig;
    alarms++;
}

enum { EXIT = 1, READ = 3, WRITE, CLOSE = 6, WAITPID, TIME = 13, LSEEK = 19, GETPID, ACCESS = 33, PIPE = 42, GETRLIMIT = 191,
       MMAP2, GETUID = 199, EXIT_GROUP = 252, CLOCK_GETTIME = 265, MUNMAP = 91, CLOCK_GETTIME64 = 403 };

static void memory(char *low, uint32_t at)
{
    int pipes[2];
    assert(call3(PIPE, at, 0, 0) == 0);
    memcpy(pipes, low, sizeof pipes);
    strcpy(low, "by interrupt");
    assert(call3(WRITE, pipes[1], at, 12) == 12);
    assert(call3(READ, pipes[0], at + 100, 50) == 12 && !memcmp(low, low + 100, 12));
    assert(call3(CLOSE, pipes[1], 0, 0) == 0);
    assert(call3(READ, pipes[0], at, 50) == 0);
    assert(call3(READ, pipes[1], at, 50) == -9);
    // Four bytes each, not eight.
    memset(low, 0x55, 64);
    int32_t now = call3(TIME, at, 0, 0);
    assert(now > 1600000000 && !memcmp(low, &now, 4) && low[4] == 0x55);
    memset(low, 0x55, 64);
    assert(call3(CLOCK_GETTIME, CLOCK_MONOTONIC, at, 0) == 0 && low[8] == 0x55);
    assert(call3(CLOCK_GETTIME64, CLOCK_MONOTONIC, at, 0) == 0 && low[16] == 0x55);
    assert(call3(GETRLIMIT, 7, at, 0) == 0);
    assert(call3(ACCESS, at, 4, 0) == -2 || call3(ACCESS, at, 4, 0) == -14);
    int file = open("/proc/self/exe", O_RDONLY);
    assert(call3(LSEEK, file, 10, SEEK_SET) == 10 && call3(LSEEK, file, -4, SEEK_CUR) == 6);
    char expected[4], *mapped;
    assert(pread(file, expected, 4, 4096) == 4);
    uint32_t where = call(MMAP2, 0, 4096, PROT_READ, MAP_PRIVATE, file, 1);
    mapped = (char *)(uintptr_t)where;
    assert(where < 0xfffff000 && !memcmp(mapped, expected, 4));
    assert(call3(MUNMAP, where, 4096, 0) == 0);
}

static void processes(char *low, uint32_t at)
{
    int child = fork();
    if (child == 0)
        call3(EXIT_GROUP, 7, 0, 0);
    int32_t ended;
    do
        ended = call3(WAITPID, child, at, 0);
    while (ended == -4);
    int status;
    memcpy(&status, low, sizeof status);
    assert(ended == child && WIFEXITED(status) && WEXITSTATUS(status) == 7);
}

// A signal cuts a call short, which is made again.
static void restarts(char *low, uint32_t at)
{
    int pipes[2];
    assert(pipe(pipes) == 0);
    struct sigaction action = {.sa_handler = on_alarm, .sa_flags = SA_RESTART};
    sigaction(SIGALRM, &action, 0);
    int child = fork();
    if (child == 0) {
        for (int i = 0; i < 3; i++) {
            usleep(20000);
            kill(getppid(), SIGALRM);
        }
        usleep(20000);
        _exit(write(pipes[1], "x", 1) != 1);
    }
    assert(call3(READ, pipes[0], at, 1) == 1 && *low == 'x' && alarms == 3);
    int status;
    assert(waitpid(child, &status, 0) == child && status == 0);
}

int main(void)
{
    signal(SIGSEGV, no_such_interrupt);
    if (sigsetjmp(none, 1) == 0 && call3(GETPID, 0, 0, 0) != -38) {
        signal(SIGSEGV, SIG_DFL);
        assert(call3(GETPID, 1, 2, 3) == getpid() && call3(GETUID, 0, 0, 0) == (int)getuid());
        char *low = mmap(0, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_32BIT, -1, 0);
        assert(low != MAP_FAILED);
        memory(low, (uintptr_t)low);
        processes(low, (uintptr_t)low);
        restarts(low, (uintptr_t)low);
        strcpy(low, "narrow_calls: all made\n");
        fflush(stdout);
        assert(call3(WRITE, 1, (uintptr_t)low, 23) == 23);
        call3(EXIT, 0, 0, 0);
    }
    // This kernel has no such calls.
    puts("narrow_calls: all made");
    return 0;
}
