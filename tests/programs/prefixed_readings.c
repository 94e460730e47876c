// Prefixes that mean nothing before instructions that are trapped.
#include <stdio.h>

int main(void) {
    unsigned eax = 0, ebx, ecx = 0, edx;
    asm volatile(".byte 0x48; rdtsc" ::: "rax", "rdx");
    asm volatile(".byte 0x66; rdtsc" ::: "rax", "rdx");
    asm volatile(".byte 0xf3; rdtsc" ::: "rax", "rdx");
    asm volatile(".byte 0x48; rdtscp" ::: "rax", "rdx", "rcx");
    asm volatile(".byte 0x2e; cpuid" : "+a"(eax), "=b"(ebx), "+c"(ecx), "=d"(edx));
    puts(eax && ebx ? "read" : "not read");
    return 0;
}
