// Two programs, executed separately, that hand a counter to and fro in a file both map shared, at different addresses, without any call;
// and a parent and its child that do so in a System V segment.
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/shm.h>
#include <sys/wait.h>
#include <unistd.h>

enum { ROUNDS = 40 };

static volatile long *view(const char *name) {
    int fd = open(name, O_RDWR);
    return mmap(0, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
}

static int peer(const char *name) {
    mmap(0, 5 << 12, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    volatile long *shared = view(name);
    for (long i = 0; i < ROUNDS; i++) {
        while (shared[0] != 2 * i + 1);
        shared[1] += i;
        shared[0] = 2 * i + 2;
    }
    return 5;
}

static long by_segment(void) {
    int id = shmget(IPC_PRIVATE, 8192, IPC_CREAT | 0600);
    volatile long *first = shmat(id, 0, 0);
    first[0] = 1;
    first[600] = 100;
    if (!fork()) {
        volatile long *again = shmat(id, 0, 0);
        while (again[0] != 2);
        again[600] += 11;
        again[0] = 3;
        _exit(0);
    }
    first[0] = 2;
    while (first[0] != 3);
    wait(0);
    long sum = first[600];
    shmdt((void *)first);
    shmctl(id, IPC_RMID, 0);
    return sum;
}

int main(int argc, char **argv) {
    if (argc == 2) return peer(argv[1]);
    char name[] = "/tmp/sharedXXXXXX";
    ftruncate(mkstemp(name), 4096);
    volatile long *shared = view(name);
    int status;
    if (!fork()) {
        execl(argv[0], argv[0], name, (char *)0);
        _exit(9);
    }
    for (long i = 0; i < ROUNDS; i++) {
        shared[0] = 2 * i + 1;
        while (shared[0] != 2 * i + 2);
    }
    wait(&status);
    unlink(name);
    printf("sum %ld status %d segment %ld\n", shared[1], WEXITSTATUS(status), by_segment());
    return 0;
}
