// Maps and programs in the kernel (bpf): values and keys come back, and so does what the verifier says.
#define _GNU_SOURCE
#include <errno.h>
#include <linux/bpf.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>
static union bpf_attr attr;
static long bpf(int command) { return syscall(SYS_bpf, command, &attr, sizeof attr); }
int main(void) {
  attr.map_type = BPF_MAP_TYPE_HASH;
  attr.key_size = 4;
  attr.value_size = 8;
  attr.max_entries = 10;
  int map = bpf(BPF_MAP_CREATE);
  if (map == -1) return errno == EPERM || errno == ENOSYS ? puts("ok"), 0 : 1;  // Not for this user, on this machine.
  unsigned key = 7, next = 0;
  unsigned long value = 123, found = 0;
  memset(&attr, 0, sizeof attr);
  attr.map_fd = map;
  attr.key = (uintptr_t)&key;
  attr.value = (uintptr_t)&value;
  if (bpf(BPF_MAP_UPDATE_ELEM)) return 2;
  attr.value = (uintptr_t)&found;
  if (bpf(BPF_MAP_LOOKUP_ELEM) || found != 123) return 3;
  unsigned other = 1;
  attr.key = (uintptr_t)&other;
  attr.next_key = (uintptr_t)&next;
  if (bpf(BPF_MAP_GET_NEXT_KEY) || next != 7) return 4;
  struct bpf_map_info info = {0};
  memset(&attr, 0, sizeof attr);
  attr.info.bpf_fd = map;
  attr.info.info_len = sizeof info;
  attr.info.info = (uintptr_t)&info;
  if (bpf(BPF_OBJ_GET_INFO_BY_FD) || info.value_size != 8) return 5;
  static char log[4096];
  struct bpf_insn wrong[] = {{.code = BPF_JMP | BPF_EXIT}};  // It returns what it never set.
  memset(&attr, 0, sizeof attr);
  attr.prog_type = BPF_PROG_TYPE_SOCKET_FILTER;
  attr.insns = (uintptr_t)wrong;
  attr.insn_cnt = 1;
  attr.license = (uintptr_t)"MIT";
  attr.log_buf = (uintptr_t)log;
  attr.log_size = sizeof log;
  attr.log_level = 1;
  if (bpf(BPF_PROG_LOAD) != -1 || !strstr(log, "R0")) return 6;
  puts("ok");
  return 0;
}
