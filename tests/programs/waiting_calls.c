// BUILD: -pthread
// Calls that may wait, made again and again on pipes and sockets: by processes and threads that wait for each other, on descriptors
// that must not wait, and on ends that are gone.
#define _GNU_SOURCE
#include <assert.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

enum { TIMES = 60 };
static int there[2], back[2], sockets[2];
static int broken;
static void on_pipe(int signo) { broken++; }

static void processes_wait_for_each_other(void) {
  assert(!pipe(there) && !pipe(back));
  int count = 0, got = 0;
  pid_t child = fork();
  if (!child) {
    while (read(there[0], &got, sizeof got) == sizeof got && got >= 0) got = got * 3 + 1, write(back[1], &got, sizeof got);
    _exit(9);
  }
  for (; count < TIMES; count++) {
    assert(write(there[1], &count, sizeof count) == sizeof count);
    assert(read(back[0], &got, sizeof got) == sizeof got && got == count * 3 + 1);
  }
  // Many before any is read: neither waits.
  for (int i = 0; i < TIMES; i++) assert(write(there[1], &i, sizeof i) == sizeof i);
  for (int i = 0; i < TIMES; i++) assert(read(back[0], &got, sizeof got) == sizeof got && got == i * 3 + 1);
  got = -1, write(there[1], &got, sizeof got);
  int status;
  assert(wait(&status) == child && WEXITSTATUS(status) == 9);
}

static void *echo(void *arg) {
  char bytes[64];
  for (ssize_t len; (len = recv(sockets[1], bytes, sizeof bytes, 0)) > 0;) assert(send(sockets[1], bytes, len, 0) == len);
  return NULL;
}

static void threads_wait_for_each_other(void) {
  assert(!socketpair(AF_UNIX, SOCK_STREAM, 0, sockets));
  pthread_t thread;
  pthread_create(&thread, NULL, echo, NULL);
  char bytes[64];
  for (int i = 0; i < TIMES; i++) {
    assert(send(sockets[0], "hello", 5, 0) == 5 && recv(sockets[0], bytes, sizeof bytes, 0) == 5);
    assert(write(sockets[0], "again", 5) == 5 && read(sockets[0], bytes, sizeof bytes) == 5 && !memcmp(bytes, "again", 5));
  }
  shutdown(sockets[0], SHUT_WR);
  pthread_join(thread, NULL);
}

static void *drain(void *arg) {
  char bytes[3000];
  long sum = 0;
  for (ssize_t len; (len = read(there[0], bytes, sizeof bytes)) > 0;) sum += len;
  return (void *)sum;
}

static void pipes_get_full(void) {
  char bytes[10000] = {1};
  assert(!pipe2(back, O_NONBLOCK));
  for (int i = 0; i < TIMES; i++) assert(read(back[0], bytes, 9) == -1 && errno == EAGAIN);
  int n = 0, once = 0;
  while ((once = write(back[1], bytes, 777)) > 0) n += once;
  assert(errno == EAGAIN && n > 50000);
  while ((once = read(back[0], bytes, 4096)) > 0) n -= once;
  assert(errno == EAGAIN && n == 0);
  // Where it may wait, all of it is written.
  assert(!pipe(there));
  pthread_t thread;
  void *sum;
  pthread_create(&thread, NULL, drain, NULL);
  for (int i = 0; i < TIMES; i++) assert(write(there[1], bytes, 10000) == 10000 && write(there[1], bytes, 4000) == 4000);
  close(there[1]), pthread_join(thread, &sum);
  assert((long)sum == TIMES * 14000);
  // It may be told later to wait, or not to.
  assert(!pipe(there));
  int one = 1;
  for (int i = 0; i < TIMES; i++) assert(write(there[1], "x", 1) == 1 && read(there[0], bytes, 2) == 1);
  assert(!ioctl(there[0], FIONBIO, &one) && read(there[0], bytes, 2) == -1 && errno == EAGAIN);
}

static void events(void) {
  struct epoll_event all[4], event = {EPOLLIN, {.u64 = 7}};
  int epoll = epoll_create1(0);
  char byte;
  assert(!pipe(there) && !epoll_ctl(epoll, EPOLL_CTL_ADD, there[0], &event));
  for (int i = 0; i < TIMES; i++) {
    assert(epoll_wait(epoll, all, 4, 0) == 0);
    assert(write(there[1], "e", 1) == 1);
    assert(epoll_wait(epoll, all, 4, -1) == 1 && all[0].data.u64 == 7 && all[0].events == EPOLLIN);
    assert(read(there[0], &byte, 1) == 1 && byte == 'e');
  }
  for (int i = 0; i < 3; i++) assert(epoll_wait(epoll, all, 4, 1) == 0);
  close(epoll);
}

static void ends_that_are_gone(void) {
  char bytes[8];
  assert(!pipe(there));
  for (int i = 0; i < TIMES; i++) assert(write(there[1], "ab", 2) == 2 && read(there[0], bytes, 8) == 2);
  close(there[0]);
  signal(SIGPIPE, on_pipe);
  for (int i = 0; i < 5; i++) assert(write(there[1], "ab", 2) == -1 && errno == EPIPE && broken == i + 1);
  assert(!pipe(back));
  for (int i = 0; i < TIMES; i++) assert(write(back[1], "ab", 2) == 2 && read(back[0], bytes, 8) == 2);
  close(back[1]);
  for (int i = 0; i < TIMES; i++) assert(read(back[0], bytes, 8) == 0);
}

static void vectors_and_folders(void) {
  char name[] = "/tmp/waiting-XXXXXX", bytes[64];
  int file = mkstemp(name);
  struct iovec parts[3] = {{"one", 3}, {"", 0}, {"three", 5}};
  for (int i = 0; i < TIMES; i++) assert(writev(file, parts, 3) == 8);
  assert(pread(file, bytes, 16, 8 * (TIMES - 2)) == 16 && !memcmp(bytes, "onethreeonethree", 16));
  unlink(name);
  long before = 0;
  for (int i = 0; i < 10; i++) {
    DIR *folder = opendir("/proc/self/fd/..");
    long found = 0;
    while (readdir(folder)) found++;
    closedir(folder);
    assert(found > 10 && (!before || found == before));
    before = found;
    folder = opendir("/");
    while (readdir(folder)) found++;
    closedir(folder);
  }
}

int main(void) {
  processes_wait_for_each_other();
  threads_wait_for_each_other();
  pipes_get_full();
  events();
  ends_that_are_gone();
  vectors_and_folders();
  puts("ok");
  return 0;
}
