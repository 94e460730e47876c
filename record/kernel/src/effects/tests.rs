//! Effects by family, against memory that a call might have left behind.

use guest::{GuestAddr, GuestRange};

use super::*;
use crate::memory::Bytes;
use crate::table::number;

const EFAULT: i64 = -14;
const EINVAL: i64 = -22;
const EINTR: i64 = -4;

/// A call on memory that `before` makes and the kernel then changes as `after` says.
struct Case<'a> {
    name: &'a str,
    args: &'a [u64],
    before: &'a dyn Fn(&mut Bytes),
    after: &'a dyn Fn(&mut Bytes),
    result: i64,
}

#[track_caller]
fn check_case(case: &Case<'_>, expected: &[(u64, u64)]) {
    let mut mem = Bytes::default();
    (case.before)(&mut mem);
    let mut args = [0; 6];
    args[..case.args.len()].copy_from_slice(case.args);
    let call = Call::enter(number(case.name), args, &mem);
    (case.after)(&mut mem);
    let found = effects(&call.returned(case.result), &mem);
    let expected: Vec<GuestRange> =
        expected.iter().map(|(at, len)| GuestRange::new(GuestAddr(*at), *len)).collect();
    assert_eq!(found, Ok(expected), "{}{:x?} = {}", case.name, case.args, case.result);
}

/// A call that needs no memory.
#[track_caller]
fn check(name: &str, args: &[u64], result: i64, expected: &[(u64, u64)]) {
    check_case(&Case { name, args, before: &|_| {}, after: &|_| {}, result }, expected);
}

/// A call on memory that it does not change in ways that matter.
#[track_caller]
fn check_in(before: &dyn Fn(&mut Bytes), name: &str, args: &[u64], result: i64, expected: &[(u64, u64)]) {
    check_case(&Case { name, args, before, after: &|_| {}, result }, expected);
}

#[test]
fn tracers_get_words_and_buffers() {
    check("ptrace", &[1, 77, 0x5000, 0x1000], 0, &[(0x1000, 8)]);
    check("ptrace", &[1, 77, 0x5000, 0x1000], -3, &[]);
    check("ptrace", &[4, 77, 0x5000, 0x1000], 0, &[]);
    check("ptrace", &[12, 77, 0, 0x1000], 0, &[(0x1000, 216)]);
    check("ptrace", &[0x420e, 77, 88, 0x1000], 33, &[(0x1000, 33)]);
    check("ptrace", &[0x420e, 77, 24, 0x1000], 80, &[(0x1000, 24)]);
    check("ptrace", &[0x4209, 77, 0x3000, 0x1000], 2, &[(0x1000, 256)]);
    check("ptrace", &[30, 77, 0x1000, 0x1003], 0, &[(0x1000, 8)]);
    check("ptrace", &[30, 77, 0x1000, 0x1002], 0, &[]);
    let vector = |mem: &mut Bytes| {
        mem.put_u64(0x1000, 0x2000);
        mem.put_u64(0x1008, 512);
    };
    let shorter = |mem: &mut Bytes| mem.put_u64(0x1008, 216);
    let args: &[u64] = &[0x4204, 77, 1, 0x1000];
    let set = Case { name: "ptrace", args, before: &vector, after: &shorter, result: 0 };
    check_case(&set, &[(0x2000, 216), (0x1008, 8)]);
    check_case(&Case { result: EINVAL, ..set }, &[]);
}

#[test]
fn reads_write_as_many_bytes_as_they_return() {
    check("read", &[0, 0x1000, 512], 100, &[(0x1000, 100)]);
    check("read", &[0, 0x1000, 512], 0, &[]);
    check("read", &[0, 0x1000, 512], -9, &[]);
    check("pread64", &[0, 0x1000, 512, 7], 512, &[(0x1000, 512)]);
    check("getrandom", &[0x1000, 16, 0], 16, &[(0x1000, 16)]);
    check("getdents64", &[3, 0x1000, 32768], 480, &[(0x1000, 480)]);
    check("getcwd", &[0x1000, 4096], 9, &[(0x1000, 9)]);
    check("readlink", &[1, 0x1000, 20], 20, &[(0x1000, 20)]);
    check("sched_getaffinity", &[0, 128, 0x1000], 8, &[(0x1000, 8)]);
    check("write", &[1, 0x1000, 5], 5, &[]);
}

