// BUILD: -pthread -mno-red-zone
// Many system calls in a row, by which a recorder comes to note many at a time and a replay to put back many at a time: by threads, between
// signals, into code that is run, into memory that is shared or not there yet, with every flag.
#define _GNU_SOURCE
#include <assert.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

enum { TIMES = 300, FUNCTIONS = 16, LENGTH = 6 };

static int file, zero;
static volatile long handled;

static void handler(int signal) {
  char byte = 1;
  for (int i = 0; i < 5; i++) assert(getppid() > 0 && read(zero, &byte, 1) == 1 && byte == 0);
  handled++;
}

static void alarms(int micros) {
  struct itimerval every = {{0, micros}, {0, micros}};
  assert(!setitimer(ITIMER_REAL, &every, NULL));
}

// Flags that a call leaves alone, all of them in r11.
static uint64_t call(long number, long a, long b, long c, uint64_t flags) {
  register uint64_t r11 __asm__("r11");
  uint64_t after, result;
  __asm__ volatile("push %[flags]; popfq; syscall; pushfq; pop %[after]; cld"
                   : [after] "=&r"(after), "=a"(result), "=r"(r11)
                   : [flags] "r"(flags), "a"(number), "D"(a), "S"(b), "d"(c)
                   : "rcx", "memory", "cc");
  assert(after == flags && r11 == flags);
  return result;
}

static void with_every_flag(void) {
  char bytes[8];
  for (int i = 0; i < TIMES; i++) {
    uint64_t flags = 0x202 | (i & 1) | (i & 2) << 1 | (i & 4) << 2 | (i & 8) << 3 | (i & 16) << 3 | (i & 32) << 5 | (i & 64) << 5;
    memset(bytes, 'x', sizeof bytes);
    assert(call(SYS_read, zero, (long)bytes, 3, flags) == 3 && !memcmp(bytes, "\0\0\0xx", 5));
  }
}

// Functions are read from the file over one that is run, on a page of its own and beside the loop's data.
static void into_code(void) {
  uint8_t *code = mmap(NULL, 8192, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  assert(code != MAP_FAILED);
  long sum = 0;
  for (int i = 0; i < TIMES; i++) {
    uint8_t *at = code + 64 + (i % 3 ? 0 : 4090);
    assert(pread(file, at, LENGTH, i % FUNCTIONS * LENGTH) == LENGTH);
    for (int k = 0; k < i % 4 * 10; k++) assert(pread(file, code + 2048, 1, k % 90) == 1);
    int got = ((int (*)(void))at)();
    assert(got == i % FUNCTIONS);
    sum += got;
  }
  printf("%ld\n", sum);
  munmap(code, 8192);
}

// Into several places at once, and into the last bytes of entries.
static void scattered(void) {
  char bytes[5][40];
  for (int i = 0; i < TIMES; i++) {
    struct iovec parts[] = {{bytes[i % 5], 7}, {bytes[(i + 1) % 5] + 1, 0}, {bytes[(i + 2) % 5], 1 + i % 39}};
    struct pollfd polled[] = {{zero, POLLIN, 77}, {-1, POLLIN, 78}, {file, POLLOUT, 79}};
    memset(bytes, 'x', sizeof bytes);
    assert(readv(zero, parts, 3) == 8 + i % 39 && bytes[i % 5][6] == 0 && bytes[(i + 2) % 5][i % 39] == 0);
    assert(bytes[i % 5][7] == 'x' && bytes[(i + 1) % 5][1] == 'x');
    assert(poll(polled, 3, i % 2 ? -1 : 0) == 2);
    assert(polled[0].revents == POLLIN && polled[1].revents == 0 && polled[2].revents == POLLOUT);
  }
}

__attribute__((noinline)) static long down_the_stack(int depth) {
  volatile char room[300000];
  for (int i = 0; i < 20; i++) assert(read(zero, (void *)room, 2) == 2 && room[0] == 0);
  return depth ? down_the_stack(depth - 1) + room[1] : 0;
}

static void *thread(void *number) {
  long sum = 0;
  char bytes[3000];
  for (int i = 0; i < TIMES * 10; i++) {
    int len = i % 97 ? 1 + i % 40 : sizeof bytes;
    bytes[len - 1] = 1;
    assert(read(zero, bytes, len) == len);
    sum += bytes[len - 1] + (getppid() > 0) + i % (long)number;
  }
  return (void *)sum;
}

static void threads(void) {
  pthread_t all[3];
  for (long i = 0; i < 3; i++) assert(!pthread_create(&all[i], NULL, thread, (void *)(i + 2)));
  for (int i = 0; i < 3; i++) {
    void *sum;
    assert(!pthread_join(all[i], &sum));
    printf("%ld\n", (long)sum);
  }
}

static void shared(void) {
  volatile char *page = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  pid_t child = fork();
  for (int i = 0; i < TIMES; i++) {
    page[child ? 0 : 1] = 1;
    assert(read(zero, (char *)page + (child ? 0 : 1), 1) == 1 && page[child ? 0 : 1] == 0);
  }
  if (!child) _exit(3);
  int status;
  assert(waitpid(child, &status, 0) == child && WEXITSTATUS(status) == 3);
}

int main(void) {
  char name[] = "/tmp/many-calls-XXXXXX";
  file = mkstemp(name), zero = open("/dev/zero", O_RDONLY);
  unlink(name);
  for (int i = 0; i < FUNCTIONS; i++) {
    uint8_t function[LENGTH] = {0xb8, i, 0, 0, 0, 0xc3};  // mov eax, i; ret
    assert(write(file, function, LENGTH) == LENGTH);
  }
  signal(SIGALRM, handler);
  with_every_flag();
  into_code();
  scattered();
  assert(down_the_stack(8) == 0);
  alarms(2000);
  long had = handled;
  for (long i = 0; handled < had + 5 || i < 3000; i++) assert(getppid() > 0);
  threads();
  alarms(0);
  shared();
  puts("ok");
  return 0;
}
