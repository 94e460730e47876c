// Two processes that wait for each other at every call, while signals come to both: those that they handle, ignore, and die of.
#define _GNU_SOURCE
#include <assert.h>
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

enum { TIMES = 3000 };
static volatile int came;
static void on_signal(int signo) { came++; }

// What a call says that a signal may have ended early.
static ssize_t whole(int reads, int fd, int *number) {
  ssize_t got;
  do got = reads ? read(fd, number, sizeof *number) : write(fd, number, sizeof *number);
  while (got == -1 && errno == EINTR);
  return got;
}

static pid_t answer(int ends[2]) {
  assert(!socketpair(AF_UNIX, SOCK_STREAM, 0, ends));
  pid_t child = fork();
  if (child) return close(ends[1]), child;
  close(ends[0]);
  for (int number; whole(1, ends[1], &number) == sizeof number;) {
    number = number * 3 + 1;
    if (whole(0, ends[1], &number) != sizeof number) break;
  }
  _exit(7);
}

static void ask(int fd, int times) {
  for (int i = 0; i < times; i++) {
    int number = i;
    assert(whole(0, fd, &number) == sizeof number);
    assert(whole(1, fd, &number) == sizeof number && number == i * 3 + 1);
  }
}

int main(void) {
  int ends[2], status;
  struct sigaction handled = {.sa_handler = on_signal};
  assert(!sigaction(SIGALRM, &handled, NULL) && !sigaction(SIGUSR1, &handled, NULL));
  signal(SIGURG, SIG_IGN);

  pid_t child = answer(ends);
  struct itimerval often = {{0, 700}, {0, 700}}, never = {};
  assert(!setitimer(ITIMER_REAL, &often, NULL));
  for (int i = 0; i < TIMES / 20; i++) {
    ask(ends[0], 20);
    kill(child, i % 2 ? SIGUSR1 : SIGURG);
    kill(getpid(), SIGURG);
  }
  assert(!setitimer(ITIMER_REAL, &never, NULL));
  close(ends[0]);
  assert(wait(&status) == child && WIFEXITED(status) && WEXITSTATUS(status) == 7);
  printf("%s\n", came ? "signals came" : "no signal came");

  // One that dies while it waits, and one that is stopped there for a while.
  child = answer(ends);
  ask(ends[0], 200);
  assert(!kill(child, SIGSTOP) && waitpid(child, &status, WUNTRACED) == child && WIFSTOPPED(status));
  assert(!kill(child, SIGCONT));
  ask(ends[0], 200);
  assert(!kill(child, SIGKILL) && wait(&status) == child && WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
  puts("ok");
  return 0;
}
