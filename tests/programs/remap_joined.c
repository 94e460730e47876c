// Mappings that the kernel joined are moved, shortened and lengthened as one.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#define PAGE 4096L
static int fd;
static char filler[1 << 16] __attribute__((used)) = {1};
static char *joined(void) {
  char *at = mmap(0, 8 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE, fd, 0);
  mmap(at, 3 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_FIXED, fd, 0);
  return at;
}
int main(void) {
  fd = open("/proc/self/exe", O_RDONLY);
  char *at = joined();
  at[2 * PAGE] = 'b';
  at[5 * PAGE] = 'c';
  char *to = mremap(at, 8 * PAGE, 16 * PAGE, MREMAP_MAYMOVE);
  if (to == MAP_FAILED) return errno == EFAULT ? puts("ok"), 0 : 1;  // A kernel that did not join them.
  if (memcmp(to, "\177ELF", 4) || to[2 * PAGE] != 'b' || to[5 * PAGE] != 'c') return 2;
  at = joined();
  at[PAGE] = 'd';
  if (mremap(at + PAGE, 7 * PAGE, PAGE, 0) != at + PAGE || at[PAGE] != 'd' || memcmp(at, "\177ELF", 4)) return 3;
  at = joined();
  char *place = mmap(0, 8 * PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  at[3 * PAGE] = 'e';
  if (mremap(at, 8 * PAGE, 4 * PAGE, MREMAP_MAYMOVE | MREMAP_FIXED, place) != place || place[3 * PAGE] != 'e') return 4;
  puts("ok");
  return 0;
}
