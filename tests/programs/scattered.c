// Scatters that fault halfway and go on when a handler has mended what was in the way. A processor without AVX-512 stores the same one by one.
#include <immintrin.h>
#include <signal.h>
#include <stdio.h>
#include <sys/mman.h>
#define PAGE 4096

static int *const room = (int *)0x11000000;
static volatile int mended;

static void mend(int signal, siginfo_t *info, void *context) {
  mended++;
  mprotect((void *)((long)info->si_addr & -PAGE), PAGE, PROT_READ | PROT_WRITE);
}

__attribute__((target("avx512f"))) static void scatter(const int *at, const int *values, int mask) {
  _mm512_mask_i32scatter_epi32(room, mask, _mm512_loadu_si512(at), _mm512_loadu_si512(values), 4);
}

static void one_by_one(const int *at, const int *values, int mask) {
  for (int i = 0; i < 16; i++)
    if (mask >> i & 1) room[at[i]] = values[i];
}

int main(void) {
  static const int at[16] = {1, 2, 3, 4, 1024, 1025, 5, 6, 2048, 2049, 7, 1026, 8, 2, 3072, 9};
  int values[16], wrong = 0;
  struct sigaction action = {.sa_sigaction = mend, .sa_flags = SA_SIGINFO};
  sigaction(SIGSEGV, &action, 0);
  mmap(room, 4 * PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
  for (int i = 0; i < 16; i++) values[i] = 0x5a000000 + i;
  (__builtin_cpu_supports("avx512f") ? scatter : one_by_one)(at, values, 0xfffb);
  for (int i = 0; i < 16; i++) wrong += i != 2 && i != 1 && room[at[i]] != values[i];
  puts(!wrong && room[2] == values[13] && !room[3] && mended == 4 ? "ok" : "bad");
  return 0;
}
