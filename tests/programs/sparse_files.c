// Mappings of files that are nearly all holes: the recording costs what they hold.
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#define LENGTH (1L << 40)
static int check(int fd, int flags) {
  if (ftruncate(fd, LENGTH) || pwrite(fd, "end", 3, LENGTH - 3) != 3) return 1;
  char *bytes = mmap(0, LENGTH, PROT_READ | PROT_WRITE, flags | MAP_NORESERVE, fd, 0);
  if (bytes == MAP_FAILED) return 2;
  strcpy(bytes + LENGTH / 2, "middle");
  if (memcmp(bytes + LENGTH - 3, "end", 3) || bytes[12345] || strcmp(bytes + LENGTH / 2, "middle")) return 3;
  return munmap(bytes, LENGTH) ? 4 : close(fd);
}
int main(void) {
  char name[] = "/tmp/sparse-XXXXXX";
  int fd = mkstemp(name);
  unlink(name);
  if (fd != -1 && ftruncate(fd, LENGTH) == 0 && check(fd, MAP_SHARED)) return 1;
  if (check(memfd_create("sparse", 0), MAP_PRIVATE)) return 2;
  puts("ok");
  return 0;
}
