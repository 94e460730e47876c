// A stack that ends where a limit was set while the program ran: the fault, and death where no handler finds room.
#define _GNU_SOURCE
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>
static volatile int *depth;
static int deeper(void) {
  volatile char room[512];
  room[0] = ++*depth;
  return deeper() + room[0];
}
static void unreached(int signal) { _exit(1); }
int main(void) {
  depth = mmap(0, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  pid_t child = fork();
  if (!child) {
    signal(SIGSEGV, unreached);
    struct rlimit limit = {300000, 300000};
    setrlimit(RLIMIT_STACK, &limit);
    _exit(deeper());
  }
  int status;
  if (waitpid(child, &status, 0) != child || !WIFSIGNALED(status) || WTERMSIG(status) != SIGSEGV) return 1;
  if (*depth < 100 || *depth > 600) return 2;
  puts("ok");
  return 0;
}
