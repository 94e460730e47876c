// Calls of the vsyscall page, as old static programs make them: by call and by tail jump, with and without results, with a bad
// pointer, beside an entry point. Where the kernel has no such page, each is a fault.
#define _GNU_SOURCE
#include <setjmp.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/time.h>
#include <time.h>
#define PAGE 0xffffffffff600000ul
static sigjmp_buf out; static uintptr_t fault;
static void on_fault(int s, siginfo_t *i, void *c) { fault = (uintptr_t)i->si_addr; siglongjmp(out, 1); }
static long (*const now)(long *) = (void *)(PAGE + 0x400);
static int (*const day)(struct timeval *, void *) = (void *)PAGE;
static long (*const cpu)(unsigned *, unsigned *, void *) = (void *)(PAGE + 0x800);
long tail(long *t);
asm("tail: mov $0xffffffffff600400, %rax; jmp *%rax");
#define FAULTS(call) (sigsetjmp(out, 1) ? 1 : (call, 0))
int main(void) {
  struct sigaction a = {.sa_sigaction = on_fault, .sa_flags = SA_SIGINFO}; sigaction(SIGSEGV, &a, 0);
  long begin = time(0), t = 0;
  if (FAULTS(now(0))) { printf("none %d\n", (fault & ~0xffful) == PAGE); puts("ok"); return 0; }
  long r = now(&t); if (r != t || r < begin || r > begin + 60) return 1;
  long same = -1; if (tail(&same) < r || same < r) return 2;
  struct timeval v; struct timezone z; memset(&v, 1, sizeof v);
  if (day(&v, &z) || v.tv_sec < r || v.tv_usec > 999999 || day(&v, 0)) return 3;
  unsigned c = 99999; if (cpu(&c, 0, 0) || c > 4096) return 4;
  unsigned long kept; asm volatile("mov $0x123456789, %%rcx; mov %%rcx, %%r11; call *%2; mov %%rcx, %1; cmp %%r11, %%rcx; sete %b0"
    : "=a"(t), "=r"(kept) : "b"(now), "D"(0) : "rcx", "r11", "memory", "cc");
  for (int i = 0; i < 50; i++) if (now(0) < r) return 5;
  printf("%lx %d %d\n", kept, FAULTS(now((long *)8)), FAULTS(((void (*)(void))(PAGE + 0x10))()));
  puts("ok");
  return 0;
}
