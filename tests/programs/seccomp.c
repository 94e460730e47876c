// Seccomp filters: calls that fail, calls a SIGSYS handler performs, deaths, several filters, threads, children, exec, strict mode.
#define _GNU_SOURCE
#include <errno.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <ucontext.h>
#include <unistd.h>
static int failures;
#define CHECK(c) do { if (!(c)) { failures++; printf("line %d: %s (errno %d)\n", __LINE__, #c, errno); } } while (0)
#define LOAD(field) BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, field))
#define RET(k) BPF_STMT(BPF_RET | BPF_K, k)
#define ON(nr, k) BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, nr, 0, 1), RET(k)

static long install(int flags, const struct sock_filter *filter, int len) {
  struct sock_fprog program = {len, (struct sock_filter *)filter};
  return syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, flags, &program);
}
#define INSTALL(flags, ...) ({ static const struct sock_filter f[] = {__VA_ARGS__}; install(flags, f, sizeof f / sizeof *f); })

static volatile int trapped, data, call;
static void emulate(int s, siginfo_t *i, void *c) {
  greg_t *regs = ((ucontext_t *)c)->uc_mcontext.gregs;
  trapped++; data = i->si_errno; call = i->si_syscall;
  CHECK(i->si_code == 1 && i->si_arch == AUDIT_ARCH_X86_64);
  CHECK(i->si_call_addr == (void *)regs[REG_RIP] && regs[REG_RAX] == i->si_syscall);
  regs[REG_RAX] = regs[REG_RDI] + 1000;
}
static volatile int go;
static void *waits(void *p) { while (!__atomic_load_n(&go, __ATOMIC_ACQUIRE)) usleep(1000); return (void *)syscall(SYS_getppid); }
static void *dies(void *p) { syscall(SYS_sysinfo, 0); return p; }
static int ends(void (*body)(void)) {
  int status; fflush(stdout);
  int pid = fork();
  if (!pid) { body(); _exit(failures ? 99 : 0); }
  waitpid(pid, &status, 0);
  return status & 0xff7f ? WIFSIGNALED(status) ? WTERMSIG(status) : 1000 + WEXITSTATUS(status) : 0;
}
static void kills(void) { signal(SIGSYS, SIG_IGN); INSTALL(0, LOAD(nr), ON(SYS_uname, SECCOMP_RET_KILL_PROCESS), RET(SECCOMP_RET_ALLOW)); syscall(SYS_uname, 8); }
static void blocked(void) {
  sigset_t all; sigfillset(&all); signal(SIGSYS, SIG_DFL); sigprocmask(SIG_BLOCK, &all, 0);
  INSTALL(0, LOAD(nr), ON(SYS_uname, SECCOMP_RET_TRAP), RET(SECCOMP_RET_ALLOW)); syscall(SYS_uname, 8);
}
static void thread_killed(void) {
  pthread_t t; void *r = &t;
  INSTALL(0, LOAD(nr), ON(SYS_sysinfo, SECCOMP_RET_KILL_THREAD), RET(SECCOMP_RET_ALLOW));
  pthread_create(&t, 0, dies, 0); pthread_join(t, &r);
  syscall(SYS_sysinfo, 0);
}
static void several(void) {
  CHECK(!INSTALL(0, LOAD(nr), ON(SYS_getpgid, SECCOMP_RET_ERRNO | 7), RET(SECCOMP_RET_LOG)));
  CHECK(!INSTALL(0, LOAD(nr), ON(SYS_getpgid, SECCOMP_RET_ERRNO | 8), ON(SYS_getsid, SECCOMP_RET_TRACE | 1), ON(SYS_close, SECCOMP_RET_ERRNO), RET(SECCOMP_RET_ALLOW)));
  CHECK(!INSTALL(0, LOAD(nr), ON(SYS_getpgid, SECCOMP_RET_TRACE), BPF_STMT(BPF_LD | BPF_IMM, SECCOMP_RET_ALLOW), BPF_STMT(BPF_RET | BPF_A, 0)));
  CHECK(syscall(SYS_getpgid, 0) == -1 && errno == 8);
  CHECK(syscall(SYS_getsid, 0) == -1 && errno == ENOSYS);
  CHECK(close(999) == 0);
  CHECK(INSTALL(0, LOAD(nr)) == -1 && errno == EINVAL);
  CHECK(syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, 0) == -1 && errno == EFAULT);
  CHECK(prctl(PR_SET_SECCOMP, SECCOMP_MODE_STRICT) == -1 && errno == EINVAL);
  CHECK(prctl(PR_GET_SECCOMP) == 2);
}
static void by_argument(void) {
  struct sock_filter f[] = {LOAD(nr), BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_getsid, 0, 3), LOAD(args[0]), ON(5, SECCOMP_RET_ERRNO | 55), RET(SECCOMP_RET_ALLOW)};
  struct sock_fprog p = {sizeof f / sizeof *f, f};
  CHECK(!prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &p) && f[4].k == (SECCOMP_RET_ERRNO | 55));
  CHECK(syscall(SYS_getsid, 5) == -1 && errno == 55);
  CHECK(syscall(SYS_getsid, 0) > 0);
}
static void few_calls(void) {
  struct timespec t;
  CHECK(!INSTALL(0, LOAD(nr), ON(SYS_write, SECCOMP_RET_ALLOW), ON(SYS_exit_group, SECCOMP_RET_ALLOW), RET(SECCOMP_RET_KILL_PROCESS)));
  CHECK(!clock_gettime(CLOCK_MONOTONIC, &t) && t.tv_sec + t.tv_nsec > 0);
  write(1, "few\n", 4);
}
static void strict(void) { CHECK(!prctl(PR_SET_SECCOMP, SECCOMP_MODE_STRICT)); write(1, "strict\n", 7); syscall(SYS_getpid); }
static void strict_exits(void) { CHECK(!syscall(SYS_seccomp, SECCOMP_SET_MODE_STRICT, 0, 0)); syscall(SYS_exit, 4); }

