// Leads a library's function elsewhere and back, again and again, as programs that hook functions do; then has the page as the file has it.
#define _GNU_SOURCE
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { PAGE = 4096, JUMP = 14 };

static int other(void) {
    return -7;
}

static int calls(int count) {
    int sum = 0;
    for (int i = 0; i < count; i++)
        sum += getppid() > 0;
    return sum;
}

int main(void) {
    unsigned char *at = (void *)getppid, own[JUMP], jump[JUMP] = {0xff, 0x25};
    void *page = (void *)((uintptr_t)at & -PAGE), *to = other;
    memcpy(jump + 6, &to, sizeof to);
    int sum = calls(10);
    for (int round = 0; round < 3; round++) {
        mprotect(page, 2 * PAGE, PROT_READ | PROT_WRITE | PROT_EXEC);
        for (int i = 0; i < 12; i++) {
            memcpy(own, at, JUMP);
            memcpy(at, jump, JUMP);
            sum += getppid() == -7;
            memcpy(at, own, JUMP);
            sum += calls(1);
        }
        mprotect(page, 2 * PAGE, PROT_READ | PROT_EXEC);
        sum += calls(20);
        madvise(page, PAGE, MADV_DONTNEED);
        sum += calls(20);
    }
    printf("%d calls\n", sum);
}
