// BUILD: -static
// Calls, returns, tail calls, indirect calls and a jump table, with the C library's start-up.
#include <stdio.h>
#include <stdlib.h>
__attribute__((noinline)) static long fib(long n) { return n < 2 ? n : fib(n - 1) + fib(n - 2); }
__attribute__((noinline, optimize("O2"))) static int even(int n);
__attribute__((noinline, optimize("O2"))) static int odd(int n) { return n == 0 ? 0 : even(n - 1); }
__attribute__((noinline, optimize("O2"))) static int even(int n) { return n == 0 ? 1 : odd(n - 1); }
static int compare(const void *a, const void *b) { return *(const int *)a - *(const int *)b; }
__attribute__((noinline)) static int table(int k) {
  switch (k) { case 0: return 7; case 1: return 11; case 2: return 13; case 3: return 17; case 4: return 19; case 5: return 23; default: return 1; }
}
int main(void) {
  int v[200];
  for (int i = 0; i < 200; i++) v[i] = (i * 7919) % 211;
  qsort(v, 200, sizeof *v, compare);
  long s = fib(12) + even(50) + table(v[3] % 7);
  for (int i = 1; i < 200; i++) if (v[i - 1] > v[i]) return 1;
  puts(s > 0 ? "ok" : "bad");
  return 0;
}