#[test]
fn a_size_query_writes_nothing() {
    check("getxattr", &[1, 2, 0x1000, 0], 40, &[]);
    check("listxattr", &[1, 0x1000, 0], 40, &[]);
    check("getgroups", &[0, 0x1000], 3, &[]);
    check("getxattr", &[1, 2, 0x1000, 64], 40, &[(0x1000, 40)]);
    check("getgroups", &[8, 0x1000], 3, &[(0x1000, 12)]);
}

#[test]
fn a_truncated_datagram_fills_only_its_buffer() {
    check("recvfrom", &[3, 0x1000, 10, 0x20, 0, 0], 500, &[(0x1000, 10)]);
}

#[test]
fn vectors_fill_in_order_up_to_the_result() {
    let vector = |mem: &mut Bytes| {
        for (at, word) in [0x2000, 10, 0x3000, 0, 0x4000, 100].into_iter().enumerate() {
            mem.put_u64(0x1000 + at as u64 * 8, word);
        }
    };
    check_in(&vector, "readv", &[0, 0x1000, 3], 30, &[(0x2000, 10), (0x4000, 20)]);
    check_in(&vector, "preadv2", &[0, 0x1000, 3, 0, 0, 0], 5, &[(0x2000, 5)]);
    check_in(&vector, "process_vm_readv", &[7, 0x1000, 3, 0, 0, 0], 110, &[(0x2000, 10), (0x4000, 100)]);
    check_in(&vector, "readv", &[0, 0x1000, 3], 0, &[]);
}

#[test]
fn structures_are_written_on_success() {
    check("stat", &[1, 0x1000], 0, &[(0x1000, 144)]);
    check("fstat", &[1, 0x1000], 0, &[(0x1000, 144)]);
    check("newfstatat", &[1, 2, 0x1000, 0], 0, &[(0x1000, 144)]);
    check("stat", &[1, 0x1000], -2, &[]);
    check("statx", &[1, 2, 0, 0xfff, 0x1000], 0, &[(0x1000, 256)]);
    check("statfs", &[1, 0x1000], 0, &[(0x1000, 120)]);
    check("uname", &[0x1000], 0, &[(0x1000, 390)]);
    check("sysinfo", &[0x1000], 0, &[(0x1000, 112)]);
    check("times", &[0x1000], 12345, &[(0x1000, 32)]);
    check("times", &[0], 12345, &[]);
    check("getrusage", &[0, 0x1000], 0, &[(0x1000, 144)]);
    check("pipe2", &[0x1000, 0], 0, &[(0x1000, 8)]);
    check("socketpair", &[1, 1, 0, 0x1000], 0, &[(0x1000, 8)]);
    check("prlimit64", &[0, 7, 0, 0x1000], 0, &[(0x1000, 16)]);
    check("getcpu", &[0x1000, 0x2000, 0], 0, &[(0x1000, 4), (0x2000, 4)]);
    check("getresuid", &[0x1000, 0x2000, 0x3000], 0, &[(0x1000, 4), (0x2000, 4), (0x3000, 4)]);
    check("get_robust_list", &[0, 0x1000, 0x2000], 0, &[(0x1000, 8), (0x2000, 8)]);
    check("sched_getattr", &[0, 0x1000, 56, 0], 0, &[(0x1000, 56)]);
    check("mincore", &[0x10_0000, 4097, 0x1000], 0, &[(0x1000, 2)]);
    check("mq_timedreceive", &[3, 0x1000, 8192, 0x5000, 0], 11, &[(0x1000, 11), (0x5000, 4)]);
    check("msgrcv", &[3, 0x1000, 100, 0, 0], 11, &[(0x1000, 19)]);
}

