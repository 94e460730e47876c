// Code in private mappings of a file, from which calls are made until a recorder rewrites it, and what becomes of it: moved, mapped over,
// dropped, invalidated, its file written, cut and made longer again.
#define _GNU_SOURCE
#include <assert.h>
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { TIMES = 40, PAGE = 4096, AT = 1024 };

// mov eax, 110 (getppid); syscall; ret. Room for a jump behind it.
static const uint8_t ask[] = {0xb8, 110, 0, 0, 0, 0x0f, 0x05, 0xc3}, number[] = {0xb8, 5, 0, 0, 0, 0x90, 0x90, 0xc3};
static int file, other;
static pid_t parent;

static int calls(uint8_t *at) { return ((int (*)(void))(at + AT))(); }

static void runs(uint8_t *at, int result) {
  for (int i = 0; i < TIMES; i++) assert(calls(at) == result);
  assert(at[0] == 0xcc && !memcmp(at + AT, result == 5 ? number : ask, 5));
}

static uint8_t *map(void *at, int from, int flags) {
  uint8_t *mapped = mmap(at, 2 * PAGE, PROT_READ | PROT_EXEC, MAP_PRIVATE | flags, from, 0);
  assert(mapped != MAP_FAILED);
  return mapped;
}

static int makes(const uint8_t *code, size_t len) {
  uint8_t bytes[2 * PAGE];
  char name[] = "/tmp/code-of-files-XXXXXX";
  int made = mkstemp(name);
  memset(bytes, 0xcc, sizeof bytes);
  memcpy(bytes + AT, code, len);
  assert(write(made, bytes, sizeof bytes) == sizeof bytes && !unlink(name));
  return made;
}

static sigjmp_buf back;
static void handler(int signal) { siglongjmp(back, signal); }

static int fault(uint8_t *at) {
  int signal = sigsetjmp(back, 1);
  if (!signal) calls(at);
  return signal;
}

int main(void) {
  parent = getppid();
  file = makes(ask, sizeof ask), other = makes(number, sizeof number);
  signal(SIGBUS, handler), signal(SIGSEGV, handler), signal(SIGTRAP, handler);
  for (int round = 0; round < 2; round++) {
    // Moved, to where there was room and to where there was something.
    uint8_t *code = map(NULL, file, 0), *old = code;
    runs(code, parent);
    uint8_t *room = mmap(NULL, 2 * PAGE, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    code = mremap(code, 2 * PAGE, 2 * PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, room);
    assert(code == room && fault(old) == SIGSEGV);
    runs(code, parent);
    // One page of it, away and back.
    assert(mremap(code, PAGE, PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, old) == old);
    runs(old, parent);
    assert(mremap(old, PAGE, PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, code) == code);
    runs(code, parent);
    // Mapped over: by another file, by the same one, by nothing.
    map(code, other, MAP_FIXED);
    runs(code, 5);
    map(code, file, MAP_FIXED);
    runs(code, parent);
    mmap(code, PAGE, PROT_READ | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
    assert(fault(code) == SIGSEGV);
    map(code, file, MAP_FIXED);
    runs(code, parent);
    // Written back, and read again.
    assert(!msync(code, 2 * PAGE, MS_SYNC) && !msync(code, 2 * PAGE, MS_ASYNC | MS_INVALIDATE));
    runs(code, parent);
    assert(!madvise(code, 2 * PAGE, MADV_DONTNEED));
    runs(code, parent);
    assert(!madvise(code, 2 * PAGE, MADV_WILLNEED) && !madvise(code, 2 * PAGE, MADV_COLD));
    runs(code, parent);
    // The file is cut: so is the mapping, copies of pages too.
    uint8_t all[2 * PAGE];
    assert(pread(file, all, sizeof all, 0) == sizeof all && !memcmp(all + AT, ask, sizeof ask));
    assert(!ftruncate(file, 0) && fault(code) == SIGBUS && !ftruncate(file, sizeof all) && fault(code) == SIGSEGV);
    assert(pwrite(file, all, sizeof all, 0) == sizeof all);
    munmap(code, 2 * PAGE);
    code = map(NULL, file, 0);
    runs(code, parent);
    munmap(code, 2 * PAGE);
  }
  puts("ok");
  return 0;
}
