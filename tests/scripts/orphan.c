// BUILD: -O0
// A child that outlives its parent, and becomes another program.
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

static int step;

static void child(void) {
  step = 2;
  execl("/bin/true", "true", NULL);
}

int main(void) {
  int ends[2];
  char byte;
  step = pipe(ends);
  if (fork() == 0) {
    close(ends[1]);
    read(ends[0], &byte, 1);
    child();
  }
  step = 1;
  return 0;
}
