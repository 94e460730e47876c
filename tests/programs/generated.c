// Generated and modified code: a function rewritten in place, one that rewrites its own next instruction, two on one page.
#define _GNU_SOURCE
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
int main(void) {
  unsigned char *code = mmap(0, 4096, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  int (*f)(void) = (void *)code, (*g)(void) = (void *)(code + 64), (*h)(void) = (void *)(code + 128);
  long sum = 0;
  memcpy(code + 64, "\xb8\x05\x00\x00\x00\xc3", 6);
  for (int i = 0; i < 200; i++) {
    memcpy(code, "\xb8\x00\x00\x00\x00\xc3", 6); memcpy(code + 1, &i, 4);
    sum += f() + g();
  }
  // movb $9, 1(%rip) ; mov $1, %eax ; ret : the store changes the immediate of the next instruction
  memcpy(code + 128, "\xc6\x05\x01\x00\x00\x00\x09\xb8\x01\x00\x00\x00\xc3", 13);
  int own = h();
  printf("%ld %d\n", sum, own);
  puts(sum == 199 * 200 / 2 + 1000 && own == 9 ? "ok" : "bad");
  return 0;
}