#[test]
fn time_is_written_where_it_was_asked_for() {
    check("clock_gettime", &[1, 0x1000], 0, &[(0x1000, 16)]);
    check("gettimeofday", &[0x1000, 0x2000], 0, &[(0x1000, 16), (0x2000, 8)]);
    check("time", &[0x1000], 1_700_000_000, &[(0x1000, 8)]);
    check("getitimer", &[0, 0x1000], 0, &[(0x1000, 32)]);
    check("setitimer", &[0, 0x1000, 0], 0, &[]);
    check("timer_settime", &[0, 0, 0x1000, 0x2000], 0, &[(0x2000, 32)]);
    check("nanosleep", &[0x1000, 0x2000], 0, &[]);
    check_in(&|mem| mem.zero(0x2000, 16), "nanosleep", &[0x1000, 0x2000], EINTR, &[(0x2000, 16)]);
    check_in(&|mem| mem.zero(0x2000, 16), "nanosleep", &[0x1000, 0x2000], -516, &[(0x2000, 16)]);
    check_in(&|mem| mem.zero(0x2000, 16), "clock_nanosleep", &[1, 0, 0x1000, 0x2000], -516, &[(0x2000, 16)]);
    check_in(&|mem| mem.zero(0x2000, 16), "clock_nanosleep", &[1, 1, 0x1000, 0x2000], -514, &[]);
    check("adjtimex", &[0x1000], 5, &[(0x1000, 208)]);
}

#[test]
fn signal_calls_write_what_was_before() {
    check("rt_sigaction", &[2, 0x1000, 0x2000, 8], 0, &[(0x2000, 32)]);
    check("rt_sigprocmask", &[0, 0x1000, 0x2000, 8], 0, &[(0x2000, 8)]);
    check("rt_sigpending", &[0x1000, 8], 0, &[(0x1000, 8)]);
    check("sigaltstack", &[0, 0x1000], 0, &[(0x1000, 24)]);
    check("rt_sigtimedwait", &[0x1000, 0x2000, 0, 8], 10, &[(0x2000, 128)]);
    check("rt_sigtimedwait", &[0x1000, 0x2000, 0, 8], -11, &[]);
}

#[test]
fn waits_write_only_about_a_child_that_was_found() {
    check("wait4", &[7, 0x1000, 0, 0x2000], 7, &[(0x1000, 4), (0x2000, 144)]);
    check("wait4", &[7, 0x1000, 1, 0x2000], 0, &[]);
    check("wait4", &[7, 0x1000, 1, 0x2000], -10, &[]);
    check("waitid", &[0, 0, 0x1000, 4, 0], 0, &[(0x1000, 12), (0x1010, 12)]);
    check_in(
        &|mem| mem.zero(0x1000, 28),
        "waitid",
        &[0, 0, 0x1000, 4, 0x2000],
        -10,
        &[(0x1000, 12), (0x1010, 12)],
    );
}

#[test]
fn poll_writes_two_bytes_an_entry() {
    check("poll", &[0x1000, 3, 100], 1, &[(0x1006, 2), (0x100e, 2), (0x1016, 2)]);
    check_in(&|mem| mem.zero(0x1000, 8), "poll", &[0x1000, 1, 100], -516, &[(0x1006, 2)]);
    check_in(&|mem| mem.zero(0x1000, 8), "poll", &[0x1000, 1, 100], EINVAL, &[]);
    let timeout = |mem: &mut Bytes| {
        mem.put_u64(0x2000, 1);
        mem.put_u64(0x2008, 0);
    };
    check_in(&timeout, "ppoll", &[0x1000, 1, 0x2000, 0, 8], 0, &[(0x1006, 2), (0x2000, 16)]);
    check_in(&|mem| mem.zero(0x2000, 16), "ppoll", &[0x1000, 1, 0x2000, 0, 8], 0, &[(0x1006, 2)]);
    check("epoll_wait", &[3, 0x1000, 10, 0], 2, &[(0x1000, 24)]);
    check("epoll_pwait2", &[3, 0x1000, 10, 0x2000, 0, 8], 1, &[(0x1000, 12)]);
}

#[test]
fn select_writes_whole_words_of_its_sets() {
    let sets = |mem: &mut Bytes| {
        mem.zero(0x1000, 128);
        mem.zero(0x2000, 128);
        mem.put_u64(0x3000, 3);
        mem.put_u64(0x3008, 0);
    };
    check_in(&sets, "select", &[5, 0x1000, 0, 0x2000, 0x3000], 1, &[(0x1000, 8), (0x2000, 8), (0x3000, 16)]);
    check_in(&sets, "select", &[65, 0x1000, 0, 0, 0], 0, &[(0x1000, 16)]);
    check_in(&sets, "pselect6", &[65, 0x1000, 0, 0, 0x3000, 0], -514, &[(0x3000, 16)]);
    check_in(&|mem| mem.zero(0x3000, 16), "select", &[0, 0, 0, 0, 0x3000], 0, &[]);
}

