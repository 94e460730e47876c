//! The calls that a 64-bit program can make by `int 0x80`: the 32-bit table, as far as a row of the one table says what a call of it
//! does. Holds no rows of its own: number and name there, the row here, and what 32 bits change about it.

use guest::GuestRange;

use crate::row::{Kind, Row};
use crate::table;

/// A call of the 32-bit table.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Narrow {
    /// Its number there.
    pub nr: u32,
    /// Number of the call that does the same.
    pub twin: u32,
    /// How many arguments the kernel looks at; the twin's others are 0.
    arity: u8,
    /// What is different but for the arguments' width.
    differs: Differs,
}

/// What a call does otherwise than its twin.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Differs {
    Nothing,
    /// What it writes are longs, which have 32 bits.
    Longs,
    /// Its last argument counts pages.
    Pages,
}

const fn same(nr: u32, twin: &str, arity: u8) -> Narrow {
    Narrow { nr, twin: table::number(twin), arity, differs: Differs::Nothing }
}

const fn longs(nr: u32, twin: &str, arity: u8) -> Narrow {
    Narrow { differs: Differs::Longs, ..same(nr, twin, arity) }
}

/// By number (`arch/x86/entry/syscalls/syscall_32.tbl`). Left out is what passes other structures, a number in two registers, or 16-bit
/// ids; what makes tasks, programs and handlers; and what the kernel makes again under another number.
pub(crate) const CALLS: &[Narrow] = &[
    same(1, "exit", 1),
    same(3, "read", 3),
    same(4, "write", 3),
    same(5, "open", 3),
    same(6, "close", 1),
    same(7, "wait4", 3),
    same(8, "creat", 2),
    same(9, "link", 2),
    same(10, "unlink", 1),
    same(12, "chdir", 1),
    longs(13, "time", 1),
    same(14, "mknod", 3),
    same(15, "chmod", 2),
    same(19, "lseek", 3),
    same(20, "getpid", 0),
    same(33, "access", 2),
    same(36, "sync", 0),
    same(37, "kill", 2),
    same(38, "rename", 2),
    same(39, "mkdir", 2),
    same(40, "rmdir", 1),
    same(41, "dup", 1),
    same(42, "pipe", 1),
    longs(43, "times", 1),
    same(45, "brk", 1),
    same(57, "setpgid", 2),
    same(60, "umask", 1),
    same(63, "dup2", 2),
    same(64, "getppid", 0),
    same(65, "getpgrp", 0),
    same(66, "setsid", 0),
    same(83, "symlink", 2),
    same(85, "readlink", 3),
    same(91, "munmap", 2),
    same(92, "truncate", 2),
    same(93, "ftruncate", 2),
    same(94, "fchmod", 2),
    same(96, "getpriority", 2),
    same(118, "fsync", 1),
    same(122, "uname", 1),
    same(125, "mprotect", 3),
    same(132, "getpgid", 1),
    same(133, "fchdir", 1),
    same(143, "flock", 2),
    same(144, "msync", 3),
    same(147, "getsid", 1),
    same(148, "fdatasync", 1),
    same(150, "mlock", 2),
    same(151, "munlock", 2),
    same(158, "sched_yield", 0),
    same(183, "getcwd", 2),
    longs(191, "getrlimit", 2),
    Narrow { differs: Differs::Pages, ..same(192, "mmap", 6) },
    same(199, "getuid", 0),
    same(200, "getgid", 0),
    same(201, "geteuid", 0),
    same(202, "getegid", 0),
    same(205, "getgroups", 2),
    same(207, "fchown", 3),
    same(209, "getresuid", 3),
    same(211, "getresgid", 3),
    same(212, "chown", 3),
    same(220, "getdents64", 3),
    same(224, "gettid", 0),
    same(252, "exit_group", 1),
    same(254, "epoll_create", 1),
    same(255, "epoll_ctl", 4),
    same(256, "epoll_wait", 4),
    longs(265, "clock_gettime", 2),
    longs(266, "clock_getres", 2),
    same(270, "tgkill", 3),
    same(295, "openat", 4),
    same(296, "mkdirat", 3),
    same(301, "unlinkat", 3),
    same(302, "renameat", 4),
    same(305, "readlinkat", 4),
    same(307, "faccessat", 3),
    same(323, "eventfd", 1),
    same(328, "eventfd2", 2),
    same(329, "epoll_create1", 1),
    same(330, "dup3", 3),
    same(331, "pipe2", 2),
    same(355, "getrandom", 3),
    same(356, "memfd_create", 2),
    same(359, "socket", 3),
    same(360, "socketpair", 4),
    same(361, "bind", 3),
    same(362, "connect", 3),
    same(363, "listen", 2),
    same(403, "clock_gettime", 2),
    same(406, "clock_getres", 2),
];

