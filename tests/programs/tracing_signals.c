// A program that traces its child: signals shown, passed on, suppressed and replaced; registers and memory read and changed; wrong requests.
#define _GNU_SOURCE
#include <errno.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/uio.h>
#include <sys/user.h>
#include <sys/wait.h>
#include <unistd.h>
#define CHECK(x) do { if (!(x)) { printf("line %d: errno %d, status %#x\n", __LINE__, errno, status); return 1; } } while (0)
static int status;
static volatile long word = 5;
static volatile sig_atomic_t usr1, usr2;
static volatile int sender;
static void first(int s, siginfo_t *i, void *c) { usr1++; sender = i->si_pid; }
static void second(int s) { usr2++; }
static int child(void) {
  struct sigaction a = {.sa_sigaction = first, .sa_flags = SA_SIGINFO};
  sigaction(SIGUSR1, &a, 0);
  signal(SIGUSR2, second);
  if (ptrace(PTRACE_TRACEME, 0, 0, 0)) return 10;
  if (ptrace(PTRACE_TRACEME, 0, 0, 0) != -1 || errno != EPERM) return 11;
  raise(SIGSTOP);
  if (word != 77) return 12;
  raise(SIGUSR1);  // Passed on.
  if (usr1 != 1 || sender != getpid()) return 13;
  raise(SIGUSR1);  // Suppressed.
  raise(SIGUSR1);  // Becomes the other.
  if (usr1 != 1 || usr2 != 1) return 14;
  raise(SIGTERM);  // Suppressed, which would kill.
  unsigned long a1 = 1, d = 0;
  __asm__ volatile("int3\n\tmov %%rbx, %0\n\tmovq %%xmm5, %1" : "=r"(d), "=r"(a1) : : "rbx", "xmm5", "memory");
  if (d != 0x1234567 || a1 != 0x42) return 15;
  raise(SIGWINCH);
  raise(SIGKILL);
  return 16;
}
static long wrong(int request, pid_t pid, void *addr, void *data) { errno = 0; return ptrace(request, pid, addr, data) == -1 ? errno : 0; }
int main(void) {
  pid_t pid = fork();
  if (!pid) _exit(child());
  CHECK(waitpid(pid, &status, 0) == pid && status == (SIGSTOP << 8 | 0x7f));
  CHECK(waitpid(pid, &status, WNOHANG) == 0);
  CHECK(wrong(PTRACE_PEEKDATA, getpid(), 0, 0) == ESRCH && wrong(PTRACE_CONT, 1, 0, 0) == ESRCH);
  CHECK(wrong(PTRACE_PEEKDATA, pid, (void *)8, 0) == EIO && wrong(PTRACE_POKEDATA, pid, (void *)8, 0) == EIO);
  CHECK(wrong(PTRACE_CONT, pid, 0, (void *)65) == EIO && wrong(PTRACE_INTERRUPT, pid, 0, 0) == EIO && wrong(PTRACE_LISTEN, pid, 0, 0) == EIO);
  CHECK(wrong(PTRACE_SETOPTIONS, pid, 0, (void *)0x80000000L) == EINVAL && wrong(PTRACE_ATTACH, pid, 0, 0) == EPERM);
  CHECK(wrong(PTRACE_SEIZE, getpid(), 0, 0) == EPERM && wrong(PTRACE_ATTACH, 0x3fffffff, 0, 0) == ESRCH);
  CHECK(wrong(PTRACE_GETREGS, pid, 0, (void *)8) == EFAULT && wrong(PTRACE_PEEKUSER, pid, (void *)3, 0) == EIO);
  CHECK(wrong(0x5555, pid, 0, 0) == EIO && wrong(0x5555, getpid(), 0, 0) == ESRCH);
  CHECK(ptrace(PTRACE_PEEKDATA, pid, &word, 0) == 5 && ptrace(PTRACE_POKEDATA, pid, &word, (void *)77L) == 0);
  siginfo_t info;
  CHECK(ptrace(PTRACE_GETSIGINFO, pid, 0, &info) == 0 && info.si_signo == SIGSTOP && info.si_pid == pid && info.si_code == SI_TKILL);
  unsigned long mask = 1;
  CHECK(ptrace(PTRACE_GETSIGMASK, pid, (void *)8L, &mask) == 0 && mask == 0 && wrong(PTRACE_GETSIGMASK, pid, (void *)4L, &mask) == EINVAL);
  CHECK(ptrace(PTRACE_CONT, pid, 0, 0) == 0);
  siginfo_t seen = {0};
  CHECK(waitid(P_PID, pid, &seen, WSTOPPED | WNOWAIT) == 0 && seen.si_code == CLD_TRAPPED && seen.si_status == SIGUSR1 && seen.si_pid == pid);
  CHECK(waitpid(-1, &status, __WALL) == pid && status == (SIGUSR1 << 8 | 0x7f));
  CHECK(ptrace(PTRACE_CONT, pid, 0, (void *)(long)SIGUSR1) == 0);
  CHECK(waitpid(0, &status, 0) == pid && status == (SIGUSR1 << 8 | 0x7f));
  CHECK(ptrace(PTRACE_CONT, pid, 0, 0) == 0);
  CHECK(waitpid(pid, &status, 0) == pid && status == (SIGUSR1 << 8 | 0x7f));
  CHECK(ptrace(PTRACE_CONT, pid, 0, (void *)(long)SIGUSR2) == 0);
  CHECK(waitpid(pid, &status, 0) == pid && status == (SIGTERM << 8 | 0x7f));
  CHECK(ptrace(PTRACE_CONT, pid, 0, 0) == 0);
  CHECK(waitpid(pid, &status, 0) == pid && status == (SIGTRAP << 8 | 0x7f));
  struct user_regs_struct regs, again;
  struct iovec io = {&again, sizeof again};
  CHECK(ptrace(PTRACE_GETREGS, pid, 0, &regs) == 0 && ptrace(PTRACE_GETREGSET, pid, (void *)1L, &io) == 0);
  CHECK(io.iov_len == sizeof regs && !memcmp(&regs, &again, sizeof regs) && regs.orig_rax == -1UL);
  CHECK((ptrace(PTRACE_PEEKTEXT, pid, (void *)(regs.rip - 1), 0) & 0xff) == 0xcc);
  CHECK(ptrace(PTRACE_PEEKUSER, pid, (void *)offsetof(struct user_regs_struct, rip), 0) == (long)regs.rip);
  regs.rbx = 0x1234500;
  CHECK(ptrace(PTRACE_SETREGS, pid, 0, &regs) == 0);
  CHECK(ptrace(PTRACE_POKEUSER, pid, (void *)offsetof(struct user_regs_struct, rbx), (void *)0x1234567L) == 0);
  struct user_fpregs_struct fp;
  CHECK(ptrace(PTRACE_GETFPREGS, pid, 0, &fp) == 0);
  fp.xmm_space[20] = 0x42, fp.xmm_space[21] = 0;
  CHECK(ptrace(PTRACE_SETFPREGS, pid, 0, &fp) == 0);
  CHECK(ptrace(PTRACE_CONT, pid, 0, 0) == 0);
  CHECK(waitpid(pid, &status, 0) == pid && status == (SIGWINCH << 8 | 0x7f));
  CHECK(ptrace(PTRACE_CONT, pid, 0, 0) == 0);
  CHECK(waitpid(pid, &status, 0) == pid && WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
  CHECK(waitpid(pid, &status, 0) == -1 && errno == ECHILD);
  puts("ok");
  return 0;
}
