// What Linux does not know either is answered by its own errors; obsolete calls and the auxiliary vector answer.
#define _GNU_SOURCE
#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>
#ifndef PR_GET_AUXV
#define PR_GET_AUXV 0x41555856
#endif
static int fails(long result, int error) { return result == -1 && errno == error; }
int main(void) {
  if (!fails(syscall(400), ENOSYS) || !fails(syscall(5000), ENOSYS)) return 1;
  if (!fails(fcntl(1, 9999, 0), EINVAL) || !fails(fcntl(-1, 9999, 0), EBADF)) return 2;
  if (!fails(syscall(SYS_futex, &errno, 0x70, 0, 0, 0, 0), ENOSYS)) return 3;
  int pipes[2];
  if (pipe(pipes) || !fails(ioctl(pipes[0], 0xdeadbeef, 0), ENOTTY)) return 4;
  char name[64] = "unset";
  if (syscall(SYS_sysfs, 2, 0, name) == 0 && (!strcmp(name, "unset") || syscall(SYS_sysfs, 1, name) != 0)) return 5;
  Elf64_auxv_t vector[64];
  int size = prctl(PR_GET_AUXV, vector, sizeof vector, 0, 0);
  if (size == -1) return puts("ok"), 0;  // A kernel before 6.4.
  int pages = 0;
  for (int i = 0; i < 64 && vector[i].a_type != AT_NULL; i++) {
    if (vector[i].a_type == AT_SYSINFO_EHDR && vector[i].a_un.a_val != getauxval(AT_SYSINFO_EHDR)) return 6;
    if (vector[i].a_type == AT_PAGESZ) pages = vector[i].a_un.a_val;
  }
  if (pages != getpagesize()) return 7;
  puts("ok");
  return 0;
}
