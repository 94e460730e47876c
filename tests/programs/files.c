// Reads, writes, maps and unmaps files; grows and shrinks memory; drops pages.
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>
int main(void) {
  char name[] = "/tmp/filesXXXXXX"; int fd = mkstemp(name); unlink(name);
  char block[5000]; for (int i = 0; i < 5000; i++) block[i] = i * 7;
  if (write(fd, block, 5000) != 5000) return 1;
  char a[10], b[20]; struct iovec v[2] = {{a, 10}, {b, 20}};
  if (preadv(fd, v, 2, 100) != 30 || memcmp(b, block + 110, 20)) return 2;
  char *m = mmap(0, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE, fd, 0); m[1] = 9;
  if (m[4999] != block[4999] || m[5001] != 0) return 3;
  char *g = mmap(0, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0); g[7] = 7;
  g = mremap(g, 4096, 1 << 20, MREMAP_MAYMOVE); if (g[7] != 7 || g[5000]) return 4;
  madvise(g, 4096, MADV_DONTNEED); if (g[7]) return 5;
  munmap(m, 8192);
  char *big = malloc(400000); memset(big, 1, 400000); free(big);
  struct stat st; if (fstat(fd, &st) || st.st_size != 5000) return 6;
  lseek(fd, 4990, SEEK_SET); if (read(fd, block, 100) != 10) return 7;
  char cwd[300]; if (!getcwd(cwd, sizeof cwd)) return 8;
  puts("ok");
  return 0;
}
