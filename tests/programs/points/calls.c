// System calls without pause, in threads and processes that are interrupted, stopped and killed anywhere in them.
#define _GNU_SOURCE
#include <assert.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static int file, null, ring[2], stop;
static volatile unsigned alarms, others;
static char digits[4096];

static void on_alarm(int signo) {
  char bytes[8];
  alarms++;
  assert(pread(file, bytes, 8, 16) == 8 && !memcmp(bytes, digits + 16, 8));
  assert(write(null, bytes, 8) == 8);
}
static void on_other(int signo) { others++; }

// Calls and some work; the sum depends on what every call returned.
static uint64_t calls(unsigned seed, int times) {
  uint64_t sum = 0;
  char bytes[64];
  struct timespec before, after;
  clock_gettime(CLOCK_MONOTONIC, &before);
  for (int i = 0; i < times; i++) {
    seed = seed * 1103515245 + 12345;
    unsigned at = seed / 7 % 4000, len = seed / 5 % 60 + 1;
    assert(pread(file, bytes, len, at) == len && !memcmp(bytes, digits + at, len));
    sum += bytes[len - 1];
    assert(write(null, bytes, len) == len);
    assert(syscall(SYS_gettid) == gettid() && getppid() > 0);
    clock_gettime(CLOCK_MONOTONIC, &after);
    assert(after.tv_sec > before.tv_sec || (after.tv_sec == before.tv_sec && after.tv_nsec >= before.tv_nsec));
    before = after;
    for (unsigned k = seed % 300; k; k--) sum = sum * 31 + k;
  }
  return sum;
}

static void *worker(void *arg) {
  uint64_t *sum = arg, part[6];
  for (int i = 0; i < 6; i++) part[i] = calls(*sum + i, 600), *sum += part[i] % 1000;
  char byte = 0;
  // Reads that wait, among reads that do not.
  for (int i = 0; i < 50; i++) assert(read(ring[0], &byte, 1) == 1 && byte == 'x'), *sum += calls(i, 2) % 10;
  return NULL;
}

static void pause_for(long nanos) { nanosleep(&(struct timespec){0, nanos}, NULL); }

// A process that calls and calls, until it is killed.
static pid_t endless(void) {
  pid_t child = fork();
  if (child) return child;
  setitimer(ITIMER_REAL, &(struct itimerval){0}, NULL);
  for (unsigned i = 0;; i++) calls(i, 10), pause_for(50000);
}

int main(void) {
  char name[] = "/tmp/calls-XXXXXX";
  file = mkstemp(name), unlink(name), null = open("/dev/null", O_RDWR);
  for (int i = 0; i < sizeof digits; i++) digits[i] = '0' + i * 7 % 10;
  assert(write(file, digits, sizeof digits) == sizeof digits && !pipe(ring));
  calls(1, 20);
  sigaction(SIGALRM, &(struct sigaction){.sa_handler = on_alarm, .sa_flags = SA_RESTART}, NULL);
  sigaction(SIGUSR1, &(struct sigaction){.sa_handler = on_other, .sa_flags = SA_RESTART}, NULL);
  setitimer(ITIMER_REAL, &(struct itimerval){{0, 1000}, {0, 1000}}, NULL);
  uint64_t sum = calls(2, 1500), sums[3] = {10, 20, 30};
  pthread_t threads[3];
  for (int i = 0; i < 3; i++) pthread_create(&threads[i], NULL, worker, &sums[i]);
  for (int i = 0; i < 150; i++) pause_for(100000), assert(write(ring[1], "x", 1) == 1);
  for (int i = 0; i < 3; i++) pthread_join(threads[i], NULL), sum += sums[i];

  int status, ends[3] = {SIGTERM, SIGKILL, SIGSEGV};
  for (int i = 0; i < 3; i++) {
    pid_t child = endless();
    for (int k = 0; k < 5; k++) {
      pause_for(1100000 + 37000 * k);
      kill(child, SIGUSR1);
      pause_for(700000);
      kill(child, SIGSTOP);
      assert(waitpid(child, &status, WUNTRACED) == child && WIFSTOPPED(status));
      kill(child, SIGCONT);
    }
    kill(child, ends[i]);
    assert(waitpid(child, &status, 0) == child && WIFSIGNALED(status) && WTERMSIG(status) == ends[i]);
  }
  setitimer(ITIMER_REAL, &(struct itimerval){0}, NULL);
  printf("sum %lu, %s\n", sum, alarms && !others ? "alarmed" : "not alarmed");
  return 0;
}
