// A program that has its own rdtsc raise SIGSEGV, meets that, and takes it back.
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <sys/prctl.h>
#include <x86intrin.h>
static sigjmp_buf out; static int met;
static void on_fault(int s) { met++; siglongjmp(out, 1); }
int main(void) {
  signal(SIGSEGV, on_fault);
  unsigned aux; int state = 0;
  prctl(PR_SET_TSC, PR_TSC_SIGSEGV, 0, 0, 0);
  if (!sigsetjmp(out, 1)) __rdtsc();
  if (!sigsetjmp(out, 1)) __rdtscp(&aux);
  prctl(PR_GET_TSC, &state, 0, 0, 0);
  prctl(PR_SET_TSC, PR_TSC_ENABLE, 0, 0, 0);
  unsigned long long a = __rdtsc(), b = __rdtscp(&aux);
  printf("%d %d %d\n", met, state, b > a);
  puts(met == 2 && state == PR_TSC_SIGSEGV && b > a ? "ok" : "bad");
  return 0;
}
