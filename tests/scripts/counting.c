/* Counts, for long. */
volatile long counter;
int main(void) {
  for (long i = 0; i < 30000; i++)
    counter = i;
  return 0;
}
