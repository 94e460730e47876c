// BUILD: -static -nostdlib -fno-stack-protector -fcf-protection=none
// String instructions: both directions, overlapping, zero and large counts, compare and scan.
static long call(long nr, long a, long b, long c) {
  long r;
  asm volatile("syscall" : "=a"(r) : "a"(nr), "D"(a), "S"(b), "d"(c) : "rcx", "r11", "memory");
  return r;
}
static char buffer[12000], other[12000];
static void fill(void *to, int value, long n) { asm volatile("rep stosb" : "+D"(to), "+c"(n) : "a"(value) : "memory"); }
static void copy(void *to, const void *from, long n) { asm volatile("rep movsb" : "+D"(to), "+S"(from), "+c"(n) : : "memory"); }
static void copy_back(char *to, const char *from, long n) {
  to += n - 1; from += n - 1;
  asm volatile("std\n rep movsb\n cld" : "+D"(to), "+S"(from), "+c"(n) : : "memory");
}
static long length(const char *s) {
  long n = -1;
  asm volatile("repne scasb" : "+D"(s), "+c"(n) : "a"(0) : "memory", "cc");
  return -n - 2;
}
static int equal(const void *a, const void *b, long n) {
  unsigned char same;
  asm volatile("cmp %%al, %%al\n repe cmpsb\n sete %0" : "=r"(same), "+D"(a), "+S"(b), "+c"(n) : : "memory", "cc");
  return same;
}
void _start(void) {
  asm volatile("and $-16, %rsp");
  fill(buffer, 'x', 300); fill(buffer, 'y', 5000); fill(buffer + 10, 'z', 0);
  copy(other, buffer, 5000); copy(other + 3, other, 9); copy_back(other + 1, other, 700);
  asm volatile("rep stosq" : : "D"(buffer + 4), "c"(40), "a"(0x1122334455667788) : "memory");
  long eq = equal(other, other, 5000), ne = equal(buffer, other, 5000);
  buffer[6000] = 0; fill(buffer, 'q', 77); buffer[77] = 0;
  if (!eq || ne || length(buffer) != 77) call(60, 1, 0, 0);
  call(1, 1, (long)"ok\n", 3);
  call(60, 0, 0, 0);
}
