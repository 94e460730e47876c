// BUILD: -O0
// A handled signal, a forked child, a program executed after vfork, and a crash.
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

int shared = 1;
volatile int handled;

static void on_usr1(int signo) { handled = signo; }

static void child(void) {
  shared = 42;
  _exit(5);
}

int main(void) {
  signal(SIGUSR1, on_usr1);
  kill(getpid(), SIGUSR1);
  pid_t pid = fork();
  if (pid == 0)
    child();
  shared = 7;
  int status;
  waitpid(pid, &status, 0);
  if (vfork() == 0)
    execl("/bin/true", "true", NULL);
  wait(&status);
  volatile int *nowhere = (int *)8;
  *nowhere = shared;
  return 0;
}
