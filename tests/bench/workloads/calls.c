// Makes a million system calls of one kind, or as many readings of the time stamp counter.
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { CALLS = 1000000 };

static void must(int done) {
    if (!done) _exit(1);
}

static void read_and_write(void) {
    char byte = 0;
    int zero = open("/dev/zero", O_RDONLY), null = open("/dev/null", O_WRONLY);
    for (int i = 0; i < CALLS / 2; i++) must(read(zero, &byte, 1) == 1 && write(null, &byte, 1) == 1);
}

// One process writes what the other one reads.
static void through_a_pipe(void) {
    char byte = 0;
    int ends[2], status;
    must(pipe(ends) == 0);
    if (fork() == 0) {
        for (int i = 0; i < CALLS / 2; i++) must(read(ends[0], &byte, 1) == 1);
        _exit(0);
    }
    for (int i = 0; i < CALLS / 2; i++) must(write(ends[1], &byte, 1) == 1);
    must(wait(&status) > 0 && status == 0);
}

static void ask_for_the_parent(void) {
    for (int i = 0; i < CALLS; i++) must(getppid() > 0);
}

static void ask_for_the_time(void) {
    struct timespec now;
    for (int i = 0; i < CALLS; i++) must(clock_gettime(CLOCK_MONOTONIC, &now) == 0);
}

static void read_the_counter(void) {
    unsigned long long last = 0;
    for (int i = 0; i < CALLS; i++) {
        unsigned long long now = __builtin_ia32_rdtsc();
        must(now > last);
        last = now;
    }
}

// Becomes itself again, `left` times.
static void become(char *self, int left) {
    char number[] = "000";
    for (int i = 2; i >= 0; i--, left /= 10) number[i] = '0' + left % 10;
    char *words[] = {self, "exec", number, NULL};
    execv("/proc/self/exe", words);
    _exit(1);
}

int main(int count, char **words) {
    must(count > 1);
    if (!strcmp(words[1], "read+write")) read_and_write();
    if (!strcmp(words[1], "pipe")) through_a_pipe();
    if (!strcmp(words[1], "getppid")) ask_for_the_parent();
    if (!strcmp(words[1], "clock")) ask_for_the_time();
    if (!strcmp(words[1], "rdtsc")) read_the_counter();
    if (!strcmp(words[1], "exec") && count > 2 && atoi(words[2]) > 0) become(words[0], atoi(words[2]) - 1);
    return 0;
}