int main(int argc, char **argv) {
  if (argc > 1) { CHECK(syscall(SYS_getppid) == -1 && errno == 12); _exit(failures + 3); }
  setvbuf(stdout, 0, _IONBF, 0);
  CHECK(ends(strict) == SIGKILL);
  CHECK(ends(strict_exits) == 1004);
  pthread_t t; pthread_create(&t, 0, waits, 0);
  CHECK(!prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0));
  CHECK(prctl(PR_GET_SECCOMP) == 0);
  struct sigaction a = {.sa_sigaction = emulate, .sa_flags = SA_SIGINFO}; sigaction(SIGSYS, &a, 0);
  CHECK(!INSTALL(SECCOMP_FILTER_FLAG_TSYNC, LOAD(nr), ON(SYS_getppid, SECCOMP_RET_TRAP | 77), ON(SYS_setns, SECCOMP_RET_TRAP), RET(SECCOMP_RET_ALLOW)));
  CHECK(syscall(SYS_getppid, 1) == 1001 && trapped == 1 && data == 77 && call == SYS_getppid);
  CHECK(syscall(SYS_setns, -1000L, 0L) == 0 && trapped == 2 && data == 0);
  __atomic_store_n(&go, 1, __ATOMIC_RELEASE);
  pthread_join(t, 0);
  CHECK(trapped == 3);
  CHECK(ends(kills) == SIGSYS);
  CHECK(ends(blocked) == SIGSYS);
  CHECK(ends(thread_killed) == SIGSYS);
  CHECK(ends(several) == 0);
  CHECK(ends(by_argument) == 0);
  CHECK(ends(few_calls) == 0);
  int status, pid = fork();
  if (!pid) {
    INSTALL(0, LOAD(nr), ON(SYS_getppid, SECCOMP_RET_ERRNO | 12), RET(SECCOMP_RET_ALLOW));
    signal(SIGSYS, SIG_DFL);
    INSTALL(0, LOAD(nr), ON(SYS_setns, SECCOMP_RET_KILL), RET(SECCOMP_RET_ALLOW));
    execl(argv[0], argv[0], "again", NULL);
  }
  waitpid(pid, &status, 0);
  // The first filter's trap goes before the error.
  CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGSYS);
  puts(failures ? "bad" : "ok");
  return failures;
}
