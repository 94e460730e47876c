// BUILD: -O0 -fno-inline
// A number of a process is changed by another one, which traces it.
#include <signal.h>
#include <stdio.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>
static volatile long balance = 100;
static int spend(void) {
  ptrace(PTRACE_TRACEME, 0, 0, 0);
  raise(SIGSTOP);
  return balance == 100 ? 1 : 0;
}
static int meddle(pid_t pid) {
  return ptrace(PTRACE_POKEDATA, pid, &balance, 13) == 0; // CULPRIT
}
int main(void) {
  int status;
  printf("ADDR %p\n", (void *)&balance);
  fflush(stdout);
  pid_t pid = fork();
  if (pid == 0) _exit(spend());
  if (waitpid(pid, &status, 0) != pid || !WIFSTOPPED(status) || !meddle(pid)) return 1;
  if (ptrace(PTRACE_CONT, pid, 0, 0) != 0 || waitpid(pid, &status, 0) != pid) return 2;
  return WIFEXITED(status) ? WEXITSTATUS(status) : 3;
}
