// BUILD: -lm
// x87, SSE and AVX state across calls and signals; rounding modes; stored environments.
#include <fenv.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
static volatile int seen;
static void h(int s) { volatile double d = 3.0; d = d / 7.0; seen++; }
int main(void) {
  signal(SIGUSR1, h);
  long double x = 1.0L; float f[8]; double acc = 0;
  for (int i = 1; i < 50; i++) { x = x * 1.01L + 1.0L / i; acc += (double)x; if (i % 10 == 0) raise(SIGUSR1); }
  volatile double one = 1.0, three = 3.0; fesetround(FE_UPWARD); volatile double up = one / three; fesetround(FE_DOWNWARD); volatile double down = one / three; fesetround(FE_TONEAREST);
  for (int i = 0; i < 8; i++) f[i] = i * 0.5f;
  for (int i = 0; i < 8; i++) acc += f[7 - i];
  fenv_t env; fegetenv(&env);
  printf("%.6f %d %d\n", acc, up > down, seen);
  puts(up > down && seen == 4 ? "ok" : "bad");
  return 0;
}
