// BUILD: -pthread
// Memory is put into a pipe while another thread waits to read it: the pipe refers to it, and it stays as it was.
#define _GNU_SOURCE
#include <assert.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/uio.h>
#include <unistd.h>

enum { TIMES = 200, LENGTH = 5000 };

static int ends[2];

static void *take(void *unused) {
  static unsigned char got[LENGTH];
  long sum = 0, length = 0;
  for (ssize_t n; (n = read(ends[0], got, sizeof got)) > 0; length += n)
    for (ssize_t i = 0; i < n; i++) sum = (sum * 31 + got[i]) % 1000003;
  assert(length == (long)TIMES * LENGTH);
  return (void *)sum;
}

int main(void) {
  static unsigned char bytes[TIMES][LENGTH];
  long sum = 0;
  assert(!pipe(ends));
  pthread_t reader;
  assert(!pthread_create(&reader, NULL, take, NULL));
  for (int i = 0; i < TIMES; i++) {
    for (int k = 0; k < LENGTH; k++) bytes[i][k] = i * 7 + k;
    struct iovec parts[2] = {{bytes[i], 1000}, {bytes[i] + 1000, LENGTH - 1000}};
    for (ssize_t done = 0, n; done < LENGTH; done += n) {
      parts[0] = (struct iovec){bytes[i] + done, LENGTH - done > 1000 ? 1000 : LENGTH - done};
      parts[1] = (struct iovec){bytes[i] + done + parts[0].iov_len, LENGTH - done - parts[0].iov_len};
      n = vmsplice(ends[1], parts, 2, 0);
      assert(n > 0);
    }
    for (int k = 0; k < LENGTH; k++) {
      assert(bytes[i][k] == (unsigned char)(i * 7 + k));
      sum = (sum * 31 + bytes[i][k]) % 1000003;
    }
  }
  close(ends[1]);
  void *taken;
  assert(!pthread_join(reader, &taken) && (long)taken == sum);
  puts("ok");
}
