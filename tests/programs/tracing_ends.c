// How tracing ends: tracees of a tracer that dies go on, or die with it; one that is let go of; a thread that waits for another's tracee.
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>
#define CHECK(x) do { if (!(x)) { printf("line %d: errno %d, status %#x\n", __LINE__, errno, status); return 1; } } while (0)
static int status, pipes[2];
static pid_t tracee;
static int seen;
static void *waiter(void *p) {
  int nothing;
  if (waitpid(-1, &nothing, __WNOTHREAD | WNOHANG) != -1 || errno != ECHILD || waitpid(tracee, &seen, 0) != tracee) return 0;
  return (void *)(long)(ptrace(PTRACE_CONT, tracee, 0, 0) == -1 && errno == ESRCH);
}
static pid_t sleeper(void) {
  pid_t pid = fork();
  if (pid) return pid;
  char byte;
  _exit(read(pipes[0], &byte, 1) == 1 ? 8 : 9);
}
static int died(pid_t pid, int how) { return waitpid(pid, &status, 0) == pid && status == how; }
int main(void) {
  CHECK(pipe(pipes) == 0);
  // A tracer that dies lets its tracee go on ...
  pid_t child = sleeper(), tracer = fork();
  if (!tracer) {
    if (ptrace(PTRACE_ATTACH, child, 0, 0) || waitpid(child, &status, 0) != child || status != (SIGSTOP << 8 | 0x7f)) _exit(1);
    _exit(0);
  }
  CHECK(died(tracer, 0));
  CHECK(write(pipes[1], "x", 1) == 1 && died(child, 8 << 8));
  // ... unless it wants to take it along.
  child = sleeper(), tracer = fork();
  if (!tracer) _exit(ptrace(PTRACE_SEIZE, child, 0, PTRACE_O_EXITKILL) != 0);
  CHECK(died(tracer, 0) && died(child, SIGKILL));
  // A tracee that its tracer is no parent of: its parent hears of its end, too.
  child = sleeper(), tracer = fork();
  if (!tracer) {
    if (ptrace(PTRACE_SEIZE, child, 0, 0) || write(pipes[1], "x", 1) != 1) _exit(1);
    if (waitpid(child, &status, 0) != child || status != 8 << 8) _exit(2);
    _exit(waitpid(child, &status, 0) == -1 && errno == ECHILD ? 0 : 3);
  }
  CHECK(died(tracer, 0) && died(child, 8 << 8));
  // Let go of, with a signal.
  child = sleeper();
  CHECK(ptrace(PTRACE_ATTACH, child, 0, 0) == 0 && waitpid(child, &status, 0) == child && status == (SIGSTOP << 8 | 0x7f));
  CHECK(ptrace(PTRACE_DETACH, child, 0, SIGTERM) == 0 && ptrace(PTRACE_DETACH, child, 0, 0) == -1 && errno == ESRCH);
  CHECK(died(child, SIGTERM));
  // Killed while it is stopped.
  child = sleeper();
  CHECK(ptrace(PTRACE_ATTACH, child, 0, 0) == 0 && waitpid(child, &status, 0) == child);
  CHECK(ptrace(PTRACE_KILL, child, 0, 0) == 0 && died(child, SIGKILL));
  // A thread that waits for another's tracee; only that one may ask.
  pthread_t waits;
  void *fine;
  tracee = fork();
  if (!tracee) _exit(ptrace(PTRACE_TRACEME, 0, 0, 0) || raise(SIGSTOP) ? 1 : 3);
  CHECK(pthread_create(&waits, 0, waiter, 0) == 0 && pthread_join(waits, &fine) == 0 && fine && seen == (SIGSTOP << 8 | 0x7f));
  CHECK(ptrace(PTRACE_CONT, tracee, 0, 0) == 0 && died(tracee, 3 << 8));
  puts("ok");
  return 0;
}