#[test]
fn socket_addresses_are_bounded_by_the_room_for_them() {
    let room = |mem: &mut Bytes| mem.put_u32(0x2000, 4);
    let real = |mem: &mut Bytes| mem.put_u32(0x2000, 16);
    for name in ["getsockname", "getpeername", "accept"] {
        let case = Case { name, args: &[3, 0x1000, 0x2000], before: &room, after: &real, result: 0 };
        check_case(&case, &[(0x1000, 4), (0x2000, 4)]);
    }
    check("accept4", &[3, 0, 0, 0], 4, &[]);
    check("accept", &[3, 0, 0x2000], 4, &[]);
    check_case(
        &Case {
            name: "recvfrom",
            args: &[3, 0x1000, 9, 0, 0x3000, 0x2000],
            before: &real,
            after: &room,
            result: 9,
        },
        &[(0x1000, 9), (0x3000, 4), (0x2000, 4)],
    );
    // Without a look at entry, the length afterwards bounds it.
    let mut mem = Bytes::default();
    real(&mut mem);
    let call = Call::finished(number("getsockname"), [3, 0x1000, 0x2000, 0, 0, 0], 0);
    assert_eq!(effects(&call, &mem).unwrap()[0].len(), 16);
}

#[test]
fn socket_options_are_bounded_by_their_length() {
    let room = |mem: &mut Bytes| mem.put_u32(0x2000, 64);
    let used = |mem: &mut Bytes| mem.put_u32(0x2000, 4);
    let args = [3, 1, 3, 0x1000, 0x2000];
    let case = Case { name: "getsockopt", args: &args, before: &room, after: &used, result: 0 };
    check_case(&case, &[(0x1000, 4), (0x2000, 4)]);
    check("setsockopt", &[3, 1, 2, 0x1000, 4], 0, &[]);
    check_case(&Case { result: -34, ..case }, &[(0x2000, 4)]);
}

/// A `struct msghdr` at `at` with room for a name of 8 bytes, buffers of 10 and 100 bytes, control data of 32 bytes.
fn header(mem: &mut Bytes, at: u64) {
    for (offset, word) in [(0, 0x5000), (16, 0x6000), (24, 2), (32, 0x7000), (40, 32), (48, 0)] {
        mem.put_u64(at + offset, word);
    }
    mem.put_u64(at + 8, 8);
    for (index, word) in [0x8000, 10, 0x9000, 100].into_iter().enumerate() {
        mem.put_u64(0x6000 + index as u64 * 8, word);
    }
}

#[test]
fn messages_write_name_buffers_control_and_header() {
    let before = |mem: &mut Bytes| header(mem, 0x1000);
    let after = |mem: &mut Bytes| {
        mem.put_u32(0x1008, 16);
        mem.put_u64(0x1028, 20);
    };
    check_case(
        &Case { name: "recvmsg", args: &[3, 0x1000, 0], before: &before, after: &after, result: 12 },
        &[(0x5000, 8), (0x1008, 4), (0x8000, 10), (0x9000, 2), (0x7000, 20), (0x1028, 12)],
    );
    check_in(&before, "recvmsg", &[3, 0x1000, 0], -11, &[]);
    check_in(&before, "sendmsg", &[3, 0x1000, 0], 12, &[]);
}

#[test]
fn batches_write_a_length_per_message() {
    let two = |mem: &mut Bytes| {
        for at in [0x1000, 0x1040] {
            header(mem, at);
            mem.put_u64(at, 0);
            mem.put_u64(at + 32, 0);
            mem.put_u32(at + 56, 0);
        }
    };
    let lengths = |mem: &mut Bytes| {
        mem.put_u32(0x1038, 3);
        mem.put_u32(0x1078, 11);
    };
    check_case(
        &Case {
            name: "recvmmsg",
            args: &[3, 0x1000, 2, 0, 0xa000],
            before: &two,
            after: &lengths,
            result: 2,
        },
        &[
            (0x8000, 3),
            (0x1028, 12),
            (0x1038, 4),
            (0x8000, 10),
            (0x9000, 1),
            (0x1068, 12),
            (0x1078, 4),
            (0xa000, 16),
        ],
    );
    check_in(&two, "sendmmsg", &[3, 0x1000, 2, 0], 2, &[(0x1038, 4), (0x1078, 4)]);
    check_in(&two, "recvmmsg", &[3, 0x1000, 2, 0, 0xa000], -11, &[]);
}

