// BUILD: -pthread
// Signals that a process ignores come while its calls wait: none ends sooner, none does less. A signal that is no longer ignored
// interrupts what waited before.
#define _GNU_SOURCE
#include <errno.h>
#include <linux/futex.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/sem.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define MANY 300000

static int sockets[2], pipes[2];
static char many[MANY];
static const struct timespec while_waiting = {0, 150 * 1000000};

static void pause_ms(int ms) {
    struct timespec time = {0, ms * 1000000};
    nanosleep(&time, 0);
}

// A child that ends soon: SIGCHLD, and two more.
static void disturb(void) {
    pid_t parent = getpid();
    fflush(stdout);
    if (fork() == 0) {
        pause_ms(20);
        kill(parent, SIGURG);
        kill(parent, SIGUSR1);
        _exit(0);
    }
}

static void tell(const char *call, long result) {
    printf("%s %ld %s\n", call, result, result < 0 ? strerrorname_np(errno) : "");
    while (waitpid(-1, 0, 0) > 0) {}
}

static void nothing_comes(void) {
    struct epoll_event event = {EPOLLIN, {0}};
    int group = epoll_create1(0), word = 0, semaphore = semget(IPC_PRIVATE, 1, 0600);
    epoll_ctl(group, EPOLL_CTL_ADD, sockets[0], &event);
    disturb();
    tell("epoll_wait", epoll_wait(group, &event, 1, 150));
    disturb();
    tell("futex", syscall(SYS_futex, &word, FUTEX_WAIT, 0, &while_waiting, 0, 0));
    disturb();
    struct sembuf down = {0, -1, 0};
    tell("semtimedop", semtimedop(semaphore, &down, 1, &while_waiting));
    semctl(semaphore, 0, IPC_RMID);
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGUSR2);
    disturb();
    tell("sigtimedwait", sigtimedwait(&set, 0, &while_waiting));
    struct pollfd fd = {sockets[0], POLLIN, 0};
    disturb();
    tell("poll", poll(&fd, 1, 150));
    disturb();
    tell("ppoll", ppoll(&fd, 1, &while_waiting, &set));
    struct timespec left = {9, 9};
    disturb();
    tell("nanosleep", nanosleep(&while_waiting, &left));
    printf("left %ld\n", (long)left.tv_sec);
}

static void a_part_comes(void) {
    char bytes[8];
    disturb();
    if (fork() == 0) {
        write(sockets[1], "abc", 3);
        pause_ms(60);
        write(sockets[1], "def", 3);
        _exit(0);
    }
    tell("recv", recv(sockets[0], bytes, 6, MSG_WAITALL));
    disturb();
    if (fork() == 0) {
        pause_ms(60);
        for (long left = MANY; left > 0;) left -= read(pipes[0], many, MANY);
        _exit(0);
    }
    tell("write", write(pipes[1], many, MANY));
}

static void on_signal(int signal) {
    (void)signal;
}

static pthread_t first;

static void *takes_notice(void *arg) {
    pause_ms(30);
    struct sigaction action = {.sa_handler = on_signal};
    sigaction(SIGUSR1, &action, 0);
    sigaction(SIGURG, &action, 0);
    pause_ms(10);
    pthread_kill(first, SIGURG);
    return arg;
}

int main(void) {
    signal(SIGUSR1, SIG_IGN);
    socketpair(AF_UNIX, SOCK_STREAM, 0, sockets);
    pipe(pipes);
    nothing_comes();
    a_part_comes();
    signal(SIGCHLD, on_signal);
    disturb();
    tell("pause", pause());
    pthread_t thread;
    first = pthread_self();
    pthread_create(&thread, 0, takes_notice, 0);
    tell("read", read(pipes[0], many, 1));
    pthread_join(thread, 0);
    signal(SIGURG, SIG_DFL);
    signal(SIGCHLD, SIG_DFL);
    signal(SIGUSR1, SIG_IGN);
    nothing_comes();
    return 0;
}
