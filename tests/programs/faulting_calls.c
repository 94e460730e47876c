// Calls whose results end in memory that cannot be written: they fail with EFAULT after they wrote a part, or not at all.
#define _GNU_SOURCE
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/utsname.h>
#include <time.h>
#include <unistd.h>

enum { PAGE = 4096, ROUNDS = 40 };
static char *pages; // One that can be written, and one that cannot.
static unsigned long seen = 5381;

// What there is at the end of the first page, and what was returned.
static void look(long result) {
    seen = seen * 33 + result;
    for (int i = PAGE - 256; i < PAGE; i++)
        seen = seen * 33 + (unsigned char)pages[i];
    memset(pages + PAGE - 256, 7, 256);
}

static void all(int round) {
    char *edge = pages + PAGE;
    int ends[2], pair[2], packets[2];
    pipe(ends);
    socketpair(AF_UNIX, SOCK_STREAM, 0, pair);
    socketpair(AF_UNIX, SOCK_DGRAM, 0, packets);
    char text[200];
    memset(text, 'a' + round % 26, sizeof text);
    write(ends[1], text, 100);
    look(read(ends[0], edge - 30, 100));
    write(pair[1], text, 100);
    look(recv(pair[0], edge - 40, 100, 0));
    for (int i = 0; i < 3; i++)
        send(packets[1], text, 100, 0);
    look(recv(packets[0], edge - 50, 100, 0));
    char one[8];
    struct iovec vector[2] = {{edge - 60, 20}, {edge - 3, 90}};
    struct msghdr message = {.msg_iov = vector, .msg_iovlen = 2};
    look(recvmsg(packets[0], &message, 0));
    look(recv(packets[0], one, sizeof one, MSG_DONTWAIT));
    look(readv(ends[0], vector, 2));
    look((long)getcwd(edge - 2, 300));
    look(syscall(SYS_clock_getres, CLOCK_MONOTONIC, edge - 8)); // The C library would do without a call.
    look(uname((struct utsname *)(edge - 70)));
    int event = eventfd(3, 0);
    look(read(event, edge - 4, 8));
    struct pollfd *polled = (struct pollfd *)(edge - 16);
    for (int i = 0; i < 2; i++)
        polled[i] = (struct pollfd){.fd = ends[1], .events = POLLOUT};
    look(poll(polled, 4, 0));
    close(event);
    for (int i = 0; i < 2; i++) {
        close(ends[i]);
        close(pair[i]);
        close(packets[i]);
    }
}

int main(void) {
    pages = mmap(0, 2 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    mprotect(pages + PAGE, PAGE, PROT_READ);
    for (int round = 0; round < ROUNDS; round++)
        all(round);
    mprotect(pages + PAGE, PAGE, PROT_NONE);
    for (int round = 0; round < ROUNDS; round++)
        all(round);
    printf("%lx\n", seen);
    return 0;
}