#[test]
fn offsets_are_written_back() {
    check("sendfile", &[1, 2, 0x1000, 10], 10, &[(0x1000, 8)]);
    check_in(&|mem| mem.zero(0x1000, 8), "sendfile", &[1, 2, 0x1000, 10], -11, &[(0x1000, 8)]);
    check("splice", &[1, 0x1000, 2, 0x2000, 10, 0], 10, &[(0x1000, 8), (0x2000, 8)]);
    check("copy_file_range", &[1, 0x1000, 2, 0, 10, 0], 0, &[]);
    check("copy_file_range", &[1, 0x1000, 2, 0, 10, 0], 5, &[(0x1000, 8)]);
}

#[test]
fn requests_have_their_own_results() {
    check("ioctl", &[0, 0x5401, 0x1000], 0, &[(0x1000, 36)]);
    check("ioctl", &[0, 0x5402, 0x1000], 0, &[]);
    check("ioctl", &[0, 0x5413, 0x1000], 0, &[(0x1000, 8)]);
    check("ioctl", &[0, 0x541b, 0x1000], 0, &[(0x1000, 4)]);
    check("ioctl", &[0, 0x8913, 0x1000], 0, &[(0x1000, 40)]);
    check("fcntl", &[0, 5, 0x1000], 0, &[(0x1000, 32)]);
    check("fcntl", &[0, 16, 0x1000], 0, &[(0x1000, 8)]);
    check("fcntl", &[0, 3, 0x1000], 0x8000, &[]);
    check("prctl", &[16, 0x1000], 0, &[(0x1000, 16)]);
    check("prctl", &[40, 0x1000], 0, &[(0x1000, 8)]);
    check("prctl", &[15, 0x1000], 0, &[]);
    check("arch_prctl", &[0x1003, 0x1000], 0, &[(0x1000, 8)]);
    check("futex", &[0x1000, 0x85, 1, 1, 0x2000, 0], 1, &[(0x2000, 4)]);
    check("futex", &[0x1000, 0x80, 1, 0x3000], 0, &[]);
    check("futex", &[0x1000, 0x86, 1, 0], 0, &[(0x1000, 4)]);
    check("shmctl", &[1, 2, 0x1000], 0, &[(0x1000, 112)]);
    check("semctl", &[1, 0, 2, 0x1000], 0, &[(0x1000, 104)]);
    check("semctl", &[1, 0, 12, 0x1000], 5, &[]);
    check_in(&|mem| mem.zero(0x1000, 0x1800), "semctl", &[1, 0, 13, 0x1000], 0, &[(0x1000, 0x2000)]);
    check("msgctl", &[1, 2, 0x1000], 0, &[(0x1000, 120)]);
    check("keyctl", &[11, 1, 0x1000, 8], 40, &[(0x1000, 8)]);
    check("quotactl", &[0x8000_0801, 0, 0, 0x1000], 0, &[]);
    check("quotactl", &[0x8000_0700, 1, 0, 0x1000], 0, &[(0x1000, 72)]);
    check("seccomp", &[3, 0, 0x1000], 0, &[(0x1000, 6)]);
}

#[test]
fn interfaces_and_extents_are_counted_in_memory() {
    let ifconf = |mem: &mut Bytes| {
        mem.put_u32(0x1000, 80);
        mem.put_u64(0x1008, 0x2000);
    };
    check_in(&ifconf, "ioctl", &[0, 0x8912, 0x1000], 0, &[(0x1000, 4), (0x2000, 80)]);
    let fiemap = |mem: &mut Bytes| {
        mem.zero(0x1000, 32);
        mem.put_u32(0x1014, 2);
        mem.put_u32(0x1018, 10);
    };
    check_in(&fiemap, "ioctl", &[0, 0xc020_660b, 0x1000], 0, &[(0x1000, 32 + 112)]);
}

