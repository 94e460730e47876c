// BUILD: -pthread
// Calls that let others go on: bytes through pipes between processes, and threads that are woken. What a recording says of their order can
// be told from how many bytes there were, and how many were woken.
#define _GNU_SOURCE
#include <assert.h>
#include <linux/futex.h>
#include <pthread.h>
#include <stdio.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

enum { TIMES = 400 };
static int there[2], back[2];

static void processes(void) {
  char byte;
  assert(!pipe(there) && !pipe(back));
  pid_t child = fork();
  if (!child) {
    for (int i = 0; i < TIMES; i++) assert(read(there[0], &byte, 1) == 1 && write(back[1], &byte, 1) == 1);
    _exit(5);
  }
  for (int i = 0; i < TIMES; i++) assert(write(there[1], "x", 1) == 1 && read(back[0], &byte, 1) == 1);
  int status;
  assert(wait(&status) == child && WEXITSTATUS(status) == 5);
}

static int word;

static void *sleeper(void *arg) {
  for (int i = 0; i < TIMES; i++) {
    while (__atomic_load_n(&word, __ATOMIC_SEQ_CST) == 0) syscall(SYS_futex, &word, FUTEX_WAIT_PRIVATE, 0, NULL);
    __atomic_store_n(&word, 0, __ATOMIC_SEQ_CST);
    syscall(SYS_futex, &word, FUTEX_WAKE_PRIVATE, 1);
  }
  return NULL;
}

int main(void) {
  processes();
  pthread_t thread;
  pthread_create(&thread, NULL, sleeper, NULL);
  for (int i = 0; i < TIMES; i++) {
    __atomic_store_n(&word, 1, __ATOMIC_SEQ_CST);
    syscall(SYS_futex, &word, FUTEX_WAKE_PRIVATE, 1);
    while (__atomic_load_n(&word, __ATOMIC_SEQ_CST) == 1) syscall(SYS_futex, &word, FUTEX_WAIT_PRIVATE, 1, NULL);
  }
  pthread_join(thread, NULL);
  puts("ok");
  return 0;
}
