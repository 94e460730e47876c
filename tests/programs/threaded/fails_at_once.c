// BUILD: -O1 -pthread
// Calls that fail at once, of a kind that may wait, by a thread beside one that computes: how often does that one find the other further on?
#include <assert.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <unistd.h>

enum { BEFORE = 500, CALLS = 300 };
static volatile int made, done;
static int found;

static void *compute(void *unused) {
    for (int last = 0; !done;)
        if (made != last) {
            last = made;
            found++;
        }
    return 0;
}

int main(void) {
    char byte;
    int zero = open("/dev/zero", O_RDONLY);
    pthread_t thread;
    assert(!pthread_create(&thread, 0, compute, 0));
    // A recorder may come to make these without a stop.
    for (int i = 0; i < BEFORE; i++)
        assert(read(zero, &byte, 1) == 1);
    for (; made < CALLS; made++)
        assert(read(-1, &byte, 1) == -1);
    done = 1;
    pthread_join(thread, 0);
    printf("%d times of %d\n", found, CALLS);
    return 0;
}
