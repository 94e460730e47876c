// A program that decides about its child's system calls where the child's own filter leaves that to it.
#define _GNU_SOURCE
#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <linux/ptrace.h>
#include <sys/user.h>
#include <sys/wait.h>
#include <unistd.h>
#define CHECK(x) do { if (!(x)) { printf("line %d: errno %d, status %#x\n", __LINE__, errno, status); return 1; } } while (0)
extern long ptrace(int, ...);
static int status;
static int child(void) {
  struct sock_filter code[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_getppid, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_TRACE | 321),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)};
  struct sock_fprog filter = {4, code};
  if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter)) return 10;
  if (syscall(SYS_getppid) != -1 || errno != ENOSYS) return 11;  // Nobody traces it.
  ptrace(PTRACE_TRACEME, 0, 0, 0);
  raise(SIGSTOP);
  long parent = syscall(SYS_getppid);                             // Let through.
  if (parent <= 0) return 12;
  if (syscall(SYS_getppid) != getpid()) return 13;                // Becomes another call.
  if (syscall(SYS_getppid) != 99) return 14;                      // Not made, with a result.
  if (syscall(SYS_getppid) != -1 || errno != ENOSYS) return 15;  // The tracer does not want to know any more.
  return 22;
}
int main(void) {
  struct user_regs_struct regs;
  struct ptrace_syscall_info info;
  unsigned long message;
  const int event = PTRACE_EVENT_SECCOMP << 16 | SIGTRAP << 8 | 0x7f;
  pid_t pid = fork();
  if (!pid) _exit(child());
  CHECK(waitpid(pid, &status, 0) == pid && WSTOPSIG(status) == SIGSTOP);
  CHECK(ptrace(PTRACE_SETOPTIONS, pid, 0, PTRACE_O_TRACESECCOMP) == 0 && ptrace(PTRACE_CONT, pid, 0, 0) == 0);
  CHECK(waitpid(pid, &status, 0) == pid && status == event);
  CHECK(ptrace(PTRACE_GETEVENTMSG, pid, 0, &message) == 0 && message == 321);
  CHECK(ptrace(PTRACE_GET_SYSCALL_INFO, pid, sizeof info, &info) == 84 && info.op == PTRACE_SYSCALL_INFO_SECCOMP);
  CHECK(info.seccomp.nr == SYS_getppid && info.seccomp.ret_data == 321);
  CHECK(ptrace(PTRACE_SYSCALL, pid, 0, 0) == 0 && waitpid(pid, &status, 0) == pid && status == (SIGTRAP << 8 | 0x7f));
  CHECK(ptrace(PTRACE_GETREGS, pid, 0, &regs) == 0 && regs.rax == getpid());
  CHECK(ptrace(PTRACE_CONT, pid, 0, 0) == 0 && waitpid(pid, &status, 0) == pid && status == event);
  CHECK(ptrace(PTRACE_GETREGS, pid, 0, &regs) == 0 && regs.rax == -ENOSYS);
  regs.orig_rax = SYS_getpid;
  CHECK(ptrace(PTRACE_SETREGS, pid, 0, &regs) == 0);
  CHECK(ptrace(PTRACE_CONT, pid, 0, 0) == 0 && waitpid(pid, &status, 0) == pid && status == event);
  CHECK(ptrace(PTRACE_GETREGS, pid, 0, &regs) == 0);
  regs.orig_rax = -1, regs.rax = 99;
  CHECK(ptrace(PTRACE_SETREGS, pid, 0, &regs) == 0 && ptrace(PTRACE_SETOPTIONS, pid, 0, 0) == 0 && ptrace(PTRACE_CONT, pid, 0, 0) == 0);
  CHECK(waitpid(pid, &status, 0) == pid && WIFEXITED(status) && WEXITSTATUS(status) == 22);
  puts("ok");
  return 0;
}
