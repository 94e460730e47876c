// BUILD: -ldl
// Reads its own code, and that of the libraries: by loads, by calls, in a child, in a library that comes and goes.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <link.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

static uint64_t hash(uint64_t sum, const unsigned char *at, size_t len) {
    for (size_t i = 0; i < len; i++)
        sum = (sum ^ at[i]) * 0x100000001b3;
    return sum;
}

static int add(struct dl_phdr_info *info, size_t size, void *sum) {
    for (int i = 0; i < info->dlpi_phnum; i++) {
        const ElfW(Phdr) *part = &info->dlpi_phdr[i];
        if (part->p_type == PT_LOAD && part->p_flags & PF_X)
            *(uint64_t *)sum = hash(*(uint64_t *)sum, (void *)(info->dlpi_addr + part->p_vaddr), part->p_memsz);
    }
    return 0;
}

static uint64_t all_code(void) {
    uint64_t sum = 0xcbf29ce484222325;
    dl_iterate_phdr(add, &sum);
    return sum;
}

static uint64_t last;
static int changes;

static void tell(const char *when) {
    uint64_t now = all_code();
    changes += now != last;
    last = now;
    printf("%s: %016lx\n", when, now);
}

static void calls(int fd) {
    char buffer[8];
    for (int i = 0; i < 12; i++) {
        getppid();
        pread(fd, buffer, sizeof buffer, i);
        lseek(fd, i, SEEK_SET);
        read(fd, buffer, sizeof buffer);
    }
}

// What the kernel reads at an address.
static void by_calls(const unsigned char *at) {
    enum { LEN = 64 };
    unsigned char copy[LEN], other[LEN];
    int ends[2];
    pipe(ends);
    write(ends[1], at, LEN);
    read(ends[0], copy, LEN);
    struct iovec here = {other, LEN}, there = {(void *)at, LEN};
    process_vm_readv(getpid(), &here, 1, &there, 1, 0);
    printf("by calls: %016lx %016lx\n", hash(0, copy, LEN), hash(0, other, LEN));
    fwrite(at, 1, LEN, stdout);
    puts("");
    close(ends[0]);
    close(ends[1]);
}

static unsigned char *page_of(void *at) {
    return (unsigned char *)((uintptr_t)at & -4096);
}

int main(void) {
    int fd = open("/proc/self/exe", O_RDONLY);
    last = all_code();
    for (int round = 0; round < 5; round++) {
        calls(fd);
        tell("round");
    }
    by_calls((void *)getppid);
    fflush(stdout);
    if (fork() == 0) {
        tell("child");
        calls(fd);
        tell("child");
        fflush(stdout);
        _exit(0);
    }
    wait(NULL);
    void *again = dlmopen(LM_ID_NEWLM, "libc.so.6", RTLD_NOW);
    int (*parent)(void) = dlsym(again, "getppid");
    for (int i = 0; i < 12; i++) {
        parent();
        if (i % 3 == 0)
            by_calls((void *)parent);
    }
    tell("with another");
    dlclose(again);
    tell("without");
    unsigned char *page = page_of((void *)getppid);
    mprotect(page, 4096, PROT_READ | PROT_WRITE | PROT_EXEC);
    tell("writable");
    mprotect(page, 4096, PROT_READ | PROT_EXEC);
    calls(fd);
    tell("again");
    madvise(page_of((void *)read), 4096, MADV_DONTNEED);
    tell("as the file");
    calls(fd);
    tell("last");
    printf("%s\n", changes > 4 ? "changed" : changes ? "hardly changed" : "unchanged");
}
