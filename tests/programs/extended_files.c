// Files that are mapped shared for writing and get longer, or change where no mapping shows them, before that part is mapped, too.
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define PAGE 4096
#define WRITABLE (PROT_READ | PROT_WRITE)

static char name[] = "/tmp/extended_filesXXXXXX";

static void put(int fd, const char *byte, off_t at) {
  if (pwrite(fd, byte, 1, at) != 1) _exit(1);
}

int main(void) {
  int fd = mkstemp(name), status;
  ftruncate(fd, 2 * PAGE);
  volatile char *first = mmap(0, PAGE, WRITABLE, MAP_SHARED, fd, 0);
  first[0] = 'a';
  // Beside what is mapped; past the end.
  put(fd, "b", PAGE);
  put(fd, "c", 3 * PAGE - 1);
  volatile char *more = mmap(0, 2 * PAGE, WRITABLE, MAP_SHARED, fd, PAGE);
  printf("%c %c %c\n", first[0], more[0], more[2 * PAGE - 1]);
  more[1] = 'd';
  first[1] = 'e';
  volatile char *whole = mmap(0, 3 * PAGE, WRITABLE, MAP_SHARED, fd, 0);
  printf("%c %c %c\n", whole[0], whole[1], whole[PAGE + 1]);
  // A mapping gets longer with its file.
  put(fd, "f", 4 * PAGE);
  whole = mremap((void *)whole, 3 * PAGE, 5 * PAGE, MREMAP_MAYMOVE);
  whole[4 * PAGE + 1] = 'g';
  printf("%c %c %c\n", whole[1], whole[4 * PAGE], whole[4 * PAGE + 1]);
  // One process lengthens it a page at a time, as it goes; the other maps what there is now.
  int to[2], from[2];
  char byte;
  pipe(to);
  pipe(from);
  pid_t child = fork();
  if (!child) {
    for (int page = 5; page < 9; page++) {
      read(to[0], &byte, 1);
      volatile char *last = mmap(0, PAGE, WRITABLE, MAP_SHARED, fd, page * PAGE);
      last[1] = last[0] + 1;
      first[2] = page;
      write(from[1], "x", 1);
    }
    _exit(3);
  }
  for (int page = 5; page < 9; page++) {
    char number = '0' + page;
    put(fd, &number, page * PAGE);
    write(to[1], "x", 1);
    read(from[0], &byte, 1);
    volatile char *last = mmap(0, PAGE, WRITABLE, MAP_SHARED, fd, page * PAGE);
    printf("%c %c %d\n", last[0], last[1], first[2]);
  }
  if (waitpid(child, &status, 0) != child || WEXITSTATUS(status) != 3) return 2;
  unlink(name);
  puts("ok");
  return 0;
}
