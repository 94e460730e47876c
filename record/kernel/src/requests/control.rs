//! `fcntl`, `prctl`, `arch_prctl`, `seccomp`, `ptrace` and `modify_ldt` by request (their man pages; linux/prctl.h, asm/prctl.h). Data
//! only.

use super::{Key, Request, Requests, UnknownRequest, request as req};
use crate::errno::Errno;
use crate::flags::*;
use crate::inside::Good;
use crate::row::{Answer, Class, Hand, Size};
use crate::structs::*;
use crate::table::build::*;

/// `fcntl(fd, cmd, arg)`.
pub(crate) static FCNTL: Requests =
    Requests { call: "fcntl", key: Key::Arg(1), rest: 2, rows: &[FILE], unknown: UnknownRequest::Fails };
/// `prctl(option, ...)`.
pub(crate) static PRCTL: Requests =
    Requests { call: "prctl", key: Key::Arg(0), rest: 1, rows: &[PROCESS], unknown: UnknownRequest::Fails };
/// `arch_prctl(code, addr)`.
pub(crate) static ARCH_PRCTL: Requests =
    Requests { call: "arch_prctl", key: Key::Arg(0), rest: 1, rows: &[ARCH], unknown: UnknownRequest::Fails };
/// `seccomp(operation, flags, args)`.
pub(crate) static SECCOMP: Requests =
    Requests { call: "seccomp", key: Key::Arg(0), rest: 2, rows: &[FILTERS], unknown: UnknownRequest::Fails };
/// `ptrace(request, pid, addr, data)`.
pub(crate) static PTRACE: Requests =
    Requests { call: "ptrace", key: Key::Arg(0), rest: 1, rows: &[TRACING], unknown: UnknownRequest::Fails };
/// `modify_ldt(func, ptr, size)`.
pub(crate) static MODIFY_LDT: Requests = Requests {
    call: "modify_ldt",
    key: Key::Arg(0),
    rest: 1,
    rows: &[SEGMENTS],
    unknown: UnknownRequest::Fails,
};

const FILE: &[Request] = &[
    req(0, "F_DUPFD", &[int("arg")]).inside(Good::ForQuestions),
    req(1, "F_GETFD", &[]).inside(Good::ForQuestions),
    req(2, "F_SETFD", &[flags("arg", &FD_FLAGS)]).inside(Good::ForQuestions),
    req(3, "F_GETFL", &[]).inside(Good::ForQuestions),
    req(4, "F_SETFL", &[flags("arg", &OPEN)]),
    req(5, "F_GETLK", &[both("arg", FLOCK)]).inside(Good::ForReads),
    req(6, "F_SETLK", &[read("arg", FLOCK)]).inside(Good::ForReads),
    req(7, "F_SETLKW", &[read("arg", FLOCK)]).waits(),
    req(8, "F_SETOWN", &[int("arg")]),
    req(9, "F_GETOWN", &[]).inside(Good::ForQuestions),
    req(10, "F_SETSIG", &[sig("arg")]),
    req(11, "F_GETSIG", &[]).inside(Good::ForQuestions),
    req(15, "F_SETOWN_EX", &[read("arg", F_OWNER_EX)]),
    req(16, "F_GETOWN_EX", &[wrote("arg", F_OWNER_EX)]),
    req(17, "F_GETOWNER_UIDS", &[wrote("arg", INT_PAIR)]),
    req(36, "F_OFD_GETLK", &[both("arg", FLOCK)]).inside(Good::ForReads),
    req(37, "F_OFD_SETLK", &[read("arg", FLOCK)]).inside(Good::ForReads),
    req(38, "F_OFD_SETLKW", &[read("arg", FLOCK)]).waits(),
    req(1024, "F_SETLEASE", &[int("arg")]),
    req(1025, "F_GETLEASE", &[]),
    req(1026, "F_NOTIFY", &[hex("arg")]),
    req(1027, "F_DUPFD_QUERY", &[fd("arg")]),
    req(1028, "F_CREATED_QUERY", &[]),
    req(1029, "F_CANCELLK", &[read("arg", FLOCK)]),
    req(1030, "F_DUPFD_CLOEXEC", &[int("arg")]).inside(Good::ForQuestions),
    req(1031, "F_SETPIPE_SZ", &[int("arg")]),
    req(1032, "F_GETPIPE_SZ", &[]).inside(Good::ForQuestions),
    req(1033, "F_ADD_SEALS", &[flags("arg", &SEALS)]),
    req(1034, "F_GET_SEALS", &[]).inside(Good::ForQuestions),
    req(1035, "F_GET_RW_HINT", &[wrote("arg", LOFF)]),
    req(1036, "F_SET_RW_HINT", &[read("arg", LOFF)]),
    req(1037, "F_GET_FILE_RW_HINT", &[wrote("arg", LOFF)]),
    req(1038, "F_SET_FILE_RW_HINT", &[read("arg", LOFF)]),
];

