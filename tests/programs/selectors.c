// Looks at selectors and at what some processors keep to the kernel: the same answers again.
#include <stdint.h>
#include <stdio.h>

static void look(uint32_t selector) {
    uint64_t rights = 0;
    uint8_t known, readable, writable;
    asm("lar %k2, %k0; setz %1" : "+r"(rights), "=r"(known) : "r"(selector) : "cc");
    asm("verr %w1; setz %0" : "=r"(readable) : "r"(selector) : "cc");
    asm("verw %w1; setz %0" : "=r"(writable) : "r"(selector) : "cc");
    if (known || readable || writable)
        printf("%x: %lx %d %d\n", selector, rights, readable, writable);
}

int main(void) {
    uint64_t table = -1, task = -1, status = -1;
    struct { uint16_t table, task, status; } stored = {0};
    // Not all of a register may be written.
    asm volatile("sldt %0; str %1; smsw %2" : "+r"(table), "+r"(task), "+r"(status));
    asm volatile("sldt %0; str %1; smsw %2" : "=m"(stored.table), "=m"(stored.task), "=m"(stored.status));
    printf("%lx %lx %lx %x %x %x\n", table, task, status, stored.table, stored.task, stored.status);
    for (uint32_t selector = 0; selector < 0x80; selector++)
        look(selector);
    puts("ok");
    return 0;
}
