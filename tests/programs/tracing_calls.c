// A program that traces its child's system calls: numbers, arguments and results, read and changed; calls passed over; the last stop of all.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <linux/ptrace.h>
#include <sys/syscall.h>
#include <sys/user.h>
#include <sys/wait.h>
#include <unistd.h>
#define CHECK(x) do { if (!(x)) { printf("line %d: errno %d, status %#x\n", __LINE__, errno, status); return 1; } } while (0)
extern long ptrace(int, ...);
static int status;
static char text[32] = "as the child has it\n";
static pid_t pid;
static long call(long nr, long a, long b, long c) {
  long result;
  __asm__ volatile("syscall" : "=a"(result) : "0"(nr), "D"(a), "S"(b), "d"(c) : "rcx", "r11", "memory");
  return result;
}
static int child(void) {
  ptrace(PTRACE_TRACEME, 0, 0, 0);
  raise(SIGSTOP);
  if (call(SYS_getuid, 0, 0, 0) != 4321) return 10;                // The result is changed.
  if (call(SYS_getppid, 0, 0, 0) != getpid()) return 11;           // Becomes another call.
  if (call(SYS_write, 1, (long)text, 20) != 20) return 12;         // Of other bytes.
  if (call(SYS_exit_group, 9, 0, 0) != -ENOSYS) return 13;         // Not made at all.
  if (call(SYS_exit_group, 9, 0, 0) != 17) return 14;              // Likewise, with a result.
  if (call(SYS_close, 99, 0, 0) != -EBADF) return 15;
  return 33;
}
static int next(int request, struct user_regs_struct *regs) {
  if (ptrace(request, pid, 0, 0) || waitpid(pid, &status, 0) != pid) return -1;
  return ptrace(PTRACE_GETREGS, pid, 0, regs);
}
int main(void) {
  setvbuf(stdout, 0, _IONBF, 0);
  struct user_regs_struct regs;
  struct ptrace_syscall_info info;
  pid = fork();
  if (!pid) _exit(child());
  CHECK(waitpid(pid, &status, 0) == pid && WSTOPSIG(status) == SIGSTOP);
  CHECK(ptrace(PTRACE_GET_SYSCALL_INFO, pid, sizeof info, &info) == 24 && info.op == PTRACE_SYSCALL_INFO_NONE);
  CHECK(next(PTRACE_SYSCALL, &regs) == 0 && status == (SIGTRAP << 8 | 0x7f) && regs.orig_rax == SYS_getuid && regs.rax == -ENOSYS);
  CHECK(ptrace(PTRACE_SETOPTIONS, pid, 0, PTRACE_O_TRACESYSGOOD | PTRACE_O_TRACEEXIT) == 0);
  CHECK(next(PTRACE_SYSCALL, &regs) == 0 && status == ((SIGTRAP | 0x80) << 8 | 0x7f) && regs.rax == getuid());
  CHECK(ptrace(PTRACE_GET_SYSCALL_INFO, pid, sizeof info, &info) == 33 && info.op == PTRACE_SYSCALL_INFO_EXIT && info.exit.rval == getuid() && !info.exit.is_error);
  siginfo_t stop;
  CHECK(ptrace(PTRACE_GETSIGINFO, pid, 0, &stop) == 0 && stop.si_code == (SIGTRAP | 0x80) && stop.si_signo == SIGTRAP && stop.si_pid == pid);
  regs.rax = 4321;
  CHECK(ptrace(PTRACE_SETREGS, pid, 0, &regs) == 0);
  CHECK(next(PTRACE_SYSCALL, &regs) == 0 && regs.orig_rax == SYS_getppid);
  regs.orig_rax = SYS_getpid;
  CHECK(ptrace(PTRACE_SETREGS, pid, 0, &regs) == 0);
  CHECK(next(PTRACE_SYSCALL, &regs) == 0 && regs.rax == pid && regs.orig_rax == SYS_getpid);
  CHECK(next(PTRACE_SYSCALL, &regs) == 0 && regs.orig_rax == SYS_getpid);
  CHECK(next(PTRACE_SYSCALL, &regs) == 0 && regs.rax == pid);
  CHECK(next(PTRACE_SYSCALL, &regs) == 0 && regs.orig_rax == SYS_write);
  CHECK(ptrace(PTRACE_GET_SYSCALL_INFO, pid, sizeof info, &info) == 80 && info.op == PTRACE_SYSCALL_INFO_ENTRY && info.entry.nr == SYS_write && info.entry.args[2] == 20);
  CHECK(ptrace(PTRACE_POKEDATA, pid, text, *(long *)"tracer's") == 0);
  CHECK(next(PTRACE_SYSCALL, &regs) == 0 && regs.rax == 20);
  CHECK(next(PTRACE_SYSEMU, &regs) == 0 && regs.orig_rax == SYS_exit_group && regs.rdi == 9 && regs.rax == -ENOSYS);
  CHECK(next(PTRACE_SYSCALL, &regs) == 0 && regs.rax == -ENOSYS && regs.orig_rax == SYS_exit_group);
  CHECK(next(PTRACE_SYSEMU, &regs) == 0 && regs.orig_rax == SYS_exit_group);
  CHECK(ptrace(6 /* PTRACE_POKEUSER */, pid, offsetof(struct user_regs_struct, rax), 17L) == 0);
  CHECK(next(PTRACE_SYSEMU, &regs) == 0 && regs.orig_rax == SYS_close && regs.rdi == 99);
  CHECK(ptrace(6 /* PTRACE_POKEUSER */, pid, offsetof(struct user_regs_struct, rax), -(long)EBADF) == 0);
  CHECK(next(PTRACE_CONT, &regs) == 0 && status == (PTRACE_EVENT_EXIT << 16 | SIGTRAP << 8 | 0x7f));
  unsigned long message = 0;
  CHECK(ptrace(PTRACE_GETEVENTMSG, pid, 0, &message) == 0 && message == 33 << 8);
  CHECK(ptrace(PTRACE_DETACH, pid, 0, 0) == 0);
  CHECK(waitpid(pid, &status, 0) == pid && WIFEXITED(status) && WEXITSTATUS(status) == 33);
  puts("ok");
  return 0;
}
