// BUILD: -mrdrnd
// Numbers that the processor draws, by the C++ library and by every form of the instructions: in a loop, in an arm of a switch, in
// code that was dropped and read from its file again, in a child and a thread. And the number of the processor.
#define _GNU_SOURCE
#include <cassert>
#include <cpuid.h>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <fcntl.h>
#include <random>
#include <sched.h>
#include <set>
#include <stdexcept>
#include <sys/mman.h>
#include <sys/wait.h>
#include <thread>
#include <unistd.h>

static int nowhere;
static unsigned count;
static uint64_t last;

// The kernel sees what was drawn.
static void drawn(uint64_t number) {
    char line[32];
    int len = snprintf(line, sizeof line, "%016lx\n", number);
    assert(write(nowhere, line, len) == len);
    assert(!count || number != last || number <= 0xffff);
    last = number, count++;
}

// All arithmetic flags are set before, and are cleared afterwards but for the carry.
#define DRAW(name, bits, instruction)                                                                              \
    __attribute__((noinline)) static void name() {                                                                 \
        uint64_t number, flags;                                                                                    \
        do {                                                                                                       \
            number = 0x1122334455667788;                                                                           \
            asm volatile("sub $128, %%rsp; pushf; orl $0x8d5, (%%rsp); popf; " instruction                         \
                         "; pushf; pop %1; add $128, %%rsp" : "+r"(number), "=&r"(flags) : : "cc", "memory");      \
        } while (!(flags & 1));                                                                                    \
        assert((flags & 0x8d5) == 1);                                                                              \
        assert(bits != 16 || number >> 16 == 0x112233445566);                                                      \
        assert(bits != 32 || number >> 32 == 0);                                                                   \
        drawn(number & (bits == 64 ? ~0ul : (1ul << bits) - 1));                                                   \
    }

DRAW(rand16, 16, "rdrand %w0")
DRAW(rand32, 32, "rdrand %k0")
DRAW(rand64, 64, "rdrand %0")
DRAW(rand_r9, 64, "rdrand %%r9; mov %%r9, %0")
DRAW(seed16, 16, "rdseed %w0")
DRAW(seed32, 32, "rdseed %k0")
DRAW(seed64, 64, "rdseed %0")
DRAW(seed_r15, 64, "push %%r15; rdseed %%r15; mov %%r15, %0; pop %%r15")

__attribute__((noinline)) static uint64_t by_table(int way, uint64_t number) {
    unsigned long long drawn = 0;
    switch (way) {
    case 0: number *= 3; break;
    case 1: number ^= number >> 7; break;
    case 2: while (!__builtin_ia32_rdrand64_step(&drawn)) {} number = drawn; break;
    case 3: number -= 99; break;
    case 4: number |= 1; break;
    case 5: while (!__builtin_ia32_rdrand64_step(&drawn)) {} number = drawn + 1; break;
    case 6: number = ~number; break;
    }
    return number;
}

static void each(bool seeds) {
    for (int i = 0; i < 5; i++) {
        rand16(), rand32(), rand64(), rand_r9();
        if (seeds) seed16(), seed32(), seed64(), seed_r15();
        drawn(by_table(2, i));
        drawn(by_table(5, i));
    }
}

static void by_library(const char *token) {
    try {
        std::random_device device(token);
        for (int i = 0; i < 10; i++) drawn(device() | 1ul << 40);
    } catch (std::runtime_error &) {
        drawn(0);
    }
}

int main() {
    nowhere = open("/dev/null", O_WRONLY);
    for (const char *token : {"default", "rdseed", "rdrand", "rdrnd", "getentropy"}) by_library(token);
    unsigned a, b, c, d, features;
    __cpuid(1, a, b, features, d);
    __cpuid_count(7, 0, a, b, c, d);
    if (!(features >> 30 & 1)) {
        puts("ok");
        return 0;
    }
    bool seeds = b >> 18 & 1;
    each(seeds);
    // The page of one of them is what the file has, and can be written for a while.
    char *page = (char *)((uintptr_t)rand64 & -4096ul);
    assert(!madvise(page, 4096, MADV_DONTNEED));
    rand64();
    assert(!mprotect(page, 4096, PROT_READ | PROT_WRITE | PROT_EXEC));
    rand64();
    assert(!mprotect(page, 4096, PROT_READ | PROT_EXEC));
    rand64();
    pid_t child = fork();
    if (!child) {
        each(seeds);
        _exit(3);
    }
    int status;
    assert(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 3);
    std::thread other(each, seeds);
    each(seeds);
    other.join();
    if (c >> 22 & 1) {
        unsigned long by_instruction;
        asm volatile("rdpid %0" : "=r"(by_instruction));
        unsigned low, high, by_stamp;
        asm volatile("rdtscp" : "=a"(low), "=d"(high), "=c"(by_stamp));
        assert(by_instruction == by_stamp);
    }
    puts("ok");
}
