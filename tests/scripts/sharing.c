// BUILD: -O0
// A child writes what its parent watches.
#include <stdio.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

volatile int *shared;

int main(void) {
  shared = mmap(0, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  *shared = 1;
  if (!fork()) {
    *shared = 22;
    _exit(0);
  }
  wait(0);
  *shared += 1;
  printf("%d\n", *shared);
  return 0;
}
