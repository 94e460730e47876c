// Calls and calls, until it is asked to end.
#define _GNU_SOURCE
#include <signal.h>
#include <stdio.h>
#include <sys/syscall.h>
#include <unistd.h>
static volatile sig_atomic_t ends, others;
static void on_term(int signo) { ends = 1; }
static void on_other(int signo) { others++; }
int main(void) {
  signal(SIGTERM, on_term), signal(SIGUSR1, on_other), setvbuf(stdout, NULL, _IOLBF, 0);
  long sum = 0, self = syscall(SYS_getpid);
  for (int i = 0; i < 100; i++) sum += syscall(SYS_getpid) == self;
  printf("%ld\n", self);
  while (!ends) {
    for (int k = 0; k < 2000; k++) {
      sum += k;
      __asm__ volatile("" : "+r"(sum));
    }
    for (int k = 0; k < 30; k++)
      if (syscall(SYS_getpid) != self) return 1;
  }
  puts("ended");
  return 0;
}
