// BUILD: -static -nostdlib -fno-stack-protector -fcf-protection=none
// Flags, carries and wide stores, without a C library.
static long call(long nr, long a, long b, long c) {
  long r;
  asm volatile("syscall" : "=a"(r) : "a"(nr), "D"(a), "S"(b), "d"(c) : "rcx", "r11", "memory");
  return r;
}
static unsigned long long sum[4];
static unsigned char bytes[64];
void _start(void) {
  asm volatile("and $-16, %rsp");
  unsigned long long x = 0x9e3779b97f4a7c15ull;
  for (int i = 0; i < 200; i++) {
    x ^= x << 13; x ^= x >> 7; x ^= x << 17;
    unsigned __int128 wide = (unsigned __int128)x * x;
    sum[0] += (unsigned long long)wide;
    sum[1] += (unsigned long long)(wide >> 64) + (sum[0] < (unsigned long long)wide);
    bytes[i & 63] = x;
    *(unsigned short *)(bytes + (x & 31)) += i;
    asm volatile("movdqu %0, %%xmm0\n paddb %%xmm0, %%xmm0\n movdqu %%xmm0, %0" : "+m"(*(char(*)[16])(bytes + (x & 47))) : : "xmm0");
    asm volatile("lock cmpxchgq %2, %0" : "+m"(sum[2]), "+a"(x) : "r"(x + 1) : "cc");
    asm volatile("lock xaddq %1, %0" : "+m"(sum[3]), "+r"(x) : : "cc");
  }
  if (sum[0] == 0) call(60, 1, 0, 0);
  call(1, 1, (long)"ok\n", 3);
  call(60, 0, 0, 0);
}