#[test]
fn births_write_thread_ids() {
    check("clone", &[0x0110_0011, 0, 0x1000, 0x2000], 7, &[(0x1000, 4)]);
    check("clone", &[0x11, 0, 0x1000, 0x2000], 7, &[]);
    check("clone", &[0x1011, 0, 0x1000, 0x2000], 7, &[(0x1000, 4)]);
    let args = |mem: &mut Bytes| {
        for (index, word) in [0x0110_1000, 0x2000, 0x3000, 0x4000].into_iter().enumerate() {
            mem.put_u64(0x1000 + index as u64 * 8, word);
        }
    };
    check_in(&args, "clone3", &[0x1000, 88], 7, &[(0x2000, 4), (0x4000, 4)]);
    let mut mem = Bytes::default();
    args(&mut mem);
    let clone3 = Call::finished(number("clone3"), [0x1000, 88, 0, 0, 0, 0], 7);
    assert_eq!(child_effects(&clone3, &mem), Ok(vec![GuestRange::new(GuestAddr(0x3000), 4)]));
    let clone = Call::finished(number("clone"), [0x0100_0011, 0, 0x1000, 0x2000, 0, 0], 7);
    assert_eq!(child_effects(&clone, &mem), Ok(vec![GuestRange::new(GuestAddr(0x2000), 4)]));
}

#[test]
fn odd_ones() {
    check_in(&|mem| mem.put_u32(0x1000, 0x2008_0522), "capget", &[0x1000, 0x2000], 0, &[(0x2000, 24)]);
    check_in(&|mem| mem.put_u32(0x1000, 0x1998_0330), "capget", &[0x1000, 0x2000], 0, &[(0x2000, 12)]);
    check_in(&|mem| mem.put_u32(0x1000, 0), "capget", &[0x1000, 0], 0, &[(0x1000, 4)]);
    check_in(&|mem| mem.put_u32(0x1000, 0), "capset", &[0x1000, 0], EINVAL, &[(0x1000, 4)]);
    check_in(
        &|mem| mem.put_u32(0x1000, 12),
        "name_to_handle_at",
        &[0, 1, 0x1000, 0x2000, 0],
        0,
        &[(0x1000, 20), (0x2000, 4)],
    );
    check_in(
        &|mem| {
            mem.zero(0x1000, 8);
            mem.zero(0x2000, 8)
        },
        "name_to_handle_at",
        &[0, 1, 0x1000, 0x2000, 1],
        -75,
        &[(0x1000, 8), (0x2000, 8)],
    );
    check("get_mempolicy", &[0x1000, 0x2000, 65, 0, 0], 0, &[(0x1000, 4), (0x2000, 8)]);
    check("move_pages", &[0, 2, 0x1000, 0, 0x2000, 0], 0, &[(0x2000, 8)]);
    check_in(
        &|mem| {
            mem.put_u64(0x1000, 0x2000);
            mem.put_u64(0x1008, 10)
        },
        "getxattrat",
        &[0, 1, 0, 2, 0x1000, 16],
        4,
        &[(0x2000, 4)],
    );
    check_in(
        &|mem| mem.put_u32(0x2000, 48),
        "lsm_get_self_attr",
        &[100, 0x1000, 0x2000, 0],
        1,
        &[(0x1000, 48), (0x2000, 4)],
    );
    check_in(
        &|mem| mem.put_u32(0x2000, 0),
        "lsm_get_self_attr",
        &[100, 0x1000, 0x2000, 0],
        -95,
        &[(0x2000, 4)],
    );
    check_in(&|mem| mem.put_u32(0x2000, 520), "statmount", &[0x1000, 0x2000, 4096, 0], 0, &[(0x2000, 520)]);
    check("lsm_list_modules", &[0x1000, 0x2000, 0], 3, &[(0x1000, 24), (0x2000, 4)]);
    check("listmount", &[0x1000, 0x2000, 100, 0], 3, &[(0x2000, 24)]);
}

