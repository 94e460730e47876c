//! `madvise` by advice, System V control calls, keys, quotas, the kernel log. Data only.

use super::{Key, Request, Requests, UnknownRequest, request as req};
use crate::errno::Errno;
use crate::inside::{Form, Good};
use crate::row::{Hand, MapCall, Size};
use crate::structs::*;
use crate::table::build::*;

/// `madvise(addr, length, advice)`.
pub(crate) static MADVISE: Requests =
    Requests { call: "madvise", key: Key::Arg(2), rest: 3, rows: &[ADVICE], unknown: UnknownRequest::Fails };
/// `semctl(id, semnum, cmd, arg)`.
pub(crate) static SEMCTL: Requests =
    Requests { call: "semctl", key: Key::Arg(2), rest: 3, rows: &[SEM], unknown: UnknownRequest::Fails };
/// `shmctl(id, cmd, buf)`.
pub(crate) static SHMCTL: Requests =
    Requests { call: "shmctl", key: Key::Arg(1), rest: 2, rows: &[SHM], unknown: UnknownRequest::Fails };
/// `msgctl(id, cmd, buf)`.
pub(crate) static MSGCTL: Requests =
    Requests { call: "msgctl", key: Key::Arg(1), rest: 2, rows: &[MSG], unknown: UnknownRequest::Fails };
/// `keyctl(operation, ...)`.
pub(crate) static KEYCTL: Requests =
    Requests { call: "keyctl", key: Key::Arg(0), rest: 1, rows: &[KEYS], unknown: UnknownRequest::Fails };
/// `quotactl(cmd, special, id, addr)`; the quota type in the low byte of `cmd` is left out.
pub(crate) static QUOTACTL: Requests = Requests {
    call: "quotactl",
    key: Key::Shifted(0, 8),
    rest: 3,
    rows: &[QUOTA],
    unknown: UnknownRequest::Fails,
};
/// `quotactl_fd(fd, cmd, id, addr)`.
pub(crate) static QUOTACTL_FD: Requests = Requests {
    call: "quotactl_fd",
    key: Key::Shifted(1, 8),
    rest: 3,
    rows: &[QUOTA],
    unknown: UnknownRequest::Fails,
};
/// `syslog(type, buf, len)`.
pub(crate) static SYSLOG: Requests =
    Requests { call: "syslog", key: Key::Arg(0), rest: 1, rows: &[LOG], unknown: UnknownRequest::Fails };

const GUARD: &str = "guard pages are not modelled; programs fall back to mprotect";
const FORK: &str = "a child would get other memory than its parent's";
const POISON: &str = "it takes memory away from the machine";

/// What drops contents may be made without a stop where they are memory of the program's own; and what is refused is refused there.
const fn in_range(request: Request) -> Request {
    request.inside_as(Good::ForAnything, Form::Range, [None; 2])
}

const ADVICE: &[Request] = &[
    req(0, "MADV_NORMAL", &[]).inside(Good::ForAnything),
    req(1, "MADV_RANDOM", &[]).inside(Good::ForAnything),
    req(2, "MADV_SEQUENTIAL", &[]).inside(Good::ForAnything),
    req(3, "MADV_WILLNEED", &[]).inside(Good::ForAnything),
    in_range(req(4, "MADV_DONTNEED", &[]).map(MapCall::Discard)),
    in_range(req(8, "MADV_FREE", &[]).map(MapCall::DiscardLater))
        .partial("pages are dropped at once, as by MADV_DONTNEED"),
    req(9, "MADV_REMOVE", &[]).map(MapCall::Remove),
    in_range(req(10, "MADV_DONTFORK", &[]).emulate(Errno::EINVAL, FORK)),
    req(11, "MADV_DOFORK", &[]).map(MapCall::ForkRule),
    req(12, "MADV_MERGEABLE", &[]),
    req(13, "MADV_UNMERGEABLE", &[]),
    req(14, "MADV_HUGEPAGE", &[]).inside(Good::ForAnything),
    req(15, "MADV_NOHUGEPAGE", &[]).inside(Good::ForAnything),
    req(16, "MADV_DONTDUMP", &[]).inside(Good::ForAnything),
    req(17, "MADV_DODUMP", &[]).inside(Good::ForAnything),
    req(18, "MADV_WIPEONFORK", &[]).emulate(Errno::EINVAL, FORK),
    req(19, "MADV_KEEPONFORK", &[]).map(MapCall::ForkRule),
    req(20, "MADV_COLD", &[]).inside(Good::ForAnything),
    req(21, "MADV_PAGEOUT", &[]),
    req(22, "MADV_POPULATE_READ", &[]),
    req(23, "MADV_POPULATE_WRITE", &[]),
    req(24, "MADV_DONTNEED_LOCKED", &[]).map(MapCall::Discard),
    req(25, "MADV_COLLAPSE", &[]),
    req(100, "MADV_HWPOISON", &[]).refused(POISON),
    req(101, "MADV_SOFT_OFFLINE", &[]).refused(POISON),
    req(102, "MADV_GUARD_INSTALL", &[]).emulate(Errno::EINVAL, GUARD),
    req(103, "MADV_GUARD_REMOVE", &[]).emulate(Errno::EINVAL, GUARD),
];