/// The call of the 32-bit table with this number; `None` where no row says what it does.
pub fn narrow(nr: u32) -> Option<&'static Narrow> {
    CALLS.binary_search_by_key(&nr, |call| call.nr).ok().map(|at| &CALLS[at])
}

impl Narrow {
    /// The twin's arguments, from the registers ebx, ecx, edx, esi, edi, ebp.
    pub fn args(&self, registers: [u64; 6]) -> [u64; 6] {
        let row = self.row();
        let mut args = [0; 6];
        for (at, arg) in args.iter_mut().enumerate().take(usize::from(self.arity)) {
            let word = registers[at] as u32;
            *arg = match row.args.get(at).map(|arg| arg.kind) {
                Some(Kind::Long) => i64::from(word as i32) as u64,
                _ => u64::from(word),
            };
        }
        if self.differs == Differs::Pages {
            args[5] <<= 12;
        }
        args
    }

    /// What it wrote, by what its twin would have written.
    pub fn effects(&self, of_twin: Vec<GuestRange>) -> Vec<GuestRange> {
        if self.differs != Differs::Longs {
            return of_twin;
        }
        of_twin.iter().map(|range| GuestRange::new(range.start, range.len() / 2)).collect()
    }

    fn row(&self) -> &'static Row {
        table::row(self.twin).expect("a twin is a call by its name")
    }
}

#[cfg(test)]
mod tests {
    use guest::GuestAddr;

    use super::*;

    #[test]
    fn calls_are_in_order_and_no_longer_than_their_twins() {
        assert!(CALLS.is_sorted_by_key(|call| call.nr));
        for call in CALLS {
            assert!(usize::from(call.arity) <= call.row().args.len(), "{call:?}");
        }
    }

    #[test]
    fn numbers_are_the_kernel_headers() {
        let Some(numbers) = table::numbers_in("unistd_32.h") else {
            eprintln!("skipped: no kernel headers on this machine");
            return;
        };
        let mut compared = 0;
        for (number, name) in &numbers {
            let Some(call) = narrow(*number) else { continue };
            let named = match name.as_str() {
                "waitpid" => "wait4",
                "ugetrlimit" => "getrlimit",
                "mmap2" => "mmap",
                name => name.trim_end_matches("32").trim_end_matches("_time64"),
            };
            let named = if name == "getdents64" { name } else { named.trim_end_matches("64") };
            assert_eq!(table::name(call.twin), Some(named), "{number}");
            compared += 1;
        }
        assert_eq!(compared, CALLS.len());
    }

    #[track_caller]
    fn check(nr: u32, registers: [u64; 6], expected: [u64; 6]) {
        assert_eq!(narrow(nr).map(|call| call.args(registers)), Some(expected), "{nr}");
    }

    #[test]
    fn arguments_have_32_bits() {
        let high = 7 << 32;
        check(4, [high | 1, high | 0x1000, 5, 6, 7, 8], [1, 0x1000, 5, 0, 0, 0]);
        check(19, [3, 0xffff_fffe, 1, 0, 0, 0], [3, -2_i64 as u64, 1, 0, 0, 0]);
        check(192, [0, 0x1000, 3, 2, 9, 2], [0, 0x1000, 3, 2, 9, 0x2000]);
        check(7, [0xffff_ffff, 0x2000, 1, 0x3000, 0, 0], [0xffff_ffff, 0x2000, 1, 0, 0, 0]);
        assert_eq!(narrow(2), None);
        assert_eq!(narrow(243), None);
    }

    #[test]
    fn longs_are_half_as_long() {
        let of_twin = || vec![GuestRange::new(GuestAddr(0x1000), 16)];
        let written = |nr| narrow(nr).unwrap().effects(of_twin());
        assert_eq!(written(265), [GuestRange::new(GuestAddr(0x1000), 8)]);
        assert_eq!(written(403), of_twin());
    }
}
