// Calls that change mappings, made again and again: of a program's own memory, of files and of what is shared beside it, with code in it that
// is made anew, from threads, handlers and a child. Each time memory is what it should be.
#define _GNU_SOURCE
#include <assert.h>
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

enum { TIMES = 60, PAGE = 4096 };

static const int RW = PROT_READ | PROT_WRITE;
static const int OWN = MAP_PRIVATE | MAP_ANONYMOUS;
static int out[2];

static char *fresh(size_t pages) {
  char *at = mmap(0, pages * PAGE, RW, OWN, -1, 0);
  assert(at != MAP_FAILED);
  return at;
}

// Whether the kernel can read there.
static int is_readable(const char *at) {
  char byte;
  if (write(out[1], at, 1) != 1) {
    assert(errno == EFAULT);
    return 0;
  }
  assert(read(out[0], &byte, 1) == 1 && byte == *at);
  return 1;
}

static int is_mapped(char *at) {
  unsigned char there;
  if (mincore(at, PAGE, &there) == 0) return 1;
  assert(errno == ENOMEM);
  return 0;
}

static void own_memory(int i) {
  char *at = fresh(8);
  for (int page = 0; page < 8; page++) at[page * PAGE] = (char)(i + page);
  assert(mprotect(at + PAGE, 2 * PAGE, PROT_NONE) == 0);
  assert(!is_readable(at + PAGE) && !is_readable(at + 2 * PAGE) && is_readable(at + 3 * PAGE));
  assert(mprotect(at + PAGE, PAGE + 1, RW) == 0);
  assert(at[PAGE] == (char)(i + 1) && at[2 * PAGE] == (char)(i + 2));
  assert(madvise(at + 3 * PAGE, 2 * PAGE, MADV_DONTNEED) == 0);
  assert(at[3 * PAGE] == 0 && at[4 * PAGE] == 0 && at[5 * PAGE] == (char)(i + 5));
  assert(madvise(at + 5 * PAGE, PAGE, MADV_FREE) == 0);
  at[5 * PAGE] = 7;
  assert(munmap(at + 6 * PAGE, PAGE) == 0);
  assert(!is_mapped(at + 6 * PAGE) && is_mapped(at + 7 * PAGE));
  char *again = mmap(at + 6 * PAGE, 2 * PAGE, RW, OWN | MAP_FIXED | MAP_NORESERVE, -1, 0);
  assert(again == at + 6 * PAGE && again[PAGE] == 0);
  assert(mmap(at, PAGE, RW, OWN, -1, 0) != at);
  assert(munmap(at, 8 * PAGE) == 0 && !is_mapped(at));
}

// A part is done of calls that fail, which memory shows.
static void what_fails(int i) {
  char *at = fresh(4);
  memset(at, i, 4 * PAGE);
  assert(munmap(at + 2 * PAGE, PAGE) == 0);
  assert(mprotect(at + PAGE, 3 * PAGE, PROT_NONE) == -1 && errno == ENOMEM);
  assert(is_readable(at) && !is_readable(at + PAGE) && is_readable(at + 3 * PAGE));
  assert(madvise(at, 4 * PAGE, MADV_DONTNEED) == -1 && errno == ENOMEM);
  assert(at[0] == 0 && at[3 * PAGE] == 0);
  assert(munmap(at + 1, PAGE) == -1 && errno == EINVAL);
  assert(munmap(at, 0) == -1 && errno == EINVAL);
  assert(mprotect(at, 0, PROT_NONE) == 0 && is_readable(at));
  assert(mprotect(at, PAGE, 1 << 20) == -1 && errno == EINVAL);
  assert(mmap(0, 0, RW, OWN, -1, 0) == MAP_FAILED && errno == EINVAL);
  assert(mmap(0, (size_t)1 << 60, RW, OWN, -1, 0) == MAP_FAILED && errno == ENOMEM);
  assert(munmap(at, (size_t)-PAGE) == -1 && errno == EINVAL);
  assert(munmap(at, 4 * PAGE) == 0);
}

