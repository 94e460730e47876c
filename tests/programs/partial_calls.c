// Calls on memory that fail, but not before they did a part: a hole in the way of mprotect, madvise, munmap, mremap and mmap. And
// one that succeeds where nothing is.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#define PAGE 4096
static sigjmp_buf out;
static void on_fault(int s) { siglongjmp(out, 1); }
// What a page holds, 'r' added where it cannot be written; '-' where there is none.
static void show(const char *what, int result, volatile char *p, int pages) {
  printf("%s %d %d:", what, result, result ? errno : 0);
  for (int i = 0; i < pages; i++) {
    volatile char c = '-', w = 'r';
    if (!sigsetjmp(out, 1)) { c = p[i * PAGE]; p[i * PAGE] = c; w = 'w'; }
    printf(" %c%c", c ? c : '0', w);
  }
  puts("");
}
// Six pages that hold letters, the fourth missing.
static char *pages(void) {
  char *p = mmap(0, 6 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  for (int i = 0; i < 6; i++) p[i * PAGE] = 'a' + i;
  munmap(p + 3 * PAGE, PAGE);
  return p;
}
int main(void) {
  signal(SIGSEGV, on_fault); signal(SIGBUS, on_fault); setvbuf(stdout, 0, _IOLBF, 0);
  char *p = pages();
  show("mprotect", mprotect(p + PAGE, 5 * PAGE, PROT_READ), p, 6);
  p = pages(); mlock(p + 4 * PAGE, PAGE);
  show("madvise over a hole", madvise(p, 4 * PAGE, MADV_DONTNEED), p, 6);
  show("madvise to a locked page", madvise(p + 2 * PAGE, 4 * PAGE, MADV_DONTNEED), p, 6);
  p = pages(); show("munmap", munmap(p + 1, PAGE), p, 6);
  char *q = pages(); errno = 0;
  show("mremap", mremap(p + 3 * PAGE, PAGE, PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, q) == MAP_FAILED, q, 6);
  show("its source", 0, p, 6);
  show("mmap", mmap(q + 4 * PAGE, PAGE, PROT_READ, MAP_SHARED | MAP_FIXED, open("/dev/null", 0), 0) == MAP_FAILED, q, 6);
  int fd = open("/proc/self/exe", 0);
  char *f = mmap(0, PAGE, PROT_READ, MAP_SHARED, fd, 0), *b = f - 2 * PAGE;
  mmap(b, 2 * PAGE, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
  show("mprotect to a file", mprotect(b, 3 * PAGE, PROT_READ | PROT_WRITE), b, 2);
  show("munmap of nothing", munmap((void *)0x20000, 0x70000000), b, 2);
  puts("ok");
  return 0;
}
