// BUILD: -O0
// Calls, a loop, a heap block and a global: what the gdb scripts walk through.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int total;
char page[256];

struct item {
  int id;
  double weight;
  char name[16];
};

static int square(int x) {
  int r = x * x;
  total += r;
  return r;
}

static int sum(int n) {
  int s = 0;
  for (int i = 0; i < n; i++)
    s += square(i);
  return s;
}

int main(int argc, char **argv) {
  struct item *it = malloc(sizeof *it);
  it->id = argc;
  it->weight = 3.5;
  strcpy(it->name, "widget");
  int a = sum(10);
  int b = sum(4);
  printf("%d %d %s\n", a, b, it->name);
  page[100] = 'x';
  free(it);
  return 3;
}
