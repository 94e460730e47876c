// BUILD: -O0
// What fails jumps back to where it was tried, which notes it at once.
#include <setjmp.h>
#include <stdio.h>
static jmp_buf back;
static long failures;
static void fail(int n) {
  if (n == 0) longjmp(back, 1);
  fail(n - 1);
}
static void attempt(void) {
  if (setjmp(back) == 0) fail(3);
  else failures = 41; // CULPRIT
}
int main(void) {
  printf("ADDR %p\n", (void *)&failures);
  fflush(stdout);
  attempt();
  return failures != 41;
}