const OTHER_ARCH: &str = "the option is for other processors";
const LISTENER: &str = "another program cannot decide about the calls (SECCOMP_FILTER_FLAG_NEW_LISTENER)";
const STRICT_THREADS: &str = "strict mode is refused in a process with threads";

const PROCESS: &[Request] = &[
    req(1, "PR_SET_PDEATHSIG", &[sig("sig")]),
    req(2, "PR_GET_PDEATHSIG", &[wrote("sig", INT)]),
    req(3, "PR_GET_DUMPABLE", &[])
        .class(Class::Answer(Answer::GetDumpable))
        .partial("the recorder answers: a process that cannot be dumped could not be traced"),
    req(4, "PR_SET_DUMPABLE", &[int("dumpable")])
        .class(Class::Answer(Answer::SetDumpable))
        .partial("the recorder answers: a process that cannot be dumped could not be traced"),
    req(5, "PR_GET_UNALIGN", &[]).emulate(Errno::EINVAL, OTHER_ARCH),
    req(6, "PR_SET_UNALIGN", &[]).emulate(Errno::EINVAL, OTHER_ARCH),
    req(7, "PR_GET_KEEPCAPS", &[]),
    req(8, "PR_SET_KEEPCAPS", &[int("keep")]),
    req(9, "PR_GET_FPEMU", &[]).emulate(Errno::EINVAL, OTHER_ARCH),
    req(10, "PR_SET_FPEMU", &[]).emulate(Errno::EINVAL, OTHER_ARCH),
    req(11, "PR_GET_FPEXC", &[]).emulate(Errno::EINVAL, OTHER_ARCH),
    req(12, "PR_SET_FPEXC", &[]).emulate(Errno::EINVAL, OTHER_ARCH),
    req(13, "PR_GET_TIMING", &[]),
    req(14, "PR_SET_TIMING", &[int("timing")]),
    req(15, "PR_SET_NAME", &[text("name")]),
    req(16, "PR_GET_NAME", &[wrote("name", TASK_NAME)]),
    req(19, "PR_GET_ENDIAN", &[]).emulate(Errno::EINVAL, OTHER_ARCH),
    req(20, "PR_SET_ENDIAN", &[]).emulate(Errno::EINVAL, OTHER_ARCH),
    req(21, "PR_GET_SECCOMP", &[]).class(Class::Answer(Answer::GetSeccomp)),
    req(22, "PR_SET_SECCOMP", &[hex("mode"), hex("filter")]).class(Class::Restrict).partial(STRICT_THREADS),
    req(23, "PR_CAPBSET_READ", &[int("cap")]),
    req(24, "PR_CAPBSET_DROP", &[int("cap")]),
    req(25, "PR_GET_TSC", &[wrote("state", INT)]).class(Class::Answer(Answer::GetTsc)),
    req(26, "PR_SET_TSC", &[int("state")]).class(Class::Answer(Answer::SetTsc)),
    req(27, "PR_GET_SECUREBITS", &[]),
    req(28, "PR_SET_SECUREBITS", &[hex("bits")]),
    req(29, "PR_SET_TIMERSLACK", &[uint("ns")]),
    req(30, "PR_GET_TIMERSLACK", &[]),
    req(31, "PR_TASK_PERF_EVENTS_DISABLE", &[]),
    req(32, "PR_TASK_PERF_EVENTS_ENABLE", &[]),
    req(33, "PR_MCE_KILL", &[int("what"), int("policy")]),
    req(34, "PR_MCE_KILL_GET", &[]),
    req(35, "PR_SET_MM", &[int("what"), hex("addr")])
        .class(Class::Answer(Answer::SetMm))
        .hand(Hand::SetMm)
        .partial("the bounds of the heap stay as they are"),
    req(36, "PR_SET_CHILD_SUBREAPER", &[int("set")]),
    req(37, "PR_GET_CHILD_SUBREAPER", &[wrote("set", INT)]),
    req(38, "PR_SET_NO_NEW_PRIVS", &[int("set")]).class(Class::Answer(Answer::SetNoNewPrivs)),
    req(39, "PR_GET_NO_NEW_PRIVS", &[]).class(Class::Answer(Answer::GetNoNewPrivs)),
    req(40, "PR_GET_TID_ADDRESS", &[wrote("addr", POINTER)]),
    req(41, "PR_SET_THP_DISABLE", &[int("set")]),
    req(42, "PR_GET_THP_DISABLE", &[]),
    req(43, "PR_MPX_ENABLE_MANAGEMENT", &[])
        .emulate(Errno::EINVAL, "the processor feature is gone from Linux"),
    req(44, "PR_MPX_DISABLE_MANAGEMENT", &[])
        .emulate(Errno::EINVAL, "the processor feature is gone from Linux"),
    req(45, "PR_SET_FP_MODE", &[]).emulate(Errno::EINVAL, OTHER_ARCH),
    req(46, "PR_GET_FP_MODE", &[]).emulate(Errno::EINVAL, OTHER_ARCH),
    req(47, "PR_CAP_AMBIENT", &[int("what"), int("cap")]),
    req(50, "PR_SVE_SET_VL", &[]).emulate(Errno::EINVAL, OTHER_ARCH),
    req(51, "PR_SVE_GET_VL", &[]).emulate(Errno::EINVAL, OTHER_ARCH),
    req(52, "PR_GET_SPECULATION_CTRL", &[int("which")]),
    req(53, "PR_SET_SPECULATION_CTRL", &[int("which"), int("how")]),
    req(54, "PR_PAC_RESET_KEYS", &[]).emulate(Errno::EINVAL, OTHER_ARCH),
    req(55, "PR_SET_TAGGED_ADDR_CTRL", &[]).emulate(Errno::EINVAL, OTHER_ARCH),
    req(56, "PR_GET_TAGGED_ADDR_CTRL", &[]).emulate(Errno::EINVAL, OTHER_ARCH),
    req(57, "PR_SET_IO_FLUSHER", &[int("set")]),
    req(58, "PR_GET_IO_FLUSHER", &[]),
    req(59, "PR_SET_SYSCALL_USER_DISPATCH", &[int("mode"), hex("offset"), uint("len"), hex("selector")]),
    req(60, "PR_PAC_SET_ENABLED_KEYS", &[]).emulate(Errno::EINVAL, OTHER_ARCH),
    req(61, "PR_PAC_GET_ENABLED_KEYS", &[]).emulate(Errno::EINVAL, OTHER_ARCH),
    req(62, "PR_SCHED_CORE", &[]).emulate(Errno::EINVAL, "all tasks run on one core"),
    req(63, "PR_SME_SET_VL", &[]).emulate(Errno::EINVAL, OTHER_ARCH),
    req(64, "PR_SME_GET_VL", &[]).emulate(Errno::EINVAL, OTHER_ARCH),
    req(65, "PR_SET_MDWE", &[hex("bits")])
        .emulate(Errno::EINVAL, "the recorder must be able to map code into the process"),
    req(66, "PR_GET_MDWE", &[]),
    req(67, "PR_SET_MEMORY_MERGE", &[int("set")]),
    req(68, "PR_GET_MEMORY_MERGE", &[]),
    req(69, "PR_RISCV_V_SET_CONTROL", &[]).emulate(Errno::EINVAL, OTHER_ARCH),
    req(70, "PR_RISCV_V_GET_CONTROL", &[]).emulate(Errno::EINVAL, OTHER_ARCH),
    req(71, "PR_RISCV_SET_ICACHE_FLUSH_CTX", &[]).emulate(Errno::EINVAL, OTHER_ARCH),
    req(72, "PR_PPC_GET_DEXCR", &[]).emulate(Errno::EINVAL, OTHER_ARCH),
    req(73, "PR_PPC_SET_DEXCR", &[]).emulate(Errno::EINVAL, OTHER_ARCH),
    req(74, "PR_GET_SHADOW_STACK_STATUS", &[]).emulate(Errno::EINVAL, OTHER_ARCH),
    req(75, "PR_SET_SHADOW_STACK_STATUS", &[]).emulate(Errno::EINVAL, OTHER_ARCH),
    req(76, "PR_LOCK_SHADOW_STACK_STATUS", &[]).emulate(Errno::EINVAL, OTHER_ARCH),
    req(77, "PR_TIMER_CREATE_RESTORE_IDS", &[int("what")]),
    req(78, "PR_FUTEX_HASH", &[int("what"), uint("slots"), hex("flags")]),
    req(0x4155_5856, "PR_GET_AUXV", &[out("auxv", Size::Result(2)), uint("len")])
        .class(Class::Adjusted)
        .partial("the entry of the vDSO, which is hidden, is taken out"),
    req(0x5356_4d41, "PR_SET_VMA", &[hex("attr"), hex("addr"), uint("size"), text("name")]),
    req(0x5961_6d61, "PR_SET_PTRACER", &[int("pid")]),
];