const SEM: &[Request] = &[
    req(0, "IPC_RMID", &[]),
    req(1, "IPC_SET", &[read("arg", IPC_SEM)]),
    req(2, "IPC_STAT", &[wrote("arg", IPC_SEM)]),
    req(3, "IPC_INFO", &[wrote("arg", SEMINFO)]),
    req(11, "GETPID", &[]),
    req(12, "GETVAL", &[]),
    req(13, "GETALL", &[hex("arg")])
        .hand(Hand::SemGetall)
        .partial("the call does not say how many there are: 64 KiB count as written"),
    req(14, "GETNCNT", &[]),
    req(15, "GETZCNT", &[]),
    req(16, "SETVAL", &[int("arg")]),
    req(17, "SETALL", &[hex("arg")]),
    req(18, "SEM_STAT", &[wrote("arg", IPC_SEM)]),
    req(19, "SEM_INFO", &[wrote("arg", SEMINFO)]),
    req(20, "SEM_STAT_ANY", &[wrote("arg", IPC_SEM)]),
];

const SHM: &[Request] = &[
    req(0, "IPC_RMID", &[]),
    req(1, "IPC_SET", &[read("buf", IPC_SHM)]),
    req(2, "IPC_STAT", &[wrote("buf", IPC_SHM)]),
    req(3, "IPC_INFO", &[wrote("buf", SHMINFO)]),
    req(11, "SHM_LOCK", &[]),
    req(12, "SHM_UNLOCK", &[]),
    req(13, "SHM_STAT", &[wrote("buf", IPC_SHM)]),
    req(14, "SHM_INFO", &[wrote("buf", SHM_INFO)]),
    req(15, "SHM_STAT_ANY", &[wrote("buf", IPC_SHM)]),
];

const MSG: &[Request] = &[
    req(0, "IPC_RMID", &[]),
    req(1, "IPC_SET", &[read("buf", IPC_MSG)]),
    req(2, "IPC_STAT", &[wrote("buf", IPC_MSG)]),
    req(3, "IPC_INFO", &[wrote("buf", MSGINFO)]),
    req(11, "MSG_STAT", &[wrote("buf", IPC_MSG)]),
    req(12, "MSG_INFO", &[wrote("buf", MSGINFO)]),
    req(13, "MSG_STAT_ANY", &[wrote("buf", IPC_MSG)]),
];

const CRYPTO: &str = "asymmetric operations on keys are not modelled";

