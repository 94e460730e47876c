// BUILD: -pthread
// A lost update: fails when one thread is stopped between the load and the store of the other's turn. Between system calls there are only
// microseconds of work, so that fair slices end at the calls.
#include <pthread.h>
#include <unistd.h>

static volatile int balance;

static void *deposit(void *arg) {
    for (int round = 0; round < 20; round++) {
        for (int i = 0; i < 100; i++) {
            int now = balance;
            balance = now + 1;
        }
        getppid();
    }
    return arg;
}

int main(void) {
    pthread_t a, b;
    pthread_create(&a, 0, deposit, 0);
    pthread_create(&b, 0, deposit, 0);
    pthread_join(a, 0);
    pthread_join(b, 0);
    return balance != 4000;
}
