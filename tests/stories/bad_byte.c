// BUILD: -O0 -fno-inline
// A byte in a file, wrong since it was written, becomes an index that runs over a function pointer.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
static struct { long cells[32]; void (*done)(void); } board;
static int column[100];
static unsigned char input[100];
static void produce(int fd) {
  unsigned char out[100];
  for (int i = 0; i < 100; i++) {
    out[i] = i == 70 ? 32 : i % 32; // ROOT
  }
  if (write(fd, out, 100) != 100) exit(2);
}
static void consume(int fd) {
  lseek(fd, 0, SEEK_SET);
  if (read(fd, input, 100) != 100) exit(3); // READ
  for (int i = 0; i < 100; i++) {
    column[i] = input[i]; // PARSE
  }
}
static void mark(int i) {
  board.cells[column[i]] = 0x4242424242424242; // CULPRIT
}
static void nothing(void) {}
int main(void) {
  char name[] = "/tmp/storyXXXXXX"; int fd = mkstemp(name); unlink(name);
  board.done = nothing;
  printf("ADDR %p COLUMN %p INPUT %p\n", (void *)&board.done, (void *)&column[70], (void *)&input[70]);
  fflush(stdout);
  produce(fd); consume(fd);
  for (int i = 0; i < 100; i++) mark(i);
  for (int i = 0; i < 20000; i++) board.cells[i % 32] += i;
  board.done();
  return 0;
}
