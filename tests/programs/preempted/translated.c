// BUILD: -pthread
// Threads that write code, run it, and write other code over it, as a compiler at run time does.
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

typedef long function(long);

// mov rax, rdi; mov ecx, ROUNDS; 1: add rax, STEP; xor rax, KEY; dec ecx; jnz 1b; ret
static void emit(unsigned char *code, int rounds, int step, int key) {
    unsigned char bytes[] = {0x48, 0x89, 0xf8, 0xb9, 0, 0, 0, 0, 0x48, 0x05, 0, 0, 0, 0, 0x48,
                             0x35, 0,    0,    0,    0, 0xff, 0xc9, 0x75, 0xf0, 0xc3};
    memcpy(bytes + 4, &rounds, 4);
    memcpy(bytes + 10, &step, 4);
    memcpy(bytes + 16, &key, 4);
    memcpy(code, bytes, sizeof bytes);
}

static void *work(void *arg) {
    long value = (long)arg;
    unsigned char *code =
        mmap(0, 8192, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    for (int i = 0; i < 200; i++) {
        unsigned char *at = code + i % 50 * 64;
        emit(at, 100000, i * 7 + (int)(long)arg, i ^ 0x55);
        value = ((function *)at)(value);
    }
    return (void *)value;
}

int main(void) {
    pthread_t threads[3];
    long sum = 0;
    for (long i = 0; i < 3; i++)
        pthread_create(&threads[i], 0, work, (void *)i);
    for (int i = 0; i < 3; i++) {
        void *result;
        pthread_join(threads[i], &result);
        sum += (long)result;
    }
    printf("%lx\n", sum);
    return 0;
}
