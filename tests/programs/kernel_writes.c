// BUILD: -O0 -pthread
// Memory that the kernel writes outside of calls: at exec, at a thread's birth and end, and for a signal's handler. With an argument
// it says where, which may differ from run to run.
#define _GNU_SOURCE
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

int given = 5, cleared;
pthread_mutex_t robust;
volatile int born, ended;
static char stack[65536] __attribute__((aligned(16)));
static void *frame;

static void on_signal(int signo, siginfo_t *info, void *context) { frame = info; }

static void *keep_locked(void *nothing) {
  pthread_mutex_lock(&robust);
  return nothing;
}

static int leave(void *nothing) {
  syscall(SYS_exit, 0);
  return 0;
}

static __attribute__((noinline)) void interrupt(void) { raise(SIGUSR1); }

int main(int argc, char **argv) {
  struct sigaction action = {.sa_sigaction = on_signal, .sa_flags = SA_SIGINFO};
  sigaction(SIGUSR1, &action, NULL);
  interrupt();
  pthread_mutexattr_t attributes;
  pthread_mutexattr_init(&attributes);
  pthread_mutexattr_setrobust(&attributes, PTHREAD_MUTEX_ROBUST);
  pthread_mutex_init(&robust, &attributes);
  pthread_t thread;
  pthread_create(&thread, NULL, keep_locked, NULL);
  pthread_join(thread, NULL);
  ended = -1;
  int flags = CLONE_VM | CLONE_FS | CLONE_FILES | CLONE_SIGHAND | CLONE_THREAD | CLONE_SYSVSEM |
              CLONE_PARENT_SETTID | CLONE_CHILD_CLEARTID;
  int tid = clone(leave, stack + sizeof stack, flags, NULL, &born, NULL, &ended);
  while (ended)
    syscall(SYS_futex, &ended, FUTEX_WAIT, -1, NULL, NULL, 0);
  if (tid != born || given != 5 || cleared)
    abort();
  if (argc > 1)
    printf("FRAME %p ARGV %p\n", frame, (void *)argv[0]);
  puts("ok");
  return 0;
}
