// System calls made again and again from the same instructions, by which recorders come to make them without stopping the program: what
// they return and write, what the instruction leaves in registers, and what else happens to their descriptors, their code and their process.
#define _GNU_SOURCE
#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/times.h>
#include <sys/utsname.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { TIMES = 40 };

// rax, rbx, rcx, rdx, rsi, rdi, rbp, r8 to r15, flags.
struct registers { uint64_t rax, rbx, rcx, rdx, rsi, rdi, rbp, r8, r9, r10, r11, r12, r13, r14, r15, flags; };
void probe(struct registers *);
extern char probe_call[], probe_after[], probe_end[];
// The red zone stays as it is: the call is made with data below the stack pointer.
__asm__(".text\n.p2align 4\n.globl probe\nprobe:\n"
        "push %rbx; push %rbp; push %r12; push %r13; push %r14; push %r15; push %rdi\n"
        "pushq 120(%rdi); popfq\n"
        "mov 0(%rdi),%rax; mov 8(%rdi),%rbx; mov 24(%rdi),%rdx; mov 32(%rdi),%rsi; mov 48(%rdi),%rbp\n"
        "mov 56(%rdi),%r8; mov 64(%rdi),%r9; mov 72(%rdi),%r10; mov 88(%rdi),%r12; mov 96(%rdi),%r13\n"
        "mov 104(%rdi),%r14; mov 112(%rdi),%r15; mov 40(%rdi),%rdi\n"
        "movq $0x1234567,-64(%rsp)\n"
        "probe_call: syscall\n"
        "probe_after: xchg %rdi,(%rsp)\n"
        "mov %rax,0(%rdi); mov %rbx,8(%rdi); mov %rcx,16(%rdi); mov %rdx,24(%rdi); mov %rsi,32(%rdi); mov %rbp,48(%rdi)\n"
        "mov %r8,56(%rdi); mov %r9,64(%rdi); mov %r10,72(%rdi); mov %r11,80(%rdi); mov %r12,88(%rdi); mov %r13,96(%rdi)\n"
        "mov %r14,104(%rdi); mov %r15,112(%rdi)\n"
        "mov -64(%rsp),%rcx\n"
        "pushfq; pop 120(%rdi); cld\n"
        "pop %rax; mov %rax,40(%rdi); mov %rcx,%rax\n"
        "pop %r15; pop %r14; pop %r13; pop %r12; pop %rbp; pop %rbx\n"
        "ret\nprobe_end:\n.p2align 6,0xcc\n.skip 64,0xcc\n");

static void registers_are_the_instructions(int file) {
  char bytes[64];
  struct { uint64_t nr, a, b, c, d; int64_t result; } calls[] = {
      {SYS_getppid, 1, 2, 3, 4, getppid()},
      {SYS_pread64, file, (uint64_t)bytes, 7, 3, 7},
      {SYS_pread64, file, (uint64_t)bytes, 7, 1 << 20, 0},
      {SYS_pread64, 99, (uint64_t)bytes, 7, 3, -EBADF},
      {SYS_pread64, file, 1, 7, 3, -EFAULT},
      {SYS_clock_gettime, CLOCK_REALTIME, (uint64_t)bytes, 0, 0, 0},
      {SYS_clock_gettime, CLOCK_REALTIME, 0, 0, 0, -EFAULT},
      {SYS_clock_gettime, 99, (uint64_t)bytes, 0, 0, -EINVAL},
      {SYS_close, 99, 0, 0, 0, -EBADF},
  };
  uint64_t flags[] = {0x202, 0x202 | 0x8d5, 0x202 | 0x400, 0x202 | 0x41};
  for (int round = 0; round < TIMES; round++)
    for (size_t i = 0; i < sizeof calls / sizeof *calls; i++) {
      struct registers in = {calls[i].nr, 11, 0, calls[i].c, calls[i].b, calls[i].a, 12, 13, 14, calls[i].d, 0, 15, 16, 17, 18,
                             flags[(round + i) % 4]};
      struct registers out = in;
      memset(bytes, 'x', sizeof bytes);
      probe(&out);
      assert((int64_t)out.rax == calls[i].result);
      in.rax = out.rax, in.rcx = (uint64_t)probe_after, in.r11 = in.flags;
      assert(!memcmp(&in, &out, sizeof in));
      if (calls[i].nr == SYS_pread64 && calls[i].result == 7) assert(!memcmp(bytes, "3456789x", 8));
    }
}

