// BUILD: -pthread
// A lost update: fails when one thread is stopped between the load and the store of the other's turn.
#include <pthread.h>

static volatile int balance;

static void *deposit(void *arg) {
    for (int i = 0; i < 300; i++) {
        int now = balance;
        balance = now + 1;
    }
    return arg;
}

int main(void) {
    pthread_t a, b;
    pthread_create(&a, 0, deposit, 0);
    pthread_create(&b, 0, deposit, 0);
    pthread_join(a, 0);
    pthread_join(b, 0);
    return balance != 600;
}
