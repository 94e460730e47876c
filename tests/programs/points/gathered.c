// BUILD: -pthread -mavx2
// Two threads gather from pages that are not there yet: where one is stopped, it mostly stands in the middle of that instruction.
#define _GNU_SOURCE
#include <immintrin.h>
#include <pthread.h>
#include <stdio.h>
#include <sys/mman.h>

enum { LANES = 8, PAGE = 4096, TIMES = 10000 };

static void *gathers(void *arg) {
    size_t step = LANES * PAGE;
    char *pages = mmap(NULL, TIMES * step, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    __m256i at = _mm256_mullo_epi32(_mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7), _mm256_set1_epi32(PAGE));
    __m256i sum = _mm256_setzero_si256();
    for (int i = 0; i < TIMES; i++) {
        char *here = pages + i * step;
        *(int *)(here + i % LANES * PAGE) = i;
        sum = _mm256_add_epi32(sum, _mm256_i32gather_epi32((const int *)here, at, 1));
    }
    int lanes[LANES];
    _mm256_storeu_si256((__m256i *)lanes, sum);
    for (int i = 0; i < LANES; i++) *(long *)arg = *(long *)arg * 31 + lanes[i];
    return NULL;
}

int main(void) {
    pthread_t threads[2];
    long sums[2] = {0, 1};
    for (int i = 0; i < 2; i++) pthread_create(&threads[i], NULL, gathers, &sums[i]);
    for (int i = 0; i < 2; i++) pthread_join(threads[i], NULL);
    printf("%ld %ld\n", sums[0], sums[1]);
}
