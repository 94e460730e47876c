// A program that changes its stopped child's memory as a file and from memory to memory, as debuggers do: data, and a breakpoint in code.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <sys/ptrace.h>
#include <sys/uio.h>
#include <sys/user.h>
#include <sys/wait.h>
#include <unistd.h>
#define CHECK(x) do { if (!(x)) { printf("line %d: errno %d, status %#x\n", __LINE__, errno, status); return 1; } } while (0)
static int status;
static volatile long words[2] = {1, 2};
__attribute__((noinline)) static int thrice(int n) { __asm__ volatile(""); return 3 * n; }
static int child(void) {
  ptrace(PTRACE_TRACEME, 0, 0, 0);
  raise(SIGSTOP);
  if (words[0] != 11 || words[1] != 22) return 10;
  return thrice(7);
}
int main(void) {
  char name[64];
  unsigned char old, trap = 0xcc;
  struct user_regs_struct regs;
  pid_t pid = fork();
  if (!pid) _exit(child());
  sprintf(name, "/proc/%d/mem", pid);
  int memory = open(name, O_RDWR);
  CHECK(memory >= 0 && waitpid(pid, &status, 0) == pid && status == (SIGSTOP << 8 | 0x7f));
  long word = 11, other = 22;
  CHECK(pwrite(memory, &word, 8, (off_t)&words[0]) == 8);
  struct iovec from = {&other, 8}, to = {(void *)&words[1], 8};
  CHECK(process_vm_writev(pid, &from, 1, &to, 1, 0) == 8);
  CHECK(pread(memory, &old, 1, (off_t)thrice) == 1 && pwrite(memory, &trap, 1, (off_t)thrice) == 1);
  CHECK(ptrace(PTRACE_CONT, pid, 0, 0) == 0 && waitpid(pid, &status, 0) == pid && status == (SIGTRAP << 8 | 0x7f));
  CHECK(ptrace(PTRACE_GETREGS, pid, 0, &regs) == 0 && regs.rip == (unsigned long)thrice + 1 && regs.rdi == 7);
  CHECK(pwrite(memory, &old, 1, (off_t)thrice) == 1);
  regs.rip--;
  CHECK(ptrace(PTRACE_SETREGS, pid, 0, &regs) == 0 && ptrace(PTRACE_CONT, pid, 0, 0) == 0);
  CHECK(waitpid(pid, &status, 0) == pid && WIFEXITED(status) && WEXITSTATUS(status) == 21);
  puts("ok");
  return 0;
}
