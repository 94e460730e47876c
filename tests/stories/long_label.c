// BUILD: -O2 -fno-builtin-memcpy -D_FORTIFY_SOURCE=0
// A label that is too long runs over the price behind it, by a memcpy that is the last call of its function.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
struct item { char label[24]; int price; int stock; };
static struct item *items;
static __attribute__((noinline)) void set_price(int i, int price) { items[i].price = price; }
static __attribute__((noinline)) void set_label(int i, const char *text, size_t n) {
  memcpy(items[i].label, text, n); // CULPRIT
}
int main(void) {
  items = calloc(32, sizeof *items);
  for (int i = 0; i < 32; i++) set_price(i, 10 * i);
  printf("ADDR %p\n", (void *)&items[9].price);
  char text[40];
  for (int i = 0; i < 32; i++) {
    int n = snprintf(text, sizeof text, i == 9 ? "a label much longer than others" : "label %d", i);
    set_label(i, text, i == 9 ? 26 : n);
  }
  printf("price %d\n", items[9].price);
  return items[9].price == 90 ? 0 : 1;
}
