// Registers that only AVX-512 has, with values of their own.
#include <stdio.h>

__attribute__((noinline)) void look(void) { __asm__ volatile(""); }

__attribute__((noinline)) static void fill(void) {
  __asm__ volatile(
      "mov $0xfffb, %%eax; kmovw %%eax, %%k3; vpternlogd $255, %%zmm31, %%zmm31, %%zmm31;"
      "mov $0x12345678, %%eax; vpbroadcastd %%eax, %%zmm5;"
      "mov $0x23456789, %%eax; vpbroadcastd %%eax, %%zmm20;"
      "call look" ::: "memory", "rax", "rcx", "rdx");
}

int main(void) {
  if (__builtin_cpu_supports("avx512f")) fill();
  puts("ok");
  return 0;
}
