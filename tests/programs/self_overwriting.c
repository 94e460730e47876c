// Vectors whose buffers lie over the vector itself, and headers of messages likewise.
#define _GNU_SOURCE
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

static char memory[8192], source[4096];
static int pipes[2], sockets[2];

static unsigned long sum(void) {
    unsigned long sum = 0;
    for (unsigned i = 0; i < sizeof memory; i++) sum = sum * 31 + (unsigned char)memory[i];
    return sum;
}

int main(void) {
    for (unsigned i = 0; i < sizeof source; i++) source[i] = i * 7 + i / 256;
    pipe(pipes);
    socketpair(AF_UNIX, SOCK_DGRAM, 0, sockets);
    FILE *file = tmpfile();
    fwrite(source, 1, sizeof source, file);
    fflush(file);
    unsigned long all = 0;
    for (int i = 0; i < 300; i++) {
        struct iovec *vector = (struct iovec *)(memory + 4096);
        for (int way = 0; way < 3; way++) {
            memset(memory, 0, sizeof memory);
            vector[0] = (struct iovec){vector, 24 + i % 40};
            vector[1] = (struct iovec){memory + i, 20};
            long got = 0;
            if (way == 0) got = preadv(fileno(file), vector, 2, i);
            if (way == 1) {
                write(pipes[1], source + i, 84);
                got = readv(pipes[0], vector, 2);
                char rest[84];
                if (got < 84) read(pipes[0], rest, 84 - got);
            }
            if (way == 2) {
                send(sockets[1], source + i, 84, 0);
                struct msghdr header = {.msg_iov = vector, .msg_iovlen = 2};
                got = recvmsg(sockets[0], &header, 0);
            }
            all = all * 31 + sum() + got;
        }
    }
    printf("%lx\n", all);
    return 0;
}
