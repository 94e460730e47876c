// A child that asks not to be traced is recorded like any other.
#define _GNU_SOURCE
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <sys/wait.h>
static char stack[1 << 16];
static int child(void *value) { *(int *)value = 5; return 6; }
int main(void) {
  int value = 0, status;
  pid_t pid = clone(child, stack + sizeof stack, CLONE_UNTRACED | CLONE_VM | SIGCHLD, &value);
  if (pid == -1 || waitpid(pid, &status, 0) != pid || WEXITSTATUS(status) != 6 || value != 5) return 1;
  puts("ok");
  return 0;
}
