//! Rows: tasks, programs, identities, scheduling, limits. Data only.

use super::build::*;
use crate::errno::Errno;
use crate::flags::*;
use crate::inside::{Form, Good};
use crate::requests::{ARCH_PRCTL, PRCTL, PTRACE, SECCOMP};
use crate::row::{Answer, Check, Class, Hand, Row, Size, When};
use crate::structs::*;

const WNOHANG: u64 = 1;

pub(super) const ROWS: &[Row] = &[
    row(24, "sched_yield", &[]).waits().inside_as(Good::ForAnything, Form::Alone),
    row(39, "getpid", &[]).inside(Good::ForAnything),
    row(
        56,
        "clone",
        &[flags("flags", &CLONE), hex("stack"), hex("parent_tid"), hex("child_tid"), hex("tls")],
    )
    .class(Class::Spawn)
    .hand(Hand::Clone),
    row(57, "fork", &[]).class(Class::Spawn),
    row(58, "vfork", &[]).class(Class::Spawn),
    row(59, "execve", &[path("path"), texts("argv"), texts("envp")]).class(Class::Exec),
    row(60, "exit", &[int("status")]).class(Class::Exit),
    row(
        61,
        "wait4",
        &[
            int("pid"),
            wrote_when("status", INT, When::Positive),
            flags("options", &WAIT),
            wrote_when("rusage", RUSAGE, When::Positive),
        ],
    )
    .waits_unless(2, WNOHANG),
    row(63, "uname", &[wrote("buf", UTSNAME)]).inside(Good::ForAnything),
    row(97, "getrlimit", &[flags("resource", &RLIMIT_NAMES), wrote("rlim", RLIMIT)]),
    row(98, "getrusage", &[flags("who", &RUSAGE_WHO), wrote("usage", RUSAGE)]).inside(Good::ForAnything),
    row(99, "sysinfo", &[wrote("info", SYSINFO)]).inside(Good::ForAnything),
    row(101, "ptrace", &[request("request"), int("pid"), hex("addr"), hex("data")])
        .requests(&PTRACE)
        .partial("of other tasks of the recording only"),
    row(102, "getuid", &[]).inside(Good::ForAnything),
    row(104, "getgid", &[]).inside(Good::ForAnything),
    row(105, "setuid", &[int("uid")]),
    row(106, "setgid", &[int("gid")]),
    row(107, "geteuid", &[]).inside(Good::ForAnything),
    row(108, "getegid", &[]).inside(Good::ForAnything),
    row(109, "setpgid", &[int("pid"), int("pgid")]),
    row(110, "getppid", &[]).inside(Good::ForAnything),
    row(111, "getpgrp", &[]).inside(Good::ForAnything),
    row(112, "setsid", &[]),
    row(113, "setreuid", &[int("ruid"), int("euid")]),
    row(114, "setregid", &[int("rgid"), int("egid")]),
    row(115, "getgroups", &[int("size"), out("list", Size::ResultItems(0, ID))]),
    row(116, "setgroups", &[int("size"), input("list", Size::Items(0, ID))]),
    row(117, "setresuid", &[int("ruid"), int("euid"), int("suid")]),
    row(118, "getresuid", &[wrote("ruid", ID), wrote("euid", ID), wrote("suid", ID)]),
    row(119, "setresgid", &[int("rgid"), int("egid"), int("sgid")]),
    row(120, "getresgid", &[wrote("rgid", ID), wrote("egid", ID), wrote("sgid", ID)]),
    row(121, "getpgid", &[int("pid")]).inside(Good::ForAnything),
    row(122, "setfsuid", &[int("fsuid")]),
    row(123, "setfsgid", &[int("fsgid")]),
    row(124, "getsid", &[int("pid")]).inside(Good::ForAnything),
    row(125, "capget", &[hex("header"), hex("data")]).hand(Hand::Capget),
    row(126, "capset", &[hex("header"), hex("data")]).hand(Hand::Capset),
    row(135, "personality", &[flags("persona", &PERSONALITY)]).partial(
        "READ_IMPLIES_EXEC is not modelled: mappings made under it are recorded as they were asked for",
    ),
    row(140, "getpriority", &[int("which"), int("who")]),
    row(141, "setpriority", &[int("which"), int("who"), int("priority")]),
    row(142, "sched_setparam", &[int("pid"), read("param", SCHED_PARAM)]),
    row(143, "sched_getparam", &[int("pid"), wrote("param", SCHED_PARAM)]),
    row(144, "sched_setscheduler", &[int("pid"), flags("policy", &SCHED_POLICY), read("param", SCHED_PARAM)]),
    row(145, "sched_getscheduler", &[int("pid")]),
    row(146, "sched_get_priority_max", &[flags("policy", &SCHED_POLICY)]),
    row(147, "sched_get_priority_min", &[flags("policy", &SCHED_POLICY)]),
    row(148, "sched_rr_get_interval", &[int("pid"), wrote("interval", TIMESPEC)]),
    row(154, "modify_ldt", &[request("func"), out("ptr", Size::Result(2)), uint("size")])
        .requests(&crate::requests::MODIFY_LDT),
    row(157, "prctl", &[request("option"), hex("arg2"), hex("arg3"), hex("arg4"), hex("arg5")])
        .requests(&PRCTL),
    row(158, "arch_prctl", &[request("code"), hex("addr")]).requests(&ARCH_PRCTL),
    row(160, "setrlimit", &[flags("resource", &RLIMIT_NAMES), read("rlim", RLIMIT)]),
    row(172, "iopl", &[int("level")]).emulate(Errno::EPERM, "port instructions are not recorded"),
    row(173, "ioperm", &[hex("from"), uint("num"), int("turn_on")])
        .emulate(Errno::EPERM, "port instructions are not recorded"),
    row(186, "gettid", &[]).inside(Good::ForAnything),
    row(203, "sched_setaffinity", &[int("pid"), uint("size"), input("mask", Size::Arg(1))])
        .class(Class::Answer(Answer::SetAffinity))
        .partial("tasks stay on the recorder's processor; the program believes what it set"),
    row(204, "sched_getaffinity", &[int("pid"), uint("size"), out("mask", Size::Result(1))])
        .class(Class::Answer(Answer::GetAffinity)),
    row(205, "set_thread_area", &[hex("u_info")]).absent(),
    row(211, "get_thread_area", &[hex("u_info")]).absent(),
    row(218, "set_tid_address", &[hex("tidptr")]),
    row(231, "exit_group", &[int("status")]).class(Class::Exit),
    row(
        247,
        "waitid",
        &[flags("idtype", &ID_TYPE), int("id"), hex("infop"), flags("options", &WAIT), hex("rusage")],
    )
    .waits_unless(3, WNOHANG)
    .hand(Hand::Waitid),
    row(251, "ioprio_set", &[int("which"), int("who"), int("ioprio")]),
    row(252, "ioprio_get", &[int("which"), int("who")]),
    row(272, "unshare", &[flags("flags", &CLONE)]),
    row(
        302,
        "prlimit64",
        &[int("pid"), flags("resource", &RLIMIT_NAMES), read("new", RLIMIT), wrote("old", RLIMIT)],
    ),
    row(308, "setns", &[fd("fd"), flags("nstype", &CLONE)]),
    row(309, "getcpu", &[wrote("cpu", UINT), wrote("node", UINT), hex("tcache")]),
    row(
        310,
        "process_vm_readv",
        &[int("pid"), iov_out("local", 2), uint("liovcnt"), hex("remote"), uint("riovcnt"), hex("flags")],
    ),
    row(
        311,
        "process_vm_writev",
        &[int("pid"), iov_in("local", 2), uint("liovcnt"), hex("remote"), uint("riovcnt"), hex("flags")],
    )
    .partial("not while the other process runs"),
    row(312, "kcmp", &[int("pid1"), int("pid2"), int("type"), uint("idx1"), uint("idx2")]),
    row(
        314,
        "sched_setattr",
        &[int("pid"), both_when("attr", UINT, When::Failure(Errno::E2BIG)), hex("flags")],
    ),
    row(315, "sched_getattr", &[int("pid"), out("attr", Size::Arg(2)), uint("size"), hex("flags")]),
    row(317, "seccomp", &[request("operation"), hex("flags"), hex("args")]).requests(&SECCOMP),
    row(322, "execveat", &[dirfd("dirfd"), path("path"), texts("argv"), texts("envp"), flags("flags", &AT)])
        .class(Class::Exec),
    row(324, "membarrier", &[flags("cmd", &MEMBARRIER), hex("flags"), int("cpu_id")]),
    row(334, "rseq", &[hex("rseq"), uint("rseq_len"), hex("flags"), hex("sig")])
        .emulate(Errno::ENOSYS, "the kernel would write it at instants that cannot be recorded"),
    row(424, "pidfd_send_signal", &[fd("pidfd"), sig("sig"), read("info", SIGINFO), hex("flags")]),
    row(434, "pidfd_open", &[int("pid"), hex("flags")]),
    row(435, "clone3", &[input("args", Size::Arg(1)), uint("size")])
        .class(Class::Spawn)
        .hand(Hand::Clone3)
        .check(Check::Clone3)
        .partial("no CLONE_UNTRACED"),
    row(438, "pidfd_getfd", &[fd("pidfd"), fd("targetfd"), hex("flags")]),
];
