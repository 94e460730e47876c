// BUILD: -O0
// Parts of a file are read into several buffers at once; the second one gets bytes that were wrong in the file.
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/uio.h>
#include <unistd.h>
static char body[16], head[4];
static int fill(int file) {
  struct iovec parts[] = {{head, sizeof head}, {body, sizeof body}};
  return preadv(file, parts, 2, 2) == 20; // CULPRIT
}
int main(void) {
  int file = memfd_create("records", 0);
  if (write(file, "..HEADBodyOfRecord12...", 23) != 23 || !fill(file)) return 1;
  printf("ADDR %p\n", (void *)&body[3]);
  return memcmp(body, "BodyOfRecord12", 14);
}
