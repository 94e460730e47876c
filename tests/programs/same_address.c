// BUILD: -no-pie
// Parent, child and grandchild write their own values to one address.
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>
static volatile int cell;
__attribute__((noinline)) static void set(int value) { cell = value; }
int main(void) {
  printf("ADDR %p\n", (void *)&cell);
  fflush(stdout);
  int status;
  set(1);
  if (!fork()) {
    set(2);
    if (!fork()) {
      set(3);
      _exit(cell == 3 ? 0 : 1);
    }
    wait(&status);
    set(20);
    _exit(WEXITSTATUS(status) == 0 && cell == 20 ? 0 : 1);
  }
  wait(&status);
  if (cell != 1) return 1;
  set(10);
  puts(WEXITSTATUS(status) == 0 && cell == 10 ? "ok" : "bad");
  return 0;
}