static void every_call(int file, const char *name) {
  char bytes[4096], link[64], cwd[4096];
  struct stat a, b;
  struct timespec t, last = {0};
  struct timeval v;
  struct timezone zone;
  struct tms tms;
  struct rusage usage;
  struct utsname uts;
  for (int i = 0; i < TIMES; i++) {
    assert(lseek(file, i, SEEK_SET) == i && read(file, bytes, 3) == 3 && bytes[0] == '0' + i % 10);
    assert(pwrite(file, "Q", 1, 5000 + i) == 1 && pread(file, bytes, 2, 5000 + i) == (i ? 1 : 1) && bytes[0] == 'Q');
    assert(lseek(file, 0, SEEK_END) == 5001 + i && write(file, "", 0) == 0);
    assert(!fstat(file, &a) && !stat(name, &b) && a.st_ino == b.st_ino && a.st_size == 5001 + i);
    assert(!lstat(name, &b) && !fstatat(AT_FDCWD, name, &b, 0) && S_ISREG(b.st_mode));
    assert(!access(name, R_OK) && access("/nowhere", R_OK) == -1 && errno == ENOENT);
    assert(readlink("self", link, sizeof link) == 6 && !memcmp(link, "target", 6));
    assert(getcwd(cwd, sizeof cwd) && cwd[0] == '/');
    assert(!getcwd(cwd, 1) && errno == ERANGE);
    assert(!clock_gettime(CLOCK_MONOTONIC, &t));
    assert(t.tv_sec > last.tv_sec || (t.tv_sec == last.tv_sec && t.tv_nsec >= last.tv_nsec));
    last = t;
    zone.tz_minuteswest = 77;
    assert(!syscall(SYS_gettimeofday, &v, NULL) && v.tv_sec > 1600000000);
    assert(!syscall(SYS_gettimeofday, &v, &zone) && zone.tz_minuteswest != 77);
    assert(syscall(SYS_time, NULL) > 1600000000);
    assert(times(&tms) != -1 && !getrusage(RUSAGE_SELF, &usage) && !uname(&uts) && !strcmp(uts.sysname, "Linux"));
    assert(getpid() == gettid() && getppid() > 0 && getuid() == geteuid() && getgid() == getegid());
    assert(read(file, NULL, 0) == 0);
  }
  assert(!ftruncate(file, 5000));
}

static void requests(int file, const char *name) {
  struct flock lock;
  int count, pair[2];
  char terminal[64];
  assert(!socketpair(AF_UNIX, SOCK_STREAM, 0, pair));
  char *page = mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  for (int i = 0; i < TIMES; i++) {
    count = -1, lseek(file, 100 + i, SEEK_SET);
    assert(!ioctl(file, FIONREAD, &count) && count == 4900 - i);
    assert(write(pair[0], "four", 4) == 4 && !ioctl(pair[1], FIONREAD, &count) && count == 4 && read(pair[1], terminal, 9) == 4);
    assert(ioctl(file, TCGETS, terminal) == -1 && errno == ENOTTY);
    assert(!fcntl(file, F_SETFD, i % 2 ? FD_CLOEXEC : 0) && fcntl(file, F_GETFD) == (i % 2 ? FD_CLOEXEC : 0));
    assert(!ioctl(file, FIOCLEX) && fcntl(file, F_GETFD) == FD_CLOEXEC && !ioctl(file, FIONCLEX));
    assert((fcntl(file, F_GETFL) & O_ACCMODE) == O_RDWR && fcntl(999, F_GETFL) == -1 && errno == EBADF);
    assert(!fcntl(pair[0], F_SETFL, i % 2 ? O_NONBLOCK : 0) && !(fcntl(pair[0], F_GETFL) & O_NONBLOCK) == !(i % 2));
    lock = (struct flock){F_WRLCK, SEEK_SET, i, 5, 77};
    assert(!fcntl(file, F_SETLK, &lock));
    lock = (struct flock){F_WRLCK, SEEK_SET, i, 1, 77};
    assert(!fcntl(file, F_GETLK, &lock) && lock.l_type == F_UNLCK && lock.l_pid == 77);
    int copy = fcntl(file, F_DUPFD, 200), another = dup(pair[1]), again = syscall(SYS_open, name, O_RDONLY);
    assert(copy == 200 && another > 2 && again > 2);
    assert(pread(copy, terminal, 1, 7) == 1 && terminal[0] == '7' && pread(another, terminal, 1, 0) == -1 && errno == ESPIPE);
    assert(pread(again, terminal, 1, 8) == 1 && terminal[0] == '8');
    assert(!close(copy) && !close(another) && !close(again) && pread(copy, terminal, 1, 0) == -1);
    assert(!madvise(page, 8192, MADV_WILLNEED) && !madvise(page, 4096, MADV_NOHUGEPAGE) && madvise(page + 1, 1, MADV_NORMAL) == -1);
    page[i] = 1;
    assert(!madvise(page, 4096, MADV_DONTNEED) && page[i] == 0);
  }
  munmap(page, 8192), close(pair[0]), close(pair[1]);
}

static char at(int fd) {
  char byte = '?';
  ssize_t got = pread(fd, &byte, 1, 0);
  return got == 1 ? byte : got == 0 ? '0' : errno == ESPIPE ? 'p' : errno == EBADF ? '-' : '!';
}