const KEYS: &[Request] = &[
    req(0, "KEYCTL_GET_KEYRING_ID", &[int("id"), int("create")]),
    req(1, "KEYCTL_JOIN_SESSION_KEYRING", &[text("name")]),
    req(2, "KEYCTL_UPDATE", &[int("key"), input("payload", Size::Arg(3)), uint("len")]),
    req(3, "KEYCTL_REVOKE", &[int("key")]),
    req(4, "KEYCTL_CHOWN", &[int("key"), int("uid"), int("gid")]),
    req(5, "KEYCTL_SETPERM", &[int("key"), hex("perm")]),
    req(6, "KEYCTL_DESCRIBE", &[int("key"), out("buf", Size::Result(3)), uint("len")]),
    req(7, "KEYCTL_CLEAR", &[int("keyring")]),
    req(8, "KEYCTL_LINK", &[int("key"), int("keyring")]),
    req(9, "KEYCTL_UNLINK", &[int("key"), int("keyring")]),
    req(10, "KEYCTL_SEARCH", &[int("keyring"), text("type"), text("description"), int("dest")]),
    req(11, "KEYCTL_READ", &[int("key"), out("buf", Size::Result(3)), uint("len")]),
    req(12, "KEYCTL_INSTANTIATE", &[int("key"), input("payload", Size::Arg(3)), uint("len"), int("keyring")]),
    req(13, "KEYCTL_NEGATE", &[int("key"), uint("timeout"), int("keyring")]),
    req(14, "KEYCTL_SET_REQKEY_KEYRING", &[int("reqkey")]),
    req(15, "KEYCTL_SET_TIMEOUT", &[int("key"), uint("timeout")]),
    req(16, "KEYCTL_ASSUME_AUTHORITY", &[int("key")]),
    req(17, "KEYCTL_GET_SECURITY", &[int("key"), out("buf", Size::Result(3)), uint("len")]),
    req(18, "KEYCTL_SESSION_TO_PARENT", &[]),
    req(19, "KEYCTL_REJECT", &[int("key"), uint("timeout"), uint("error"), int("keyring")]),
    req(20, "KEYCTL_INSTANTIATE_IOV", &[int("key"), iov_in("iov", 3), uint("count"), int("keyring")]),
    req(21, "KEYCTL_INVALIDATE", &[int("key")]),
    req(22, "KEYCTL_GET_PERSISTENT", &[int("uid"), int("keyring")]),
    req(23, "KEYCTL_DH_COMPUTE", &[]).emulate(Errno::EOPNOTSUPP, CRYPTO),
    req(24, "KEYCTL_PKEY_QUERY", &[]).emulate(Errno::EOPNOTSUPP, CRYPTO),
    req(25, "KEYCTL_PKEY_ENCRYPT", &[]).emulate(Errno::EOPNOTSUPP, CRYPTO),
    req(26, "KEYCTL_PKEY_DECRYPT", &[]).emulate(Errno::EOPNOTSUPP, CRYPTO),
    req(27, "KEYCTL_PKEY_SIGN", &[]).emulate(Errno::EOPNOTSUPP, CRYPTO),
    req(28, "KEYCTL_PKEY_VERIFY", &[]).emulate(Errno::EOPNOTSUPP, CRYPTO),
    req(29, "KEYCTL_RESTRICT_KEYRING", &[int("keyring"), text("type"), text("restriction")]),
    req(30, "KEYCTL_MOVE", &[int("key"), int("from"), int("to"), hex("flags")]),
    req(31, "KEYCTL_CAPABILITIES", &[out("buf", Size::Arg(2)), uint("len")]),
    req(32, "KEYCTL_WATCH_KEY", &[int("key"), int("queue"), int("watch")]),
];

const QUOTA: &[Request] = &[
    req(0x80_0001, "Q_SYNC", &[]),
    req(0x80_0002, "Q_QUOTAON", &[path("addr")]),
    req(0x80_0003, "Q_QUOTAOFF", &[]),
    req(0x80_0004, "Q_GETFMT", &[wrote("addr", UINT)]),
    req(0x80_0005, "Q_GETINFO", &[wrote("addr", DQINFO)]),
    req(0x80_0006, "Q_SETINFO", &[read("addr", DQINFO)]),
    req(0x80_0007, "Q_GETQUOTA", &[wrote("addr", DQBLK)]),
    req(0x80_0008, "Q_SETQUOTA", &[read("addr", DQBLK)]),
    req(0x80_0009, "Q_GETNEXTQUOTA", &[wrote("addr", NEXTDQBLK)]),
];

const LOG: &[Request] = &[
    req(0, "SYSLOG_ACTION_CLOSE", &[]),
    req(1, "SYSLOG_ACTION_OPEN", &[]),
    req(2, "SYSLOG_ACTION_READ", &[out("buf", Size::Result(2)), uint("len")]).waits(),
    req(3, "SYSLOG_ACTION_READ_ALL", &[out("buf", Size::Result(2)), uint("len")]),
    req(4, "SYSLOG_ACTION_READ_CLEAR", &[out("buf", Size::Result(2)), uint("len")]),
    req(5, "SYSLOG_ACTION_CLEAR", &[]),
    req(6, "SYSLOG_ACTION_CONSOLE_OFF", &[]),
    req(7, "SYSLOG_ACTION_CONSOLE_ON", &[]),
    req(8, "SYSLOG_ACTION_CONSOLE_LEVEL", &[hex("buf"), int("level")]),
    req(9, "SYSLOG_ACTION_SIZE_UNREAD", &[]),
    req(10, "SYSLOG_ACTION_SIZE_BUFFER", &[]),
];
