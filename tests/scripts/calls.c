// System calls one after the other, one during which a child runs.
#define _GNU_SOURCE
#include <stdio.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

int main(void) {
  syscall(SYS_getppid);
  if (!fork()) {
    syscall(SYS_getppid);
    _exit(3);
  }
  int status;
  wait4(-1, &status, 0, 0);
  syscall(SYS_getuid);
  syscall(SYS_getppid);
  return status != 3 << 8;
}
