// BUILD: -O0 -pthread
// Two threads count in one variable without a lock: one of them reads it, the other one counts on, the first writes back what it read.
#include <pthread.h>
#include <semaphore.h>
#include <stdio.h>
static long counter;
static sem_t has_read, has_counted;
static void *slow(void *arg) {
  long seen = counter;
  sem_post(&has_read);
  sem_wait(&has_counted);
  counter = seen + 1; // LOSES
  return arg;
}
static void *quick(void *arg) {
  sem_wait(&has_read);
  for (int i = 0; i < 10; i++)
    counter = counter + 1; // LOST
  sem_post(&has_counted);
  return arg;
}
int main(void) {
  pthread_t threads[2];
  sem_init(&has_read, 0, 0);
  sem_init(&has_counted, 0, 0);
  counter = 100; // BEGINS
  pthread_create(&threads[0], 0, slow, 0);
  pthread_create(&threads[1], 0, quick, 0);
  for (int i = 0; i < 2; i++) pthread_join(threads[i], 0);
  printf("ADDR %p counter %ld\n", (void *)&counter, counter);
  return 0;
}