// A file and what is shared lie between pages of the program's own.
static void among_others(int i, int file) {
  char *at = fresh(8);
  memset(at, i, 8 * PAGE);
  char *shown = mmap(at + 2 * PAGE, PAGE, RW, MAP_PRIVATE | MAP_FIXED, file, 0);
  char *shared = mmap(at + 5 * PAGE, PAGE, RW, MAP_SHARED | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
  assert(shown == at + 2 * PAGE && memcmp(shown, "what the file has", 17) == 0);
  shown[0] = 'W';
  shared[0] = 's';
  assert(madvise(at, 8 * PAGE, MADV_DONTNEED) == 0);
  assert(memcmp(shown, "what the file has", 17) == 0 && shared[0] == 's' && at[PAGE] == 0 && at[7 * PAGE] == 0);
  assert(mprotect(at + PAGE, 2 * PAGE, PROT_READ) == 0 && shown[0] == 'w');
  assert(mprotect(at, 8 * PAGE, RW) == 0);
  shown[1] = 'H';
  char *moved = mremap(shown, PAGE, 2 * PAGE, MREMAP_MAYMOVE);
  assert(moved != MAP_FAILED && moved[1] == 'H');
  assert(munmap(moved, 2 * PAGE) == 0);
  assert(mmap(at + 4 * PAGE, 3 * PAGE, RW, OWN | MAP_FIXED, -1, 0) == at + 4 * PAGE && shared[0] == 0);
  assert(munmap(at, 8 * PAGE) == 0);
}

// mov eax, imm32; ret
static void code(int i, unsigned char *at) {
  unsigned char bytes[] = {0xb8, (unsigned char)i, 0, 0, 0, 0xc3};
  assert(mprotect(at, PAGE, RW) == 0);
  memcpy(at, bytes, sizeof bytes);
  assert(mprotect(at, PAGE, PROT_READ | PROT_EXEC) == 0);
  assert(((int (*)(void))at)() == (i & 0xff));
  if (i % 7 == 0) {
    assert(madvise(at, PAGE, MADV_DONTNEED) == 0 && at[0] == 0);
  }
}

static void heap(int i) {
  char *end = sbrk(0);
  assert(sbrk(3 * PAGE + 100) == end && end[2 * PAGE] == 0);
  memset(end, i, 3 * PAGE);
  assert(sbrk(-2 * PAGE) == end + 3 * PAGE + 100 && end[PAGE] == (char)i);
  assert(sbrk(PAGE) == end + PAGE + 100 && end[PAGE + PAGE - 1] == (char)i);
  assert(brk(end) == 0 && sbrk(0) == end);
}

static char *guarded;
static volatile int faults;

static void unguard(int signal, siginfo_t *info, void *context) {
  (void)signal, (void)context;
  char *page = (char *)((uintptr_t)info->si_addr & ~(uintptr_t)(PAGE - 1));
  assert(mprotect(page, PAGE, RW) == 0);
  faults++;
}

static void in_handlers(int i) {
  assert(mprotect(guarded, 4 * PAGE, i % 2 ? PROT_READ : PROT_NONE) == 0);
  for (int page = 0; page < 4; page++) guarded[page * PAGE] += 1;
  assert(faults == 4 * (i + 1) && guarded[3 * PAGE] == (char)(i + 1));
}

static void *beside(void *times) {
  for (long i = 0; i < (long)times; i++) {
    char *at = fresh(3);
    at[2 * PAGE] = (char)i;
    assert(madvise(at, PAGE, MADV_DONTNEED) == 0);
    for (volatile int spin = 0; spin < 20000; spin++) {}
    assert(mprotect(at + PAGE, PAGE, PROT_READ) == 0 && at[2 * PAGE] == (char)i);
    assert(munmap(at, 3 * PAGE) == 0);
  }
  return 0;
}

static void all(int file) {
  unsigned char *place = (unsigned char *)fresh(1);
  guarded = fresh(4);
  faults = 0;
  for (int i = 0; i < TIMES; i++) {
    own_memory(i);
    what_fails(i);
    among_others(i, file);
    code(i, place);
    heap(i);
    in_handlers(i);
  }
  assert(munmap(place, PAGE) == 0 && munmap(guarded, 4 * PAGE) == 0);
}

int main(void) {
  struct sigaction action = {.sa_sigaction = unguard, .sa_flags = SA_SIGINFO};
  assert(sigaction(SIGSEGV, &action, 0) == 0 && pipe(out) == 0);
  char name[] = "/tmp/mapping_calls_XXXXXX";
  int file = mkstemp(name);
  assert(file >= 0 && unlink(name) == 0 && write(file, "what the file has", 17) == 17);
  assert(ftruncate(file, 2 * PAGE) == 0);
  all(file);
  pthread_t threads[3];
  for (int i = 0; i < 3; i++) assert(pthread_create(&threads[i], 0, beside, (void *)200L) == 0);
  beside((void *)200L);
  for (int i = 0; i < 3; i++) assert(pthread_join(threads[i], 0) == 0);
  pid_t child = fork();
  if (child == 0) {
    all(file);
    _exit(3);
  }
  int status;
  assert(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 3);
  all(file);
  puts("mappings are as they should be");
  return 0;
}
