// BUILD: -O0 -pthread
// Threads that take turns by locks, and a signal to one of them.
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <stdio.h>

static sem_t turns[2];
static int steps;
static volatile int caught;

static void on_usr1(int signo) { caught = signo; }

static void take_turn(int who) {
  steps++;
}

static void *worker(void *arg) {
  int who = (int)(long)arg;
  for (int i = 0; i < 3; i++) {
    sem_wait(&turns[who]);
    take_turn(who);
    sem_post(&turns[!who]);
  }
  return arg;
}

int main(void) {
  pthread_t threads[2];
  signal(SIGUSR1, on_usr1);
  sem_init(&turns[0], 0, 1);
  sem_init(&turns[1], 0, 0);
  for (long i = 0; i < 2; i++) pthread_create(&threads[i], 0, worker, (void *)i);
  for (int i = 0; i < 2; i++) pthread_join(threads[i], 0);
  raise(SIGUSR1);
  printf("%d steps, signal %d\n", steps, caught);
  return 0;
}
