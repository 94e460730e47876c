// Memory that several mappings show: two in one process, one in a child at the same and at another address, System V, anonymous,
// with the kernel as the writer, a file that changes meanwhile, and a ring mapped twice in a row. With an argument `look` says what is where.
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/shm.h>
#include <sys/wait.h>
#include <unistd.h>
enum { PAGE = 4096, BOTH = PROT_READ | PROT_WRITE };
static int shows;
__attribute__((noinline)) static void look(const char *name, volatile void *at, int value) {
  if (shows) printf("%s %p %d\n", name, (void *)at, value);
}
__attribute__((noinline)) static void first(volatile int *at, int value) { *at = value; }
__attribute__((noinline)) static void other(volatile int *at, int value) { *at = value; }
static void *show(int fd, void *at, int length, int flags) {
  void *shown = mmap(at, length, BOTH, MAP_SHARED | flags, fd, 0);
  if (shown == MAP_FAILED) exit(1);
  return shown;
}
static int memory(int length) {
  int fd = memfd_create("shared", 0);
  if (fd < 0 || ftruncate(fd, length)) exit(2);
  return fd;
}
static void joined(int child) {
  int status;
  if (waitpid(child, &status, 0) != child || status) exit(3);
}
// One process, two mappings.
static void twice(void) {
  int fd = memory(PAGE);
  int *a = show(fd, 0, PAGE, 0), *b = show(fd, 0, PAGE, 0);
  first(a, 1);
  other(b, 2);
  other(b + 1, 55);
  look("TWICE", a, a[0]);
  look("ONLY_OTHER", a + 1, a[1]);
  first(a + 2, 3);
  look("OWN", b + 2, b[2]);
  int p[2];
  if (pipe(p) || write(p[1], "\x4d\x00\x00\x00", 4) != 4) exit(4);
  first(a + 3, 4);
  if (read(p[0], b + 3, 4) != 4) exit(5);
  look("KERNEL", a + 3, a[3]);
  // The write of one byte leaves the others as they were.
  first(a + 4, 0x01010101);
  ((volatile char *)(b + 4))[1] = 2;
  look("PART", a + 4, a[4]);
  look("UNTOUCHED", a + 5, a[5]);
  // Gone by the time that it is asked about.
  int *c = show(fd, 0, PAGE, 0);
  first(a + 6, 6);
  other(c + 6, 66);
  munmap(c, PAGE);
  look("GONE", a + 6, a[6]);
  // An mprotect and a move of one mapping are none of its contents.
  first(a + 7, 7);
  mprotect(a, PAGE, PROT_READ);
  other(b + 7, 77);
  int *d = mremap(a, PAGE, PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, show(-1, 0, PAGE, MAP_ANONYMOUS));
  if (d == MAP_FAILED) exit(6);
  look("MOVED", d + 7, d[7]);
  madvise(b, PAGE, MADV_DONTNEED);
  look("KEPT", b, b[0]);
}
// Another process, the same address and another one.
static void forked(void) {
  int fd = memory(PAGE);
  int *p = show(fd, 0, PAGE, 0);
  int *sh = show(-1, 0, PAGE, MAP_ANONYMOUS);
  first(p, 1);
  first(sh, 1);
  int child = fork();
  if (!child) {
    int *q = show(fd, (void *)0x30000000, PAGE, MAP_FIXED);
    other(q, 777);
    other(sh, 22);
    other(sh + 1, 33);
    _exit(0);
  }
  joined(child);
  look("FORKED_ELSEWHERE", p, p[0]);
  look("FORKED", sh, sh[0]);
  look("FORKED_ONLY_CHILD", sh + 1, sh[1]);
}
// Another program, which gets the file.
static void executed(const char *self) {
  int fd = memory(PAGE);
  int *p = show(fd, 0, PAGE, 0);
  first(p, 1);
  int child = fork();
  if (!child) {
    dup2(fd, 100);
    execl(self, self, "write", (char *)0);
    _exit(1);
  }
  joined(child);
  look("EXECUTED", p, p[0]);
}
// A file that grows, and that calls change, while it is mapped.
static void grown(void) {
  int fd = memory(PAGE), from = memory(PAGE);
  int *a = show(fd, 0, PAGE, 0);
  first(a, 1);
  first(a + 1, 5);
  if (ftruncate(fd, 2 * PAGE)) exit(9);
  look("GROWN", a, a[0]);
  int *b = show(fd, 0, 2 * PAGE, 0), value = 6;
  other(b, 2);
  other(b + PAGE / 4, 3);
  look("GROWN_OTHER", a, a[0]);
  look("GROWN_PART", b + PAGE / 4, b[PAGE / 4]);
  // No buffer of the program holds what these put there.
  if (pwrite(from, &value, 4, 0) != 4) exit(10);
  off_t at = 0, to = 4;
  if (copy_file_range(from, &at, fd, &to, 4, 0) != 4) exit(11);
  look("COPIED", a + 1, a[1]);
  look("NOT_COPIED", a, a[0]);
  if (pwrite(fd, &value, 4, 8) != 4) exit(12);
  look("PWRITTEN", a + 2, a[2]);
}
static void system_v(void) {
  int id = shmget(IPC_PRIVATE, PAGE, IPC_CREAT | 0600);
  int *a = shmat(id, 0, 0), *b = shmat(id, 0, 0);
  if (a == (void *)-1 || b == (void *)-1) exit(8);
  shmctl(id, IPC_RMID, 0);
  first(a, 1);
  other(b, 2);
  look("SYSTEM_V", a, a[0]);
}
// A ring: the page behind its end is its first.
static void ring(void) {
  int fd = memory(PAGE);
  char *at = mmap(0, 2 * PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  char *low = show(fd, at, PAGE, MAP_FIXED), *high = show(fd, at + PAGE, PAGE, MAP_FIXED);
  first((int *)(low + 8), 1);
  other((int *)(high + 8), 2);
  look("RING", low + 8, *(int *)(low + 8));
  *(volatile uint64_t *)(high - 4) = 0x0000000500000004;
  look("RING_END", high - 4, *(int *)(high - 4));
  look("RING_BEGIN", low, *(int *)low);
}
int main(int argc, char **argv) {
  if (argc > 1 && !strcmp(argv[1], "write")) {
    other(show(100, 0, PAGE, 0), 8);
    return 0;
  }
  shows = argc > 1;
  twice();
  forked();
  executed(argv[0]);
  grown();
  system_v();
  ring();
  puts("ok");
  return 0;
}
