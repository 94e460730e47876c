// Memory changed otherwise than by stores: through /proc/PID/mem, by process_vm_writev, by the kernel as a process dies with a lock.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>
static volatile long one = 1, two = 2;
static const volatile long fixed = 3;
int main(void) {
  int mem = open("/proc/self/mem", O_RDWR), pipes[2], status;
  long value = 5;
  char byte, path[40];
  if (mem == -1 || pwrite(mem, &value, 8, (intptr_t)&fixed) != 8 || fixed != 5) return 1;
  struct iovec from = {&value, 8}, to[2] = {{(void *)&one, 3}, {(char *)&one + 3, 5}};
  if (process_vm_writev(getpid(), &from, 1, to, 2, 0) != 8 || one != 5) return 2;
  pipe(pipes);
  pid_t child = fork();
  if (!child) {
    read(pipes[0], &byte, 1);
    _exit(one == 9 && two == 10 && fixed == 5 ? 7 : 8);
  }
  sprintf(path, "/proc/%d/mem", child);
  int other = open(path, O_RDWR);
  value = 9;
  if (pwrite(other, &value, 8, (intptr_t)&one) != 8) return 3;
  value = 10;
  to[0] = (struct iovec){(void *)&two, 8};
  if (process_vm_writev(child, &from, 1, to, 1, 0) != 8 || one != 5 || two != 2) return 4;
  write(pipes[1], "x", 1);
  if (waitpid(child, &status, 0) != child || WEXITSTATUS(status) != 7) return 5;
  pthread_mutex_t *lock = mmap(0, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  pthread_mutexattr_t attr;
  pthread_mutexattr_init(&attr);
  pthread_mutexattr_setrobust(&attr, PTHREAD_MUTEX_ROBUST);
  pthread_mutexattr_setpshared(&attr, PTHREAD_PROCESS_SHARED);
  pthread_mutex_init(lock, &attr);
  child = fork();
  if (!child) {
    pthread_mutex_lock(lock);
    write(pipes[1], "x", 1);
    for (;;) pause();
  }
  read(pipes[0], &byte, 1);
  kill(child, SIGKILL);
  waitpid(child, &status, 0);
  if (pthread_mutex_lock(lock) != EOWNERDEAD) return 6;
  puts("ok");
  return 0;
}
