// BUILD: -pthread
// Vectors whose buffers overlap, which the kernel fills in order: the last one wins. Short and long ones, from a pipe and from a file, alone
// and beside another thread.
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#define LONG (1 << 17)

static char room[4 * LONG], from[4 * LONG];
static char name[] = "/tmp/overlapping_vectorsXXXXXX";
static int fd, pipes[2], sockets[2], used;

static void fresh(void) {
  for (int i = 0; i < used; i++) room[i] = '.';
}

static void tell(const char *what, long result) {
  unsigned sum = 0;
  for (int i = 0; i < used; i++) sum = sum * 31 + room[i];
  printf("%s %ld %08x %.12s\n", what, result, sum, room);
}

// Two of 8, so that the second lies in the first, across its end, before it, or is the same; then a long way off.
static void shapes(int scale) {
  static const int places[][2] = {{2, 4}, {4, 8}, {0, 8}, {0, 3}, {5, 3}};
  used = 16 * scale;
  for (int i = 0; i < 5; i++) {
    int offset = places[i][0] * scale, len = places[i][1] * scale;
    struct iovec two[3] = {{room, 8 * scale}, {room + offset, len}, {room + scale, scale}};
    fresh();
    tell("preadv", preadv(fd, two, 3, 1));
    fresh();
    tell("preadv2", preadv2(fd, two, 3, 1, 0));
    fresh();
    lseek(fd, 3, SEEK_SET);
    tell("readv", readv(fd, two, 3));
    struct iovec back[3] = {two[2], two[1], two[0]};
    fresh();
    tell("backwards", preadv(fd, back, 3, 1));
    if (scale < 1000) {
      fresh();
      write(pipes[1], from, 12 * scale);
      tell("pipe", readv(pipes[0], two, 3));
      fresh();
      write(sockets[1], from, 12 * scale);
      struct msghdr message = {.msg_iov = two, .msg_iovlen = 3};
      tell("recvmsg", recvmsg(sockets[0], &message, 0));
      struct iovec rest = {from + LONG, LONG};
      fcntl(pipes[0], F_SETFL, O_NONBLOCK);
      fcntl(sockets[0], F_SETFL, O_NONBLOCK);
      while (readv(pipes[0], &rest, 1) > 0 || readv(sockets[0], &rest, 1) > 0) {}
      fcntl(pipes[0], F_SETFL, 0);
      fcntl(sockets[0], F_SETFL, 0);
    }
  }
}

static void *all(void *arg) {
  shapes(1);
  shapes(40);
  shapes(LONG / 8);
  return arg;
}

int main(void) {
  for (int i = 0; i < 4 * LONG; i++) from[i] = 'a' + i * 7 % 26 + (i >> 12) % 3;
  fd = mkstemp(name);
  if (write(fd, from, sizeof from) != sizeof from) return 1;
  pipe(pipes);
  socketpair(AF_UNIX, SOCK_STREAM, 0, sockets);
  all(0);
  pthread_t thread;
  pthread_create(&thread, 0, all, 0);
  pthread_join(thread, 0);
  // Of calls that are made without a stop, too.
  for (int i = 0; i < 30; i++) shapes(1);
  unlink(name);
  puts("ok");
  return 0;
}
