// A pointer into a vector outlives its growth: the update goes to the old block.
#include <cstdio>
#include <vector>
struct Entry { long key, value; };
struct Table {
  std::vector<Entry> entries;
  Entry *last = nullptr;
  Entry *find(long key) { if (!last || last->key != key) for (auto &e : entries) if (e.key == key) last = &e; return last; }
  void update(long key, long value) {
    find(key)->value = value; // CULPRIT
  }
};
int main() {
  Table t; t.entries.reserve(2);
  for (long i = 0; i < 2; i++) t.entries.push_back({i, i * 5});
  std::printf("OLD %p\n", (void *)&t.find(1)->value);
  for (long i = 2; i < 12; i++) t.entries.push_back({i, i * 5}); // GROWTH
  t.update(1, 99);
  std::printf("ADDR %p\n", (void *)&t.entries[1].value);
  std::printf("value %ld\n", t.entries[1].value);
  return t.entries[1].value == 99 ? 0 : 1;
}
