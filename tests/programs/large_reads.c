// BUILD: -pthread
// Reads of tens of MiB, which take their time, while another thread computes and makes calls: of a socket whose data comes bit by bit, of
// a file, and into several buffers at once.
#define _GNU_SOURCE
#include <assert.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

enum { LENGTH = 20 << 20, PART = 50000 };
static int pair[2], file;
static char *into, *from;
static volatile int done;
static volatile unsigned long seen;

static void *reads(void *arg) {
    assert(recv(pair[0], into, LENGTH, MSG_WAITALL) == LENGTH);
    assert(!memcmp(into, from, LENGTH));
    for (int i = 0; i < 3; i++) {
        memset(into, 0, LENGTH);
        assert(pread(file, into, LENGTH, i) == LENGTH - i);
        assert(!memcmp(into, from + i, LENGTH - i));
    }
    struct iovec parts[2] = {{into, LENGTH / 2 + 5}, {into + LENGTH / 2 + 5, LENGTH / 2 - 5}};
    memset(into, 0, LENGTH);
    assert(preadv(file, parts, 2, 0) == LENGTH && !memcmp(into, from, LENGTH));
    done = 1;
    return NULL;
}

// What it sees of the buffer depends on when it looks.
static void *looks(void *arg) {
    unsigned long x = 1;
    while (!done) {
        x = x * 33 + 1;
        seen += into[x % LENGTH];
        if (x % 1000 == 0) getppid();
    }
    return NULL;
}

int main() {
    into = mmap(NULL, LENGTH, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    from = malloc(LENGTH);
    for (long i = 0; i < LENGTH; i++)
        from[i] = i * 7 >> 4;
    file = memfd_create("file", 0);
    assert(write(file, from, LENGTH) == LENGTH);
    assert(!socketpair(AF_UNIX, SOCK_STREAM, 0, pair));
    pthread_t reader, looker;
    pthread_create(&reader, NULL, reads, NULL);
    pthread_create(&looker, NULL, looks, NULL);
    for (long i = 0; i < LENGTH;) {
        ssize_t sent = write(pair[1], from + i, LENGTH - i < PART ? LENGTH - i : PART);
        assert(sent > 0);
        i += sent;
    }
    pthread_join(reader, NULL);
    pthread_join(looker, NULL);
    puts("ok");
}
