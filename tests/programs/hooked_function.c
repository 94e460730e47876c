// A function of a library is hooked again and again, as a jump is written over its start and taken away; then its code is protected, and
// dropped so that it reads as the file. Calls are made from it all the while.
#define _GNU_SOURCE
#include <assert.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { LENGTH = 14, TIMES = 40 };

static pid_t parent;
static unsigned char *page, *function, own[LENGTH], jump[LENGTH] = {0xff, 0x25, 0, 0, 0, 0};  // jmp [rip + 0]

static pid_t instead(void) { return 77; }

static void call(void) {
  for (int i = 0; i < TIMES; i++) assert(getppid() == parent);
}

static void protect(int prot) { assert(!mprotect(page, 8192, prot)); }

static void hook(int times) {
  protect(PROT_READ | PROT_WRITE | PROT_EXEC);
  // Not what anybody else wrote there, where the function is: that has eight bytes.
  assert(times == 0 || !memcmp(function, own, 8));
  for (int i = 0; i < times; i++) {
    memcpy(function, jump, LENGTH);
    assert(getppid() == 77);
    memcpy(function, own, LENGTH);
    assert(getppid() == parent);
  }
}

int main(void) {
  uint64_t to = (uint64_t)instead;
  memcpy(jump + 6, &to, 8);
  function = (unsigned char *)getppid, page = (unsigned char *)((uint64_t)function & -4096);
  parent = getppid();
  protect(PROT_READ | PROT_WRITE | PROT_EXEC);
  memcpy(own, function, LENGTH);
  for (int round = 0; round < 3; round++) {
    hook(20);
    protect(PROT_READ | PROT_EXEC);
    call();
    assert(!madvise(page, 8192, MADV_DONTNEED));
    call();
    hook(3);
    assert(!madvise(page, 8192, MADV_DONTNEED));
    call();
    protect(PROT_READ | PROT_EXEC);
    call();
  }
  puts("ok");
  return 0;
}