const PROTECTION: &str = "the processor's extension for control flow or tagged pointers is not recorded";
const TILES: &str = "matrix state is not recorded";
const VDSO: &str = "the vDSO is hidden";

const ARCH: &[Request] = &[
    req(0x1001, "ARCH_SET_GS", &[hex("addr")]),
    req(0x1002, "ARCH_SET_FS", &[hex("addr")]),
    req(0x1003, "ARCH_GET_FS", &[wrote("addr", ULONG)]),
    req(0x1004, "ARCH_GET_GS", &[wrote("addr", ULONG)]),
    req(0x1011, "ARCH_GET_CPUID", &[]).class(Class::Answer(Answer::GetCpuid)),
    req(0x1012, "ARCH_SET_CPUID", &[int("on")]).class(Class::Answer(Answer::SetCpuid)),
    req(0x1021, "ARCH_GET_XCOMP_SUPP", &[wrote("addr", ULONG)]),
    req(0x1022, "ARCH_GET_XCOMP_PERM", &[wrote("addr", ULONG)]),
    req(0x1023, "ARCH_REQ_XCOMP_PERM", &[int("feature")]).emulate(Errno::EOPNOTSUPP, TILES),
    req(0x1024, "ARCH_GET_XCOMP_GUEST_PERM", &[wrote("addr", ULONG)]),
    req(0x1025, "ARCH_REQ_XCOMP_GUEST_PERM", &[int("feature")]).emulate(Errno::EINVAL, TILES),
    req(0x2001, "ARCH_MAP_VDSO_X32", &[hex("addr")]).emulate(Errno::EINVAL, VDSO),
    req(0x2002, "ARCH_MAP_VDSO_32", &[hex("addr")]).emulate(Errno::EINVAL, VDSO),
    req(0x2003, "ARCH_MAP_VDSO_64", &[hex("addr")]).emulate(Errno::EINVAL, VDSO),
    req(0x3001, "ARCH_CET_STATUS", &[hex("addr")]).emulate(Errno::EINVAL, PROTECTION),
    req(0x3002, "ARCH_CET_DISABLE", &[hex("features")]).emulate(Errno::EINVAL, PROTECTION),
    req(0x3003, "ARCH_CET_LOCK", &[]).emulate(Errno::EINVAL, PROTECTION),
    req(0x4001, "ARCH_GET_UNTAG_MASK", &[hex("addr")]).emulate(Errno::EINVAL, PROTECTION),
    req(0x4002, "ARCH_ENABLE_TAGGED_ADDR", &[uint("bits")]).emulate(Errno::EINVAL, PROTECTION),
    req(0x4003, "ARCH_GET_MAX_TAG_BITS", &[hex("addr")]).emulate(Errno::EINVAL, PROTECTION),
    req(0x4004, "ARCH_FORCE_TAGGED_SVA", &[]).emulate(Errno::EINVAL, PROTECTION),
    req(0x5001, "ARCH_SHSTK_ENABLE", &[hex("features")]).emulate(Errno::EINVAL, PROTECTION),
    req(0x5002, "ARCH_SHSTK_DISABLE", &[hex("features")]).emulate(Errno::EINVAL, PROTECTION),
    req(0x5003, "ARCH_SHSTK_LOCK", &[hex("features")]).emulate(Errno::EINVAL, PROTECTION),
    req(0x5004, "ARCH_SHSTK_UNLOCK", &[hex("features")]).emulate(Errno::EINVAL, PROTECTION),
    req(0x5005, "ARCH_SHSTK_STATUS", &[hex("addr")]).emulate(Errno::EINVAL, PROTECTION),
];

