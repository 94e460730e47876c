// A program that steps its child, puts a breakpoint into its code, and watches its memory.
#define _GNU_SOURCE
#include <errno.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/user.h>
#include <sys/wait.h>
#include <unistd.h>
#define CHECK(x) do { if (!(x)) { printf("line %d: errno %d, status %#x\n", __LINE__, errno, status); return 1; } } while (0)
static int status;
static volatile long watched;
static volatile sig_atomic_t handled;
static void handler(int s) { handled++; }
__attribute__((noinline)) static int twice(int n) { __asm__ volatile(""); return n + n; }
static char from[64] = "moved by one instruction", to[64];
extern char stepped[], stepped_end[];
static int child(void) {
  signal(SIGUSR1, handler);
  ptrace(PTRACE_TRACEME, 0, 0, 0);
  raise(SIGSTOP);
  long flags = 0, id = 0;
  __asm__ volatile(
      ".globl stepped\nstepped:\n\tmov $7, %%rbx\n\tpushfq\n\tpop %0\n\tmov $39, %%eax\n\tsyscall\n\tmov %%rax, %1\n\t"
      "lea from(%%rip), %%rsi\n\tlea to(%%rip), %%rdi\n\tmov $25, %%ecx\n\trep movsb\n\tadd $1, %%rbx\n.globl stepped_end\nstepped_end:\n\tnop"
      : "=&r"(flags), "=&r"(id) : : "rax", "rbx", "rcx", "rsi", "rdi", "r11", "memory");
  if (id != getpid() || strcmp(from, to)) return 10;
  raise(SIGSTOP);
  if (twice(4) != 8) return 11;
  raise(SIGSTOP);
  for (int i = 0; i < 3; i++) watched += i + 1;
  raise(SIGSTOP);
  raise(SIGUSR1);
  return handled == 1 ? 21 : 12;
}
static pid_t pid;
static int next(int request, long signal) { return ptrace(request, pid, 0, signal) == 0 && waitpid(pid, &status, 0) == pid ? status : -1; }
static struct user_regs_struct regs(void) { struct user_regs_struct r; ptrace(PTRACE_GETREGS, pid, 0, &r); return r; }
static int debug(int n, unsigned long value) { return ptrace(PTRACE_POKEUSER, pid, offsetof(struct user, u_debugreg) + n * 8, value); }
int main(void) {
  const int trap = SIGTRAP << 8 | 0x7f, stop = SIGSTOP << 8 | 0x7f;
  pid = fork();
  if (!pid) _exit(child());
  CHECK(waitpid(pid, &status, 0) == pid && status == stop);
  // To the marked instructions, and through them.
  int steps = 0, marked = 0;
  while (regs().rip != (unsigned long)stepped) { CHECK(next(PTRACE_SINGLESTEP, 0) == trap); CHECK(++steps < 100000); }
  while (regs().rip != (unsigned long)stepped_end) {
    unsigned long at = regs().rip;
    CHECK(next(PTRACE_SINGLESTEP, 0) == trap);
    if (regs().rip != at) marked++;
    siginfo_t info;
    CHECK(ptrace(PTRACE_GETSIGINFO, pid, 0, &info) == 0 && info.si_signo == SIGTRAP && (info.si_code == TRAP_TRACE || info.si_code == TRAP_BRKPT));
  }
  CHECK(marked == 11 && regs().rbx == 8);
  CHECK(next(PTRACE_CONT, 0) == stop);
  // A breakpoint.
  long code = ptrace(PTRACE_PEEKTEXT, pid, twice, 0);
  CHECK(ptrace(PTRACE_POKETEXT, pid, twice, (code & ~0xffL) | 0xcc) == 0);
  CHECK(next(PTRACE_CONT, 0) == trap);
  struct user_regs_struct r = regs();
  CHECK(r.rip == (unsigned long)twice + 1 && r.rdi == 4);
  CHECK(ptrace(PTRACE_POKETEXT, pid, twice, code) == 0);
  r.rip--;
  CHECK(ptrace(PTRACE_SETREGS, pid, 0, &r) == 0 && next(PTRACE_CONT, 0) == stop);
  // A watchpoint: 8 bytes, written; then an address, executed.
  if (debug(0, (unsigned long)&watched) == 0 && debug(7, 1 | 9UL << 16) == 0) {
    for (int i = 0; i < 3; i++) {
      CHECK(next(PTRACE_CONT, 0) == trap);
      CHECK(ptrace(PTRACE_PEEKDATA, pid, &watched, 0) == (i + 1) * (i + 2) / 2);
      CHECK(ptrace(PTRACE_PEEKUSER, pid, offsetof(struct user, u_debugreg) + 6 * 8, 0) & 1);
    }
    CHECK(debug(7, 0) == 0);
  }
  CHECK(next(PTRACE_CONT, 0) == stop);
  if (debug(0, (unsigned long)handler) == 0 && debug(7, 1) == 0) {
    CHECK(next(PTRACE_CONT, 0) == (SIGUSR1 << 8 | 0x7f) && next(PTRACE_CONT, SIGUSR1) == trap && regs().rip == (unsigned long)handler);
    CHECK(debug(7, 0) == 0);
  }
  CHECK(next(PTRACE_CONT, 0) >= 0 && WIFEXITED(status) && WEXITSTATUS(status) == 21);
  puts("ok");
  return 0;
}
