// BUILD: -O0
// A connection's owner changes: its freed block was given to a counter.
#include <stdio.h>
#include <stdlib.h>
struct connection { long socket, flags, owner; };
struct counter { long hits, misses, total; };
static struct connection *open_connections[8];
static void accept_one(int slot, long owner) {
  struct connection *c = malloc(sizeof *c);
  c->socket = 100 + slot; c->flags = 1;
  c->owner = owner;
  open_connections[slot] = c;
}
static void hang_up(int slot) { free(open_connections[slot]); }
static void tally(struct counter *c, long total) {
  c->hits = 3; c->misses = 4;
  c->total = total; // CULPRIT
}
int main(void) {
  for (int i = 0; i < 8; i++) accept_one(i, 1000 + i);
  printf("ADDR %p\n", (void *)&open_connections[5]->owner);
  hang_up(5);
  tally(malloc(sizeof(struct counter)), 777);
  printf("owner %ld\n", open_connections[5]->owner);
  return open_connections[5]->owner == 1005 ? 0 : 1;
}
