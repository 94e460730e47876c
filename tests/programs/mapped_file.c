// Private and read-only mappings of a file that calls write, extend, cut and copy into meanwhile, here and in a child.
#define _GNU_SOURCE
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>
#define PAGE 4096
static sigjmp_buf out;
static char name[] = "/tmp/mapped_fileXXXXXX", other[] = "/tmp/mapped_otherXXXXXX";
static int fd;
static void bus(int s) { siglongjmp(out, 1); }
// The byte, or '!' where there is none.
static char see(volatile char *p) { return sigsetjmp(out, 1) ? '!' : *p ? *p : '0'; }
static void fill(int to, char c, int pages) {
  char block[PAGE]; memset(block, c, PAGE);
  for (int i = 0; i < pages; i++) if (pwrite(to, block, PAGE, i * PAGE) != PAGE) exit(2);
}
// Four pages: untouched, read, written by us, untouched; then the same file shared and read-only.
static volatile char *view(void) {
  volatile char *p = mmap(0, 4 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE, fd, 0);
  (void)p[PAGE]; p[2 * PAGE] = 'W';
  return p;
}
static void show(const char *what, volatile char *p, const char *expected) {
  char seen[9] = {see(p), see(p + PAGE), see(p + 2 * PAGE), see(p + 3 * PAGE), see(p + 1), see(p + PAGE - 1), see(p + 2 * PAGE + 1), see(p + 4 * PAGE - 1)};
  printf("%s %s\n", what, seen);
  if (strcmp(seen, expected)) { printf("bad, expected %s\n", expected); fflush(stdout); _exit(1); }
}
static void put(int at, const char *text) { if (pwrite(fd, text, strlen(text), at) != (ssize_t)strlen(text)) exit(3); }
int main(void) {
  setvbuf(stdout, 0, _IOLBF, 0); signal(SIGBUS, bus);
  fd = mkstemp(name); int from = mkstemp(other);
  fill(fd, 'a', 4); fill(from, 'z', 4);
  volatile char *p = view();
  int ro = open(name, O_RDONLY);
  volatile char *r = mmap(0, 4 * PAGE, PROT_READ, MAP_SHARED, ro, 0);
  show("mapped", p, "aaWaaaaa");
  put(0, "b"); show("pwrite", p, "baWaaaaa"); put(0, "c"); show("again", p, "caWaaaaa");
  put(PAGE - 1, "de"); put(3 * PAGE, "f"); show("across", p, "ceWfadaa"); put(3 * PAGE, "e"); put(PAGE, "e"); show("and again", p, "ceWeadaa");
  show("shared", r, "ceaeadaa");
  put(2 * PAGE, "gg"); show("own page", p, "ceWeadaa");
  lseek(fd, 0, SEEK_SET); struct iovec v[2] = {{"h", 1}, {"i", 1}}; if (writev(fd, v, 2) != 2) return 4;
  show("writev", p, "heWeidaa");
  madvise((void *)(p + 2 * PAGE), PAGE, MADV_DONTNEED); show("dropped", p, "hegeidga");
  p[2 * PAGE] = 'X'; lseek(from, 0, SEEK_SET); lseek(fd, 0, SEEK_SET);
  if (sendfile(fd, from, 0, PAGE) != PAGE) return 5;
  show("sendfile", p, "zeXezzga");
  loff_t in = 0, to = 3 * PAGE; if (copy_file_range(from, &in, fd, &to, PAGE, 0) != PAGE) return 6;
  show("copy_file_range", p, "zeXzzzgz");
  int pipes[2]; if (pipe(pipes) || write(pipes[1], "mn", 2) != 2) return 7;
  to = 0; if (splice(pipes[0], 0, fd, &to, 2, 0) != 2) return 8;
  show("splice", p, "meXznzgz");
  madvise((void *)p, 4 * PAGE, MADV_DONTNEED); show("dropped", p, "megznzgz");
  p[2 * PAGE] = 'Y';
  fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, PAGE); show("hole", p, "0eYz00gz");
  ftruncate(fd, PAGE + 10); show("shrunk", p, "0e!!00!!"); show("shared", r, "0e!!00!!");
  ftruncate(fd, 3 * PAGE); show("grown", p, "0e0!000!");
  p[2 * PAGE] = 'Z'; put(3 * PAGE - 1, "xyz"); show("extended", p, "0eZy0000");
  truncate(name, 4 * PAGE - 1); put(4 * PAGE - 1, "q"); show("truncate", p, "0eZy000q");
  volatile char *m = mmap(0, PAGE, PROT_READ, MAP_PRIVATE, fd, PAGE); put(2 * PAGE, "k");
  m = mremap((void *)m, PAGE, 3 * PAGE, MREMAP_MAYMOVE); if (see(m) != 'e' || see(m + PAGE) != 'k' || see(m + 2 * PAGE) != 'y') { puts("bad mremap"); return 9; }
  put(PAGE, "l"); printf("moved %c\n", see(m));
  fflush(stdout);
  int pid = fork();
  if (!pid) {
    put(0, "C"); show("child", p, "Cl" "Zy000q"); p[PAGE] = 'O'; put(PAGE, "DD"); show("child's own", p, "COZy000q");
    ftruncate(fd, 8 * PAGE); fill(fd, 'K', 1); show("child again", p, "KOZyKK0q"); fflush(stdout); _exit(0);
  }
  wait(0); show("after the child", p, "KDZyKK0q"); show("shared", r, "KDkyKK0q");
  put(3 * PAGE, "P"); show("once more", p, "KDZPKK0q");
  int again = open(name, O_WRONLY | O_TRUNC); show("opened", p, "!!!!!!!!");
  fill(again, 'n', 4); show("written anew", p, "nnnnnnnn");
  volatile char *q = mmap((void *)p, PAGE, PROT_READ, MAP_PRIVATE | MAP_FIXED, from, 0); put(0, "s"); show("replaced", p, "znnnzznn");
  unlink(name); unlink(other);
  puts("ok");
  return 0;
}