#[test]
fn a_fault_may_have_written_a_part() {
    check_in(&|mem| mem.zero(0x1f80, 0x80), "stat", &[1, 0x1f80], EFAULT, &[(0x1f80, 0x80)]);
    check("stat", &[1, 0x1f80], EFAULT, &[]);
    check_in(&|mem| mem.zero(0x1fe8, 0x18), "poll", &[0x1fe8, 5, 0], EFAULT, &[(0x1fe8, 0x18)]);
    let message = |mem: &mut Bytes| {
        mem.zero(0x1000, 56);
        mem.put_u64(0x1010, 0x1100);
        mem.put_u64(0x1018, 2);
        for (at, word) in (0..).zip([0x2000, 8, 0x3000, 8]) {
            mem.put_u64(0x1100 + 8 * at, word);
        }
        mem.zero(0x2000, 8);
    };
    check_in(&message, "recvmsg", &[3, 0x1000, 0], EFAULT, &[(0x2000, 8), (0x1008, 44)]);
    check_in(&|mem| mem.zero(0x1000, 0x1000), "read", &[0, 0x1000, u64::MAX], EFAULT, &[(0x1000, 0x1000)]);
}

#[test]
fn the_unknown_is_an_error() {
    let mem = Bytes::default();
    let unknown = effects(&Call::finished(400, [0; 6], 0), &mem).unwrap_err();
    assert_eq!(unknown.to_string(), "the effects of system call 400 are not known");
    assert_eq!(effects(&Call::finished(u32::MAX, [0x1000; 6], -38), &mem), Ok(vec![]));
    let request = effects(&Call::finished(number("ioctl"), [0, 0xdead, 0, 0, 0, 0], 0), &mem).unwrap_err();
    assert_eq!(request.to_string(), "the effects of ioctl(0xdead) are not known");
    let resumed = effects(&Call::finished(number("restart_syscall"), [0; 6], 0), &mem).unwrap_err();
    assert_eq!(resumed.to_string(), "the effects of restart_syscall are not known");
    let gone = effects(&Call::finished(number("readv"), [0, 0x1000, 1, 0, 0, 0], 1), &mem).unwrap_err();
    assert_eq!(gone.to_string(), "cannot read the arguments of readv");
}

#[test]
fn output_is_what_a_descriptor_got() {
    let mut mem = Bytes::default();
    header(&mut mem, 0x1000);
    let check = |name: &str, args: [u64; 6], result: i64, expected: Option<&[(u64, u64)]>| {
        let found = output(&Call::finished(number(name), args, result), &mem).unwrap();
        let ranges = expected.map(|expected| {
            expected.iter().map(|(at, len)| GuestRange::new(GuestAddr(*at), *len)).collect::<Vec<_>>()
        });
        assert_eq!(found.as_ref().map(|output| &output.ranges), ranges.as_ref(), "{name}");
        assert!(found.is_none_or(|output| output.fd == 2));
    };
    check("write", [2, 0x1000, 5, 0, 0, 0], 4, Some(&[(0x1000, 4)]));
    check("pwrite64", [2, 0x1000, 5, 0, 0, 0], 5, Some(&[(0x1000, 5)]));
    check("writev", [2, 0x6000, 2, 0, 0, 0], 15, Some(&[(0x8000, 10), (0x9000, 5)]));
    check("sendto", [2, 0x1000, 5, 0, 0, 0], 5, Some(&[(0x1000, 5)]));
    check("sendmsg", [2, 0x1000, 0, 0, 0, 0], 15, Some(&[(0x8000, 10), (0x9000, 5)]));
    check("write", [2, 0x1000, 5, 0, 0, 0], -11, None);
    check("bind", [2, 0x1000, 5, 0, 0, 0], 0, None);
    check("read", [2, 0x1000, 5, 0, 0, 0], 5, None);
}

