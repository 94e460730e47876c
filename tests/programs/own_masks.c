// Calls that bring a signal mask of their own: signals that are ignored end none of them, those with handlers end them as they would
// without a recorder, and what the handlers find blocked is theirs.
#define _GNU_SOURCE
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/select.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static int group, pipes[2];
static sigset_t lets_through;
static volatile int seen, blocked;

// Which signals are blocked, as far as is of interest.
static int what_is_blocked(void) {
    sigset_t now;
    sigprocmask(SIG_BLOCK, 0, &now);
    int signals[] = {SIGUSR1, SIGUSR2, SIGALRM, SIGCHLD, SIGURG, SIGWINCH, SIGTERM}, found = 0;
    for (int i = 0; i < 7; i++) found |= sigismember(&now, signals[i]) << i;
    return found;
}

static void on_signal(int signal) {
    seen = signal;
    blocked = what_is_blocked();
}

// A child that sends what is ignored, then, if there is one, a signal that is not.
static void disturb(int signal) {
    pid_t parent = getpid();
    fflush(stdout);
    if (fork() == 0) {
        struct timespec soon = {0, 30 * 1000000};
        nanosleep(&soon, 0);
        kill(parent, SIGURG);
        kill(parent, SIGUSR1);
        kill(parent, SIGWINCH);
        nanosleep(&soon, 0);
        if (signal) kill(parent, signal);
        _exit(0);
    }
}

static void tell(const char *call, long result) {
    printf("%s %ld %s, handler saw %d with %x blocked, now %x\n", call, result, result < 0 ? strerrorname_np(errno) : "", seen, blocked,
           what_is_blocked());
    seen = blocked = 0;
    while (waitpid(-1, 0, 0) > 0) {}
}

static void all(int signal) {
    struct epoll_event event;
    // What a signal ends may wait long for it: a busy machine is late.
    long most = signal ? 20000 : 200;
    struct timespec time = {most / 1000, most % 1000 * 1000000};
    struct pollfd fd = {pipes[0], POLLIN, 0};
    fd_set set;
    FD_ZERO(&set);
    FD_SET(pipes[0], &set);
    disturb(signal);
    tell("epoll_pwait", epoll_pwait(group, &event, 1, most, &lets_through));
    disturb(signal);
    tell("epoll_pwait2", syscall(SYS_epoll_pwait2, group, &event, 1, &time, &lets_through, 8));
    disturb(signal);
    tell("ppoll", ppoll(&fd, 1, &time, &lets_through));
    disturb(signal);
    tell("pselect", pselect(pipes[0] + 1, &set, 0, 0, &time, &lets_through));
    if (signal) {
        disturb(signal);
        tell("sigsuspend", sigsuspend(&lets_through));
    }
}

static void *waits(void *arg) {
    all(SIGALRM);
    return arg;
}

int main(void) {
    struct epoll_event event = {EPOLLIN, {0}};
    group = epoll_create1(0);
    pipe(pipes);
    epoll_ctl(group, EPOLL_CTL_ADD, pipes[0], &event);
    signal(SIGUSR1, SIG_IGN);
    sigset_t usual;
    sigemptyset(&usual);
    sigaddset(&usual, SIGALRM);
    sigaddset(&usual, SIGTERM);
    sigprocmask(SIG_SETMASK, &usual, 0);
    sigemptyset(&lets_through);
    sigaddset(&lets_through, SIGUSR2);
    struct sigaction action = {.sa_handler = on_signal};
    sigaddset(&action.sa_mask, SIGWINCH);
    sigaction(SIGALRM, &action, 0);
    action.sa_flags = SA_NODEFER;
    sigemptyset(&action.sa_mask);
    sigaction(SIGTERM, &action, 0);
    all(0);
    all(SIGALRM);
    all(SIGTERM);
    // Two handlers, one after the other.
    raise(SIGALRM);
    raise(SIGTERM);
    tell("epoll_pwait", epoll_pwait(group, &event, 1, 200, &lets_through));
    signal(SIGALRM, SIG_IGN);
    signal(SIGUSR1, on_signal);
    sigset_t fewer = usual;
    sigdelset(&fewer, SIGALRM);
    sigprocmask(SIG_SETMASK, &fewer, 0);
    all(SIGALRM);
    sigaction(SIGALRM, &action, 0);
    signal(SIGUSR1, SIG_IGN);
    sigprocmask(SIG_SETMASK, &usual, 0);
    // A thread, whose process has another that waits.
    pthread_t thread;
    pthread_create(&thread, 0, waits, 0);
    pthread_join(thread, 0);
    // A mask that lies where events are to lie.
    union {
        struct epoll_event events[4];
        unsigned long mask;
    } both = {0};
    int ready = eventfd(1, 0);
    event.events = EPOLLIN;
    epoll_ctl(group, EPOLL_CTL_ADD, ready, &event);
    tell("epoll_pwait", syscall(SYS_epoll_pwait, group, &both, 4, 200, &both, 8L));
    printf("%x\n", both.events[0].events);
    epoll_ctl(group, EPOLL_CTL_DEL, ready, 0);
    // A bad mask.
    tell("epoll_pwait", syscall(SYS_epoll_pwait, group, &event, 1, 0, 8L, 8L));
    tell("epoll_pwait", syscall(SYS_epoll_pwait, group, &event, 1, 0, &lets_through, 4L));
    return 0;
}
