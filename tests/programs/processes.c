// fork, exec, pipes, wait statuses, an orphan, death by signal.
#define _GNU_SOURCE
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
extern char **environ;
int main(int argc, char **argv) {
  if (argc > 1) return 42;
  int status, p[2]; char text[6] = {0};
  pipe(p);
  pid_t child = fork();
  if (!child) { close(p[0]); write(p[1], "hello", 5); _exit(3); }
  close(p[1]);
  if (read(p[0], text, 5) != 5 || strcmp(text, "hello")) return 1;
  if (waitpid(child, &status, 0) != child || WEXITSTATUS(status) != 3) return 2;
  char *args[] = {argv[0], "again", 0}; pid_t spawned;
  if (posix_spawn(&spawned, "/proc/self/exe", 0, 0, args, environ)) return 3;
  if (waitpid(spawned, &status, 0) != spawned || WEXITSTATUS(status) != 42) return 4;
  child = fork();
  if (!child) { raise(SIGKILL); _exit(0); }
  if (waitpid(child, &status, 0) != child || !WIFSIGNALED(status) || WTERMSIG(status) != SIGKILL) return 5;
  child = fork();
  if (!child) { *(volatile int *)8 = 1; _exit(0); }
  if (waitpid(child, &status, 0) != child || WTERMSIG(status) != SIGSEGV) return 6;
  puts("ok");
  return 0;
}
