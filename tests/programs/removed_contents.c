// Contents are taken out of what shared mappings show: of a file, of memory without one, seen through each mapping and by another process;
// whole pages of a part, past a place where that fails, and where the mapping may not be written to.
#define _GNU_SOURCE
#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

enum { PAGE = 4096, LENGTH = 4 * PAGE, BOTH = PROT_READ | PROT_WRITE };

static unsigned sum(const volatile unsigned char *at) {
  unsigned sum = 0;
  for (int i = 0; i < LENGTH; i++) sum = sum * 31 + at[i];
  return sum;
}

static void remove_from(char *at, char *other) {
  memset(at, 'a', LENGTH);
  assert(!madvise(at + PAGE, 1, MADV_REMOVE));
  assert(at[PAGE - 1] == 'a' && !at[PAGE] && !at[2 * PAGE - 1] && at[2 * PAGE] == 'a' && sum(at) == sum(other));
  printf("%u", sum(at));
  at[PAGE + 7] = 'b';
  pid_t child = fork();
  assert(child >= 0);
  if (!child) {
    assert(!mprotect(at, PAGE, PROT_READ) && !madvise(at, PAGE, MADV_REMOVE));
    at[3 * PAGE] = 'c';
    _exit(!(other[PAGE + 7] == 'b' && !other[0]));
  }
  int status;
  assert(waitpid(child, &status, 0) == child && !status);
  assert(!at[0] && at[3 * PAGE] == 'c' && sum(at) == sum(other));
  printf(" %u", sum(at));
  // A gap in the middle: what lies on either side of it is gone.
  assert(!munmap(at + 2 * PAGE, PAGE));
  assert(madvise(at, LENGTH, MADV_REMOVE) == -1 && errno == ENOMEM);
  printf(" %u\n", sum(other));
}

int main(void) {
  int file = open("removed", O_RDWR | O_CREAT | O_TRUNC, 0600), memory = memfd_create("removed", 0);
  int objects[] = {file, memory};
  for (int i = 0; i < 2; i++) {
    assert(objects[i] >= 0 && !ftruncate(objects[i], LENGTH));
    char *at = mmap(NULL, LENGTH, BOTH, MAP_SHARED, objects[i], 0);
    char *other = mmap(NULL, LENGTH, BOTH, MAP_SHARED, objects[i], 0);
    assert(at != MAP_FAILED && other != MAP_FAILED);
    remove_from(at, other);
  }
  char *at = mmap(NULL, LENGTH, BOTH, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  assert(at != MAP_FAILED);
  memset(at, 'a', LENGTH);
  assert(!madvise(at + PAGE, 2 * PAGE, MADV_REMOVE));
  printf("%u\n", sum(at));
  char *own = mmap(NULL, PAGE, BOTH, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  own[0] = 'a';
  assert(madvise(own, PAGE, MADV_REMOVE) == -1 && own[0] == 'a');
  assert(!unlink("removed"));
  puts("ok");
}
