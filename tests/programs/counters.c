// Counts of the kernel's own events are read like files; what would need a ring or hardware is as if it were forbidden.
#define _GNU_SOURCE
#include <errno.h>
#include <linux/perf_event.h>
#include <stdio.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>
int main(void) {
  struct perf_event_attr attr = {.type = PERF_TYPE_SOFTWARE, .size = sizeof attr, .config = PERF_COUNT_SW_PAGE_FAULTS, .exclude_kernel = 1};
  int fd = syscall(SYS_perf_event_open, &attr, 0, -1, -1, 0);
  unsigned long before, after;
  if (fd != -1) {
    if (read(fd, &before, 8) != 8) return 1;
    static volatile char pages[1 << 16];
    for (int i = 0; i < sizeof pages; i += 4096) pages[i] = 1;
    if (read(fd, &after, 8) != 8 || after <= before || ioctl(fd, PERF_EVENT_IOC_DISABLE, 0)) return 2;
  } else if (errno != EACCES && errno != EPERM && errno != ENOSYS) return 3;
  unsigned size = 0;
  if (prctl(PR_SET_MM, PR_SET_MM_MAP_SIZE, &size, 0, 0) == 0 && size == 0) return 4;
  puts("ok");
  return 0;
}
