// BUILD: -pthread
// What changes the memory of a process that runs and makes no call: writes through /proc/PID/mem and process_vm_writev, to one thread
// and to several, and to files that it has mapped.
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#define PAGE 4096
#define CHECK(x) do { if (!(x)) { printf("line %d\n", __LINE__); fflush(stdout); _exit(1); } } while (0)

static volatile long first = 1, second = 2;
static char path[64];

// Works until it is told otherwise.
static void until(volatile long *word, long value) {
  long sum = 0;
  for (long i = 0; *word != value; i++) sum += i * i ^ sum;
  if (sum == 7) puts("never");
}

static void *beside(void *arg) {
  until(&second, 20);
  return arg;
}

static void ends(pid_t child, int code) {
  int status;
  CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == code);
}

static void memory(int threads) {
  pid_t child = fork();
  if (!child) {
    pthread_t more[2];
    for (int i = 0; i < threads; i++) pthread_create(&more[i], 0, beside, 0);
    until(&first, 10);
    for (int i = 0; i < threads; i++) pthread_join(more[i], 0);
    until(&second, 20);
    _exit(7);
  }
  usleep(30000);
  sprintf(path, "/proc/%d/mem", child);
  int mem = open(path, O_RDWR);
  for (long value = 3; value <= 10; value++) CHECK(pwrite(mem, &value, 8, (intptr_t)&first) == 8);
  long value = 20;
  struct iovec from = {&value, 8}, to = {(void *)&second, 8};
  CHECK(process_vm_writev(child, &from, 1, &to, 1, 0) == 8);
  close(mem);
  ends(child, 7);
}

// The file has two pages; the child maps them and one more, shared or private, and waits for a word in each.
static void file(int fd, int flags) {
  ftruncate(fd, 2 * PAGE);
  pid_t child = fork();
  if (!child) {
    int own = open(path, O_RDWR);
    volatile long *words = mmap(0, 3 * PAGE, PROT_READ | PROT_WRITE, flags, own, 0);
    close(own);
    if (flags == MAP_SHARED) words[8] = 5;
    until(words, 3);
    until(words + PAGE / 8, 4);
    if (flags == MAP_SHARED) words[9] = 6;
    until(words + 2, 1);
    until(words + 2 * PAGE / 8, 8);
    _exit(words[8] == (flags == MAP_SHARED ? 5 : 0) ? 9 : 10);
  }
  usleep(30000);
  long value = 3;
  CHECK(pwrite(fd, &value, 8, 0) == 8);
  value = 4;
  CHECK(pwrite(fd, &value, 8, PAGE) == 8);
  CHECK(ftruncate(fd, 2 * PAGE) == 0);
  CHECK(ftruncate(fd, 3 * PAGE) == 0);
  CHECK(posix_fallocate(fd, 0, PAGE) == 0);
  value = 8;
  CHECK(pwrite(fd, &value, 8, 2 * PAGE) == 8);
  value = 1;
  CHECK(pwrite(fd, &value, 8, 16) == 8);
  ends(child, 9);
  CHECK(pread(fd, &value, 8, 64) == 8);
  printf("%d %ld", flags, value);
  CHECK(pread(fd, &value, 8, 72) == 8);
  printf(" %ld\n", value);
}

// Both have it mapped, and its length changes.
static void lengths(int fd) {
  ftruncate(fd, PAGE);
  volatile long *words = mmap(0, 4 * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  words[0] = words[1] = 0;
  pid_t child = fork();
  if (!child) {
    words[1] = 1;
    until(words, 1);
    words[2 * PAGE / 8] = 12;
    words[1] = 2;
    until(words, 2);
    _exit(11);
  }
  until(words + 1, 1);
  CHECK(ftruncate(fd, PAGE) == 0);
  CHECK(ftruncate(fd, 3 * PAGE) == 0);
  CHECK(words[2 * PAGE / 8] == 0);
  words[0] = 1;
  until(words + 1, 2);
  CHECK(words[2 * PAGE / 8] == 12);
  CHECK(ftruncate(fd, PAGE) == 0);
  words[0] = 2;
  ends(child, 11);
  munmap((void *)words, 4 * PAGE);
}

int main(void) {
  memory(0);
  memory(2);
  sprintf(path, "/tmp/busy_neighboursXXXXXX");
  int fd = mkstemp(path);
  file(fd, MAP_SHARED);
  ftruncate(fd, 0);
  file(fd, MAP_PRIVATE);
  lengths(fd);
  unlink(path);
  puts("ok");
  return 0;
}
