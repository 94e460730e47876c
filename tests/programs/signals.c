// Synchronous signals: a repaired fault, an edited context, a jump out of a handler, a raise, an alternate stack.
#define _GNU_SOURCE
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <ucontext.h>
static char *page; static sigjmp_buf out; static volatile int faults, skips, raised;
static void repair(int s, siginfo_t *i, void *c) { faults++; if ((char *)i->si_addr - page >= 4096) siglongjmp(out, 1); mprotect(page, 4096, PROT_READ | PROT_WRITE); }
static void skip(int s, siginfo_t *i, void *c) { skips++; ((ucontext_t *)c)->uc_mcontext.gregs[REG_RIP] += 2; }
static void count(int s) { raised++; }
int main(void) {
  stack_t st = {.ss_sp = malloc(65536), .ss_size = 65536}; sigaltstack(&st, 0);
  struct sigaction a = {.sa_sigaction = repair, .sa_flags = SA_SIGINFO | SA_ONSTACK}; sigaction(SIGSEGV, &a, 0);
  a.sa_sigaction = skip; sigaction(SIGILL, &a, 0); signal(SIGUSR1, count);
  page = mmap(0, 8192, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  page[5] = 1;
  if (sigsetjmp(out, 1) == 0) page[4097] = 1;
  asm volatile("ud2");
  for (int i = 0; i < 10; i++) raise(SIGUSR1);
  double d = 1.5; for (int i = 0; i < 10; i++) d = d * 1.25 + i;
  printf("%d %d %d %.3f\n", faults, skips, raised, d);
  puts(faults == 2 && skips == 1 && raised == 10 ? "ok" : "bad");
  return 0;
}
