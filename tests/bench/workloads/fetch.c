// Fetches so many small files of an HTTP server on a port of this machine, over one connection as long as that is kept.
#include <arpa/inet.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

static int connected(int port) {
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    for (int tries = 0; tries < 1000; tries++) {
        int fd = socket(AF_INET, SOCK_STREAM, 0);
        if (connect(fd, (struct sockaddr *)&to, sizeof to) == 0) return fd;
        close(fd);
        usleep(10000);
    }
    exit(1);
}

// Whether the whole of an answer is there: its head says how long what follows is.
static int whole(const char *answer, int have) {
    const char *body = strstr(answer, "\r\n\r\n"), *len = strstr(answer, "Content-Length: ");
    return body && len && have >= body + 4 - answer + atoi(len + 16);
}

int main(int count, char **words) {
    if (count != 3) return 2;
    int port = atoi(words[1]), files = atoi(words[2]), fd = connected(port);
    for (int i = 0; i < files; i++) {
        char request[64], answer[4096];
        int asked = snprintf(request, sizeof request, "GET /%d HTTP/1.1\r\nHost: localhost\r\n\r\n", i), have = 0, got = 0;
        if (write(fd, request, asked) != asked) return 1;
        do {
            got = read(fd, answer + have, sizeof answer - 1 - have);
            if (got <= 0) return 1;
            answer[have += got] = 0;
        } while (!whole(answer, have));
        if (strncmp(answer, "HTTP/1.1 200", 12)) return 1;
        if (strstr(answer, "Connection: close")) {
            close(fd);
            fd = connected(port);
        }
    }
    return 0;
}