static void descriptors_change(int file) {
  int pipes[2], null = open("/dev/null", O_RDWR), zero = open("/dev/zero", O_RDWR);
  assert(!pipe(pipes));
  int fd = dup(file);
  for (int i = 0; i < TIMES; i++) {
    assert(at(fd) == '0' && at(fd) == '0');
    assert(dup2(pipes[0], fd) == fd && at(fd) == 'p');
    assert(dup2(null, fd) == fd && at(fd) == '0' && write(fd, "abc", 3) == 3);
    assert(dup3(zero, fd, O_CLOEXEC) == fd && at(fd) == 0);
    close(fd);
    assert(at(fd) == '-' && write(fd, "abc", 3) == -1);
    assert(fcntl(file, F_DUPFD, fd) == fd && at(fd) == '0');
    assert(!close_range(fd, fd, 0) && at(fd) == '-');
    assert(dup2(file, fd) == fd);
  }
  close(fd), close(null), close(zero), close(pipes[0]), close(pipes[1]);
}

static void mappings_show_files(int file) {
  char *shown = NULL;
  for (int i = 0; i < TIMES; i++) {
    char byte = 'a' + i % 26;
    assert(pwrite(file, &byte, 1, 4096 + i) == 1);
    if (i == TIMES / 2) shown = mmap(NULL, 8192, PROT_READ, MAP_SHARED, file, 0);
    if (i == TIMES * 3 / 4) munmap(shown, 8192), shown = mmap(NULL, 8192, PROT_READ, MAP_PRIVATE, file, 0);
    assert(shown != MAP_FAILED && (!shown || shown[4096 + i] == byte));
  }
  munmap(shown, 8192);
}

static void ask(void) {
  struct registers in = {SYS_getppid, .flags = 0x202};
  probe(&in);
  assert(in.rax == (uint64_t)getppid());
}

static void code_is_read_and_written(void) {
  unsigned char *page = (unsigned char *)((uint64_t)probe & -4096);
  size_t len = ((uint64_t)probe_end + 128 - (uint64_t)page + 4095) & -4096;
  for (int i = 0; i < TIMES; i++) ask();
  assert(!mprotect(page, len, PROT_READ | PROT_WRITE | PROT_EXEC));
  assert(!memcmp(probe_call, "\x0f\x05", 2) && (unsigned char)probe_end[0] == 0xcc && (unsigned char)probe_end[63] == 0xcc);
  for (int i = 0; i < TIMES; i++) ask();
  // getppid becomes a jump over it.
  memcpy(probe_call, "\x31\xc0", 2);
  struct registers in = {SYS_getppid, .flags = 0x202};
  probe(&in);
  assert(in.rax == 0);
  memcpy(probe_call, "\x0f\x05", 2);
  assert(!mprotect(page, len, PROT_READ | PROT_EXEC));
  for (int i = 0; i < TIMES; i++) ask();
}

static void processes(int file) {
  char bytes[8];
  for (int i = 0; i < 4; i++) {
    pid_t child = i % 2 ? vfork() : fork();
    if (!child) {
      if (i % 2 == 0) {
        for (int k = 0; k < TIMES; k++) ask(), assert(pread(file, bytes, 4, 2) == 4 && !memcmp(bytes, "2345", 4));
        close(file);
        assert(pread(file, bytes, 4, 2) == -1);
      } else {
        close(file);
        if (pread(file, bytes, 4, 2) != -1) _exit(1);
      }
      _exit(7);
    }
    int status;
    assert(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 7);
    for (int k = 0; k < TIMES; k++) ask(), assert(pread(file, bytes, 4, 2) == 4 && !memcmp(bytes, "2345", 4));
  }
}

static void much_is_read(int file) {
  size_t len = 300000;
  char *bytes = malloc(len), *more = malloc(len);
  for (size_t i = 0; i < len; i++) bytes[i] = i * 7 + (i >> 8);
  assert(pwrite(file, bytes, len, 0) == (ssize_t)len);
  for (size_t size = 1; size < len; size = size * 3 + 1)
    for (int i = 0; i < 8; i++) {
      memset(more, 0, len);
      assert(pread(file, more, size, i) == (ssize_t)size && !memcmp(more, bytes + i, size));
    }
  free(bytes), free(more);
}

int main(void) {
  char folder[] = "/tmp/repeated-XXXXXX", digits[5000];
  assert(mkdtemp(folder) && !chdir(folder) && !symlink("target", "self"));
  int file = open("file", O_RDWR | O_CREAT, 0600);
  for (int i = 0; i < 5000; i++) digits[i] = '0' + i % 10;
  assert(write(file, digits, sizeof digits) == sizeof digits);
  registers_are_the_instructions(file);
  every_call(file, "file");
  requests(file, "file");
  descriptors_change(file);
  mappings_show_files(file);
  code_is_read_and_written();
  processes(file);
  much_is_read(file);
  unlink("file"), unlink("self"), assert(!chdir("/") && !rmdir(folder));
  puts("ok");
  return 0;
}
