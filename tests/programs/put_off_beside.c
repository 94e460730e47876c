// A server and its overseer show the same memory, which changes what is answered; a client that shows none of it asks. Meanwhile the overseer
// writes there, itself and by calls, and signals come to the server.
#define _GNU_SOURCE
#include <assert.h>
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

enum { TIMES = 6000 };
struct page { volatile unsigned asked, overseen; unsigned given[4]; };
static void on_signal(int signo) {}

// What it came to differs from run to run, so that it is not printed; a replay compares the arguments of calls.
static void show(unsigned sum) { assert(close(-1 - (int)(sum % 1000000)) == -1 && errno == EBADF); }

static ssize_t get(int fd, void *to, size_t len) {
  ssize_t got;
  do got = read(fd, to, len);
  while (got == -1 && errno == EINTR);
  return got;
}

static void serve(struct page *page, int fd) {
  for (unsigned number; get(fd, &number, sizeof number) == sizeof number;) {
    page->asked++;
    number = number * 3 + page->overseen + page->given[number % 4];
    assert(write(fd, &number, sizeof number) == sizeof number);
    // Looked at right before the next call, too.
    page->given[3] += page->overseen ^ page->given[0];
  }
  _exit(7);
}

// What the client asked for so often is told to the overseer.
static void ask(int fd, int tell) {
  unsigned sum = 0;
  for (unsigned i = 0; i < TIMES; i++) {
    unsigned number = i;
    assert(write(fd, &number, sizeof number) == sizeof number);
    assert(get(fd, &number, sizeof number) == sizeof number);
    sum = sum * 31 + number;
    if (i % 20 == 0) assert(write(tell, &sum, sizeof sum) == sizeof sum);
  }
  show(sum);
  _exit(0);
}

int main(void) {
  int ends[2], told[2], status;
  struct sigaction handled = {.sa_handler = on_signal};
  assert(!sigaction(SIGUSR1, &handled, NULL));
  assert(!socketpair(AF_UNIX, SOCK_STREAM, 0, ends) && !pipe(told));
  pid_t client = fork();
  if (!client) close(ends[1]), close(told[0]), ask(ends[0], told[1]);
  close(ends[0]), close(told[1]);

  struct page *page = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  assert(page != MAP_FAILED);
  pid_t server = fork();
  if (!server) serve(page, ends[1]);
  close(ends[1]);
  // What the client tells goes straight to where the server looks.
  for (int i = 0; get(told[0], &page->given[i % 3], 4) == 4; i++) {
    page->overseen += page->asked % 5 + 1;
    if (i % 16 == 0) kill(server, i % 32 ? SIGUSR1 : SIGURG);
  }
  assert(wait(&status) > 0 && wait(&status) > 0 && wait(&status) == -1);
  assert(page->asked == TIMES && page->overseen);
  show(page->given[3] + page->overseen);
  puts("all was answered");
  return 0;
}
