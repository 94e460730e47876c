// A program that traces a family: what a tracee makes is traced, too; programs it executes; group stops, interrupts, and ends.
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>
#define CHECK(x) do { if (!(x)) { printf("line %d: errno %d, status %#x\n", __LINE__, errno, status); return 1; } } while (0)
#define EVENT(e) (PTRACE_EVENT_##e << 16 | SIGTRAP << 8 | 0x7f)
static int status, pipes[2][2];
static volatile sig_atomic_t told;
static siginfo_t last;
static void got(int s, siginfo_t *i, void *c) { told++; last = *i; }
static void *thread(void *p) { return p; }
static int child(char *self) {
  char byte;
  if (read(pipes[0][0], &byte, 1) != 1) return 1;
  pid_t pid = fork();
  if (!pid) _exit(5);
  if (waitpid(pid, &status, 0) != pid || WEXITSTATUS(status) != 5) return 2;
  pid = vfork();
  if (!pid) _exit(6);
  if (waitpid(pid, &status, 0) != pid || WEXITSTATUS(status) != 6) return 3;
  pthread_t made;
  if (pthread_create(&made, 0, thread, 0) || pthread_join(made, 0)) return 4;
  if (write(pipes[1][1], "x", 1) != 1 || read(pipes[0][0], &byte, 1) != 1) return 5;
  execl(self, self, "again", NULL);
  return 6;
}
static unsigned long message(pid_t pid) { unsigned long m = 0; ptrace(PTRACE_GETEVENTMSG, pid, 0, &m); return m; }
// Lets a new task run to its end, and gives its status.
static int finish(pid_t pid) {
  if (waitpid(pid, &status, __WALL) != pid || status != EVENT(STOP) || ptrace(PTRACE_CONT, pid, 0, 0)) return -1;
  return waitpid(pid, &status, __WALL) == pid ? status : -1;
}
int main(int argc, char **argv) {
  if (argc > 1) return 44;
  if (pipe(pipes[0]) || pipe(pipes[1])) return 1;
  char self[256];
  self[readlink("/proc/self/exe", self, 255)] = 0;
  pid_t pid = fork();
  if (!pid) _exit(child(self));
  long options = PTRACE_O_TRACEFORK | PTRACE_O_TRACEVFORK | PTRACE_O_TRACEVFORKDONE | PTRACE_O_TRACECLONE | PTRACE_O_TRACEEXEC | PTRACE_O_TRACEEXIT;
  CHECK(ptrace(PTRACE_SEIZE, pid, 0, options & ~PTRACE_O_TRACEEXIT) == 0);
  CHECK(write(pipes[0][1], "x", 1) == 1);
  CHECK(waitpid(pid, &status, 0) == pid && status == EVENT(FORK));
  CHECK(finish(message(pid)) == 5 << 8);
  CHECK(ptrace(PTRACE_CONT, pid, 0, 0) == 0);
  CHECK(waitpid(pid, &status, 0) == pid && status == (SIGCHLD << 8 | 0x7f));
  CHECK(ptrace(PTRACE_CONT, pid, 0, SIGCHLD) == 0);
  CHECK(waitpid(pid, &status, 0) == pid && status == EVENT(VFORK));
  pid_t vforked = message(pid);
  CHECK(ptrace(PTRACE_CONT, pid, 0, 0) == 0);
  CHECK(finish(vforked) == 6 << 8);
  CHECK(waitpid(pid, &status, 0) == pid && status == EVENT(VFORK_DONE) && message(pid) == vforked);
  CHECK(ptrace(PTRACE_CONT, pid, 0, 0) == 0);
  CHECK(waitpid(pid, &status, 0) == pid && status == (SIGCHLD << 8 | 0x7f));
  CHECK(ptrace(PTRACE_CONT, pid, 0, SIGCHLD) == 0);
  CHECK(waitpid(pid, &status, 0) == pid && status == EVENT(CLONE));
  pid_t clone = message(pid);
  CHECK(ptrace(PTRACE_CONT, pid, 0, 0) == 0);
  CHECK(waitpid(clone, &status, 0) == clone || waitpid(clone, &status, __WALL) == clone);
  CHECK(ptrace(PTRACE_CONT, clone, 0, 0) == 0 && waitpid(clone, &status, __WALL) == clone && status == 0);
  char byte;
  CHECK(read(pipes[1][0], &byte, 1) == 1);

  // It sleeps now: interrupted, stopped as a group, listened to, continued.
  CHECK(waitpid(pid, &status, WNOHANG) == 0);
  struct sigaction action = {.sa_sigaction = got, .sa_flags = SA_SIGINFO | SA_RESTART};
  sigaction(SIGCHLD, &action, 0);
  CHECK(ptrace(PTRACE_INTERRUPT, pid, 0, 0) == 0 && waitpid(pid, &status, 0) == pid && status == EVENT(STOP));
  siginfo_t stop;
  CHECK(ptrace(PTRACE_GETSIGINFO, pid, 0, &stop) == 0 && stop.si_code == (SIGTRAP | PTRACE_EVENT_STOP << 8) && stop.si_signo == SIGTRAP);
  CHECK(told == 1 && last.si_code == CLD_STOPPED && last.si_pid == pid && last.si_status == 0);
  CHECK(ptrace(PTRACE_CONT, pid, 0, 0) == 0 && kill(pid, SIGSTOP) == 0);
  CHECK(waitpid(pid, &status, 0) == pid && status == (SIGSTOP << 8 | 0x7f));
  CHECK(told == 2 && last.si_code == CLD_TRAPPED && last.si_status == SIGSTOP);
  CHECK(ptrace(PTRACE_CONT, pid, 0, SIGSTOP) == 0);
  CHECK(waitpid(pid, &status, 0) == pid && status == (PTRACE_EVENT_STOP << 16 | SIGSTOP << 8 | 0x7f));
  CHECK(ptrace(PTRACE_LISTEN, pid, 0, 0) == 0 && ptrace(PTRACE_CONT, pid, 0, 0) == -1 && errno == ESRCH);
  CHECK(waitpid(pid, &status, WNOHANG) == 0 && kill(pid, SIGCONT) == 0);
  CHECK(waitpid(pid, &status, 0) == pid && status == EVENT(STOP));
  CHECK(ptrace(PTRACE_CONT, pid, 0, 0) == 0 && waitpid(pid, &status, 0) == pid && status == (SIGCONT << 8 | 0x7f));
  signal(SIGCHLD, SIG_DFL);
  CHECK(ptrace(PTRACE_SETOPTIONS, pid, 0, options) == 0 && ptrace(PTRACE_CONT, pid, 0, 0) == 0);

  CHECK(write(pipes[0][1], "x", 1) == 1);
  CHECK(waitpid(pid, &status, 0) == pid && status == EVENT(EXEC) && message(pid) == pid);
  CHECK(ptrace(PTRACE_CONT, pid, 0, 0) == 0);
  CHECK(waitpid(pid, &status, 0) == pid && status == EVENT(EXIT) && message(pid) == 44 << 8);
  CHECK(ptrace(PTRACE_CONT, pid, 0, 0) == 0);
  CHECK(waitpid(pid, &status, 0) == pid && WIFEXITED(status) && WEXITSTATUS(status) == 44);
  puts("ok");
  return 0;
}