/// Whatever the guest passes, there is an answer: ranges, or an error.
#[test]
fn no_arguments_make_it_panic() {
    let mut mem = Bytes::default();
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    for page in 0..4 {
        for at in (0..guest::PAGE_SIZE).step_by(8) {
            let word = next();
            mem.put_u64(0x1000 * (page + 1) + at, if word & 1 == 0 { 0x1000 + word % 0x4000 } else { word });
        }
    }
    for row in table::all() {
        let requests: Vec<u64> =
            row.requests.map_or_else(|| vec![0], |table| table.all().map(|request| request.value).collect());
        for request in requests {
            let mut pick = || match next() % 8 {
                0 => 0,
                1 => u64::MAX,
                2 => next() % 100,
                3 => next(),
                _ => 0x1000 + next() % 0x4000,
            };
            let mut args = [0; 6].map(|_| pick());
            if let Some(table) = row.requests {
                table.set(&mut args, request);
            }
            for result in [0, 1, 7, i64::MAX, EINTR, EFAULT, EINVAL, -516] {
                let call = Call::enter(row.nr, args, &mem).returned(result);
                let _ = effects(&call, &mem);
                let _ = child_effects(&call, &mem);
                let _ = output(&call, &mem);
                let _ = crate::decide(row.nr, &args, &mem);
                let text = crate::format_call(row.nr, &args, Some(result), Some(&mem));
                assert!(text.starts_with(row.name), "{text}");
            }
        }
    }
}

#[test]
fn rare_requests_write_what_their_structures_say() {
    let name = |mem: &mut Bytes| mem.put(0x1000, b"ext4\0junk");
    check_in(&name, "sysfs", &[2, 5, 0x1000], 0, &[(0x1000, 5)]);
    check_in(&name, "sysfs", &[1, 0x1000], 3, &[]);
    check("prctl", &[35, 15, 0x1000], 0, &[(0x1000, 4)]);
    check("prctl", &[35, 8, 0x1000], 0, &[]);
    check("perf_event_open", &[0x1000], -7, &[]);
    check_in(&|mem| mem.zero(0x1000, 128), "perf_event_open", &[0x1000], -7, &[(0x1004, 4)]);
    let bridges = |mem: &mut Bytes| {
        [1, 0x2000, 8].into_iter().zip(0..).for_each(|(w, i)| mem.put_u64(0x1000 + 8 * i, w))
    };
    check_in(&bridges, "ioctl", &[3, 0x8940, 0x1000], 2, &[(0x2000, 8)]);
    let table = |mem: &mut Bytes| {
        mem.zero(0x1000, 96);
        mem.put_u32(0x1054, 3);
        mem.put_u64(0x1058, 0x2000);
    };
    check_in(&table, "setsockopt", &[3, 0, 64, 0x1000, 96], 0, &[(0x2000, 48)]);
    check_in(&table, "setsockopt", &[3, 0, 64, 0x1000, 96], EINVAL, &[]);
}

#[test]
fn programs_in_the_kernel_write_into_their_attributes_and_through_them() {
    check("bpf", &[0, 0x1000, 144], 5, &[]);
    check("bpf", &[11, 0x1000, 144], 0, &[(0x1004, 4)]);
    let info = |mem: &mut Bytes| {
        mem.put_u32(0x1004, 80);
        mem.put_u64(0x1008, 0x2000);
    };
    check_in(&info, "bpf", &[15, 0x1000, 144], 0, &[(0x1004, 4), (0x2000, 80)]);
    let log = |mem: &mut Bytes| {
        mem.zero(0x1000, 144);
        mem.put_u32(0x101c, 16);
        mem.put_u64(0x1020, 0x2000);
        mem.zero(0x2000, 16);
    };
    check_in(&log, "bpf", &[5, 0x1000, 144], EINVAL, &[(0x2000, 16), (0x108c, 4)]);
    check_in(&log, "bpf", &[5, 0x1000, 120], 4, &[(0x2000, 16)]);
    let room = |mem: &mut Bytes| {
        mem.zero(0x1000, 64);
        mem.put_u64(0x1010, 0x2000);
        mem.put_u32(0x1018, 4);
    };
    let query = Case {
        name: "bpf",
        args: &[16, 0x1000, 64],
        before: &room,
        after: &|mem| mem.put_u32(0x1018, 2),
        result: 0,
    };
    check_case(&query, &[(0x100c, 4), (0x1018, 4), (0x2000, 8), (0x1038, 8)]);
    let mut mem = Bytes::default();
    mem.put_u64(0x1010, 0x2000);
    let lookup = Call::enter(number("bpf"), [1, 0x1000, 144, 0, 0, 0], &mem);
    let found = effects(&lookup.clone().telling(Some(8)).returned(0), &mem);
    assert_eq!(found, Ok(vec![GuestRange::new(GuestAddr(0x2000), 8)]));
    assert!(effects(&lookup.returned(0), &mem).is_err(), "how long a value is only the map tells");
}
