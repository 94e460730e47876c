// A process whose threads stand outside of system calls when a stop signal stops them all goes on when it is continued.
#define _GNU_SOURCE
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>
static void *stops(void *argument) {
  kill(getpid(), SIGSTOP);
  return 0;
}
int main(void) {
  for (int i = 0; i < 3; i++) {
    pid_t child = fork();
    if (!child) {
      pthread_t thread;
      pthread_create(&thread, 0, stops, 0);
      pthread_join(thread, 0);
      _exit(7);
    }
    int status;
    if (waitpid(child, &status, WUNTRACED) != child || !WIFSTOPPED(status)) return 1;
    kill(child, SIGCONT);
    if (waitpid(child, &status, 0) != child || WEXITSTATUS(status) != 7) return 2;
  }
  puts("ok");
  return 0;
}
