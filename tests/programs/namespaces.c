// The first process of a process id namespace: its ids, signals that do not kill it, one of its own that does, its end and the others'.
#define _GNU_SOURCE
#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>
static int all(int (*first)(void)) {
  int status;
  pid_t child = syscall(SYS_clone, CLONE_NEWUSER | CLONE_NEWPID | CLONE_NEWUTS | SIGCHLD, 0, 0, 0, 0);
  if (child == -1) return -errno;
  if (!child) _exit(first());
  return waitpid(child, &status, 0) == child ? status : -1;
}
static volatile sig_atomic_t sender;
static void got(int signal, siginfo_t *info, void *context) { sender = info->si_pid; }
static int numbers(void) {
  if (getpid() != 1 || getppid() != 0) return 1;
  kill(1, SIGTERM);  // The first process has no handler: nothing happens.
  struct sigaction action = {.sa_sigaction = got, .sa_flags = SA_SIGINFO};
  sigaction(SIGCHLD, &action, 0);
  pid_t child = fork();
  if (!child) _exit(getpid() == 2 && getppid() == 1 ? 7 : 8);
  int status;
  pid_t found;
  while ((found = wait(&status)) == -1 && errno == EINTR) {}
  if (child != 2 || found != 2 || sender != 2 || WEXITSTATUS(status) != 7) return 2;
  if (sethostname("inside", 6)) return 3;
  for (int i = 0; i < 3; i++)
    if (!fork()) for (;;) pause();  // They go with their first process.
  return 42;
}
static int crashes(void) { return *(volatile int *)8; }
int main(void) {
  int status = all(numbers);
  if (status == -EPERM || status == -ENOSPC || status == -EINVAL) return puts("ok"), 0;  // Not for this user, on this machine.
  if (status < 0 || !WIFEXITED(status) || WEXITSTATUS(status) != 42) return 1;
  status = all(crashes);
  if (status < 0 || !WIFSIGNALED(status) || WTERMSIG(status) != SIGSEGV) return 2;
  puts("ok");
  return 0;
}
