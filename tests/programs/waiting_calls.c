// BUILD: -pthread
// Calls that may wait, made again and again on pipes and sockets: by processes and threads that wait for each other, on descriptors
// that must not wait, and on ends that are gone.
#define _GNU_SOURCE
#include <assert.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <time.h>
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

static void *fill(void *arg) {
  for (int i = 0; i < TIMES; i++) {
    struct iovec parts[2] = {{"ab", 2}, {"cdefg", 5}};
    struct msghdr message = {.msg_iov = parts, .msg_iovlen = 2};
    assert(i % 3 ? writev(sockets[1], parts, 2) == 7 : sendmsg(sockets[1], &message, 0) == 7);
    if (i % 7 == 0) usleep(100);
  }
  return NULL;
}

static void several_places(void) {
  char a[3], b[40], address[40], control[40];
  pthread_t thread;
  for (int kind = 0; kind < 2; kind++) {
    assert(!socketpair(AF_UNIX, kind ? SOCK_SEQPACKET : SOCK_STREAM, 0, sockets));
    pthread_create(&thread, NULL, fill, NULL);
    for (int got = 0, i = 0; got < TIMES * 7; i++) {
      struct iovec parts[3] = {{a, 3}, {NULL, 0}, {b, kind ? 4 : i % 30 + 1}};
      struct msghdr message = {address, sizeof address, parts, 3, control, sizeof control, 0x77};
      if (i % 4) message.msg_name = message.msg_control = NULL, message.msg_controllen = 0;
      memset(b, 'x', sizeof b);
      ssize_t len = kind == 0 && i % 2 ? readv(sockets[0], parts, 3) : recvmsg(sockets[0], &message, 0);
      assert(len > 0 && a[0] == "abcdefg"[got % 7] && (len <= 3 || b[len - 4] == "abcdefg"[(got + len - 1) % 7]));
      if (kind) assert(len == 7 && message.msg_flags == 0 && message.msg_controllen == 0);
      got += len;
    }
    pthread_join(thread, NULL);
    // All that is asked for, or nothing.
    pthread_create(&thread, NULL, fill, NULL);
    for (int i = 0; i < TIMES; i++) assert(recv(sockets[0], b, 7, kind ? 0 : MSG_WAITALL) == 7 && !memcmp(b, "abcdefg", 7));
    pthread_join(thread, NULL);
    close(sockets[0]), close(sockets[1]);
  }
}

static void *ping(void *arg) {
  char byte;
  for (int i = 0; i < TIMES; i++) assert(read(there[0], &byte, 1) == 1 && write(back[1], &byte, 1) == 1);
  return NULL;
}

static void polled(void) {
  pthread_t thread;
  assert(!pipe(there) && !pipe(back));
  struct pollfd all[3] = {{there[0], POLLIN, 77}, {back[0], POLLIN, 78}, {-1, POLLIN, 79}};
  for (int i = 0; i < TIMES; i++) {
    assert(poll(all, 3, 0) == 0 && !all[0].revents && !all[2].revents);
    all[0].revents = 5;
  }
  pthread_create(&thread, NULL, ping, NULL);
  char byte;
  for (int i = 0; i < TIMES; i++) {
    all[0].fd = -1;
    struct timespec second = {100, 0};
    sigset_t none;
    sigemptyset(&none);
    assert(write(there[1], "p", 1) == 1);
    int ready = i % 4 == 0 ? ppoll(all, 3, NULL, NULL) : i % 4 == 1 ? ppoll(all, 3, &second, i % 8 ? &none : NULL) : poll(all, 3, i % 4 == 2 ? -1 : 9000);
    assert(ready == 1 && all[0].revents == 0 && all[1].revents == POLLIN && all[1].fd == back[0]);
    if (i % 4 == 1) assert(second.tv_sec <= 100 && (second.tv_sec < 100 || second.tv_nsec == 0));
    assert(read(back[0], &byte, 1) == 1);
  }
  pthread_join(thread, NULL);
  int epoll = epoll_create1(0);
  struct epoll_event event = {EPOLLIN, {.u64 = 9}}, found[4];
  assert(!epoll_ctl(epoll, EPOLL_CTL_ADD, there[0], &event));
  for (int i = 0; i < TIMES; i++) {
    assert(syscall(SYS_epoll_pwait, epoll, found, 4, 0, NULL, 8) == 0 && write(there[1], "p", 1) == 1);
    assert(syscall(SYS_epoll_pwait, epoll, found, 4, -1, NULL, 8) == 1 && found[0].data.u64 == 9 && read(there[0], &byte, 1) == 1);
  }
  close(epoll);
}

static int word, turns;
static void *answer(void *arg) {
  for (int i = 0; i < TIMES; i++) {
    while (__atomic_load_n(&word, __ATOMIC_SEQ_CST) != 1) syscall(SYS_futex, &word, FUTEX_WAIT_PRIVATE, 0, NULL);
    turns++, __atomic_store_n(&word, 0, __ATOMIC_SEQ_CST);
    syscall(SYS_futex, &word, FUTEX_WAKE_PRIVATE, 1);
  }
  return NULL;
}

static void words(void) {
  pthread_t thread;
  for (int i = 0; i < TIMES; i++) {
    struct timespec no_time = {0, 1}, wrong = {0, -1};
    assert(syscall(SYS_futex, &word, FUTEX_WAIT, 5, NULL) == -1 && errno == EAGAIN);
    assert(syscall(SYS_futex, &word, FUTEX_WAIT_PRIVATE, 0, &no_time) == -1 && errno == ETIMEDOUT);
    assert(syscall(SYS_futex, &word, FUTEX_WAIT_PRIVATE, 5, &wrong) == -1 && errno == EINVAL);
    assert(syscall(SYS_futex, &word, FUTEX_WAKE, 5) == 0);
    assert(syscall(SYS_futex, (long)&word + 1, FUTEX_WAKE, 5) == -1 && errno == EINVAL);
  }
  pthread_create(&thread, NULL, answer, NULL);
  for (int i = 0; i < TIMES; i++) {
    __atomic_store_n(&word, 1, __ATOMIC_SEQ_CST);
    syscall(SYS_futex, &word, FUTEX_WAKE_PRIVATE, 1);
    while (__atomic_load_n(&word, __ATOMIC_SEQ_CST) != 0) syscall(SYS_futex, &word, FUTEX_WAIT_PRIVATE, 1, NULL);
    assert(turns == i + 1);
  }
  pthread_join(thread, NULL);
  for (int i = 0; i < TIMES; i++) assert(sched_yield() == 0);
}

int main(void) {
  processes_wait_for_each_other();
  threads_wait_for_each_other();
  pipes_get_full();
  events();
  ends_that_are_gone();
  vectors_and_folders();
  several_places();
  polled();
  words();
  puts("ok");
  return 0;
}