const FILTERS: &[Request] = &[
    req(0, "SECCOMP_SET_MODE_STRICT", &[]).class(Class::Restrict).partial(STRICT_THREADS),
    req(1, "SECCOMP_SET_MODE_FILTER", &[read("args", SOCK_FPROG)]).class(Class::Restrict).partial(LISTENER),
    req(2, "SECCOMP_GET_ACTION_AVAIL", &[read("args", UINT)]),
    req(3, "SECCOMP_GET_NOTIF_SIZES", &[wrote("args", SECCOMP_SIZES)]),
];

const OUTSIDE: &str = "only of tasks that are recorded";
const THREAD_AREA: &str = "32-bit segments are not modelled";
const REPEATED: &str = "stepping passes an instruction with a repeat prefix at once";

const TRACING: &[Request] = &[
    req(0, "PTRACE_TRACEME", &[]).trace().partial(OUTSIDE),
    req(1, "PTRACE_PEEKTEXT", &[int("pid"), hex("addr"), wrote("data", ULONG)]).trace(),
    req(2, "PTRACE_PEEKDATA", &[int("pid"), hex("addr"), wrote("data", ULONG)]).trace(),
    req(3, "PTRACE_PEEKUSER", &[int("pid"), hex("offset"), wrote("data", ULONG)]).trace(),
    req(4, "PTRACE_POKETEXT", &[int("pid"), hex("addr"), hex("data")]).trace(),
    req(5, "PTRACE_POKEDATA", &[int("pid"), hex("addr"), hex("data")]).trace(),
    req(6, "PTRACE_POKEUSER", &[int("pid"), hex("offset"), hex("data")]).trace(),
    req(7, "PTRACE_CONT", &[int("pid"), hex("addr"), sig("sig")]).trace(),
    req(8, "PTRACE_KILL", &[int("pid")]).trace(),
    req(9, "PTRACE_SINGLESTEP", &[int("pid"), hex("addr"), sig("sig")]).trace().partial(REPEATED),
    req(12, "PTRACE_GETREGS", &[int("pid"), hex("addr"), wrote("data", USER_REGS)]).trace(),
    req(13, "PTRACE_SETREGS", &[int("pid"), hex("addr"), read("data", USER_REGS)]).trace(),
    req(14, "PTRACE_GETFPREGS", &[int("pid"), hex("addr"), wrote("data", USER_FPREGS)]).trace(),
    req(15, "PTRACE_SETFPREGS", &[int("pid"), hex("addr"), read("data", USER_FPREGS)]).trace(),
    req(16, "PTRACE_ATTACH", &[int("pid")]).trace().partial(OUTSIDE),
    req(17, "PTRACE_DETACH", &[int("pid"), hex("addr"), sig("sig")]).trace(),
    req(24, "PTRACE_SYSCALL", &[int("pid"), hex("addr"), sig("sig")]).trace(),
    req(25, "PTRACE_GET_THREAD_AREA", &[]).refused(THREAD_AREA),
    req(26, "PTRACE_SET_THREAD_AREA", &[]).refused(THREAD_AREA),
    req(30, "PTRACE_ARCH_PRCTL", &[int("pid"), hex("addr"), hex("code")]).trace().hand(Hand::SegmentBase),
    req(31, "PTRACE_SYSEMU", &[int("pid"), hex("addr"), sig("sig")]).trace(),
    req(32, "PTRACE_SYSEMU_SINGLESTEP", &[int("pid"), hex("addr"), sig("sig")]).trace().partial(REPEATED),
    req(33, "PTRACE_SINGLEBLOCK", &[]).refused("branches are not stepped to"),
    req(0x4200, "PTRACE_SETOPTIONS", &[int("pid"), hex("addr"), hex("options")]).trace(),
    req(0x4201, "PTRACE_GETEVENTMSG", &[int("pid"), hex("addr"), wrote("data", ULONG)]).trace(),
    req(0x4202, "PTRACE_GETSIGINFO", &[int("pid"), hex("addr"), wrote("data", SIGINFO)]).trace(),
    req(0x4203, "PTRACE_SETSIGINFO", &[int("pid"), hex("addr"), read("data", SIGINFO)]).trace(),
    req(0x4204, "PTRACE_GETREGSET", &[int("pid"), hex("type"), hex("iov")]).trace().hand(Hand::RegisterSet),
    req(0x4205, "PTRACE_SETREGSET", &[int("pid"), hex("type"), hex("iov")]).trace(),
    req(0x4206, "PTRACE_SEIZE", &[int("pid"), hex("addr"), hex("options")]).trace().partial(OUTSIDE),
    req(0x4207, "PTRACE_INTERRUPT", &[int("pid")]).trace(),
    req(0x4208, "PTRACE_LISTEN", &[int("pid")]).trace(),
    req(0x4209, "PTRACE_PEEKSIGINFO", &[int("pid"), hex("args"), out("data", Size::ResultItems(2, SIGINFO))])
        .trace(),
    req(0x420a, "PTRACE_GETSIGMASK", &[int("pid"), uint("size"), wrote("data", SIGSET)]).trace(),
    req(0x420b, "PTRACE_SETSIGMASK", &[int("pid"), uint("size"), read("data", SIGSET)]).trace(),
    req(0x420c, "PTRACE_SECCOMP_GET_FILTER", &[]).refused("filters are kept by the recorder"),
    req(0x420d, "PTRACE_SECCOMP_GET_METADATA", &[]).refused("filters are kept by the recorder"),
    req(0x420e, "PTRACE_GET_SYSCALL_INFO", &[int("pid"), uint("size"), out("info", Size::Result(2))]).trace(),
    req(0x420f, "PTRACE_GET_RSEQ_CONFIGURATION", &[int("pid"), uint("size"), out("info", Size::Result(2))])
        .trace(),
    req(0x4210, "PTRACE_SET_SYSCALL_USER_DISPATCH_CONFIG", &[]).refused(DISPATCH),
    req(0x4211, "PTRACE_GET_SYSCALL_USER_DISPATCH_CONFIG", &[]).refused(DISPATCH),
    req(0x4212, "PTRACE_SET_SYSCALL_INFO", &[]).refused("registers are changed one by one"),
];

const DISPATCH: &str = "programs cannot intercept their own system calls";

const SEGMENT_WHY: &str = "segments of its own let a program run code that is not modelled";

const SEGMENTS: &[Request] = &[
    req(0, "LDT_READ", &[out("ptr", Size::Result(2)), uint("size")]),
    req(1, "LDT_WRITE", &[]).refused(SEGMENT_WHY),
    req(2, "LDT_READ_DEFAULT", &[out("ptr", Size::Result(2)), uint("size")]),
    req(0x11, "LDT_WRITE_NEW", &[]).refused(SEGMENT_WHY),
];
