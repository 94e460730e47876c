//! Rows: files, descriptors, directories, paths, attributes. Data only.

use super::build::*;
use crate::errno::Errno;
use crate::flags::*;
use crate::inside::{Form, Good};
use crate::requests::{FCNTL, IOCTL};
use crate::row::{Hand, Opens, Reads, Row, Size, When};
use crate::structs::*;

const O_NONBLOCK: u64 = 0o4000;
const O_RDWR: u64 = 2;
const O_WRONLY_TRUNC: u64 = 0o1001;
const UNSEEN: &str =
    "towards the run's own output it is answered EINVAL, and programs read and write instead";

pub(super) const ROWS: &[Row] = &[
    row(0, "read", &[fd("fd"), out("buf", Size::Result(2)), uint("count")]).waits().reads(Reads::AtOwn).inside_as(Good::ForReads, Form::Vector),
    row(1, "write", &[fd("fd"), input("buf", Size::Arg(2)), uint("count")]).waits().changes(0).sends().inside_as(Good::ForWrites, Form::Vector),
    row(2, "open", &[path("path"), flags("flags", &OPEN), mode("mode")])
        .waits_unless(1, O_NONBLOCK)
        .opens(Opens::Flags(1)).inside_as(Good::ForAnything, Form::OpenAs),
    row(3, "close", &[fd("fd")]).inside_as(Good::ForAnything, Form::Close),
    row(4, "stat", &[path("path"), wrote("statbuf", STAT)]).inside(Good::ForAnything),
    row(5, "fstat", &[fd("fd"), wrote("statbuf", STAT)]).inside(Good::ForQuestions),
    row(6, "lstat", &[path("path"), wrote("statbuf", STAT)]).inside(Good::ForAnything),
    row(8, "lseek", &[fd("fd"), long("offset"), flags("whence", &SEEK)]).inside(Good::ForQuestions),
    row(16, "ioctl", &[fd("fd"), request("request"), hex("argp")]).waits().requests(&IOCTL),
    row(17, "pread64", &[fd("fd"), out("buf", Size::Result(2)), uint("count"), long("offset")]).waits().reads(Reads::At(3)).inside(Good::ForReads),
    row(18, "pwrite64", &[fd("fd"), input("buf", Size::Arg(2)), uint("count"), long("offset")])
        .waits()
        .changes(0)
        .sends().inside(Good::ForWrites),
    row(19, "readv", &[fd("fd"), iov_out("iov", 2), uint("iovcnt")]).waits().reads(Reads::AtOwn).inside_as(Good::ForReads, Form::Vectors),
    row(20, "writev", &[fd("fd"), iov_in("iov", 2), uint("iovcnt")]).waits().changes(0).sends().inside_as(Good::ForWrites, Form::Vectors),
    row(21, "access", &[path("path"), flags("mode", &ACCESS)]).inside(Good::ForAnything),
    row(22, "pipe", &[wrote("fds", INT_PAIR)]),
    row(32, "dup", &[fd("fd")]).inside(Good::ForQuestions),
    row(33, "dup2", &[fd("old"), fd("new")]),
    row(40, "sendfile", &[fd("out"), fd("in"), both_when("offset", LOFF, When::Always), uint("count")])
        .waits()
        .changes(0)
        .partial(UNSEEN).inside_as(Good::ForWrites, Form::Send),
    row(72, "fcntl", &[fd("fd"), request("cmd"), hex("arg")]).waits().requests(&FCNTL),
    row(73, "flock", &[fd("fd"), flags("operation", &FLOCK_OPS)]).waits_unless(1, 4 | 8),
    row(74, "fsync", &[fd("fd")]),
    row(75, "fdatasync", &[fd("fd")]),
    row(76, "truncate", &[path("path"), long("length")])
        .changes(0),
    row(77, "ftruncate", &[fd("fd"), long("length")]).changes(0),
    row(78, "getdents", &[fd("fd"), out("dirents", Size::Result(2)), uint("count")]),
    row(79, "getcwd", &[out("buf", Size::Result(1)), uint("size")]).inside(Good::ForAnything),
    row(80, "chdir", &[path("path")]),
    row(81, "fchdir", &[fd("fd")]),
    row(82, "rename", &[path("old"), path("new")]),
    row(83, "mkdir", &[path("path"), mode("mode")]),
    row(84, "rmdir", &[path("path")]),
    row(85, "creat", &[path("path"), mode("mode")]).waits().opens(Opens::Always(O_WRONLY_TRUNC)),
    row(86, "link", &[path("old"), path("new")]),
    row(87, "unlink", &[path("path")]),
    row(88, "symlink", &[path("target"), path("link")]),
    row(89, "readlink", &[path("path"), out("buf", Size::Result(2)), uint("size")]).inside(Good::ForAnything),
    row(90, "chmod", &[path("path"), mode("mode")]),
    row(91, "fchmod", &[fd("fd"), mode("mode")]),
    row(92, "chown", &[path("path"), int("owner"), int("group")]),
    row(93, "fchown", &[fd("fd"), int("owner"), int("group")]),
    row(94, "lchown", &[path("path"), int("owner"), int("group")]),
    row(95, "umask", &[mode("mask")]),
    row(132, "utime", &[path("path"), read("times", UTIMBUF)]),
    row(133, "mknod", &[path("path"), mode("mode"), hex("dev")]),
    row(136, "ustat", &[hex("dev"), wrote("ubuf", USTAT)]),
    row(137, "statfs", &[path("path"), wrote("buf", STATFS)]),
    row(138, "fstatfs", &[fd("fd"), wrote("buf", STATFS)]),
    row(162, "sync", &[]),
    row(187, "readahead", &[fd("fd"), long("offset"), uint("count")]),
    row(
        188,
        "setxattr",
        &[path("path"), text("name"), input("value", Size::Arg(3)), uint("size"), flags("flags", &XATTR)],
    ),
    row(
        189,
        "lsetxattr",
        &[path("path"), text("name"), input("value", Size::Arg(3)), uint("size"), flags("flags", &XATTR)],
    ),
    row(
        190,
        "fsetxattr",
        &[fd("fd"), text("name"), input("value", Size::Arg(3)), uint("size"), flags("flags", &XATTR)],
    ),
    row(191, "getxattr", &[path("path"), text("name"), out("value", Size::Result(3)), uint("size")]),
    row(192, "lgetxattr", &[path("path"), text("name"), out("value", Size::Result(3)), uint("size")]),
    row(193, "fgetxattr", &[fd("fd"), text("name"), out("value", Size::Result(3)), uint("size")]),
    row(194, "listxattr", &[path("path"), out("list", Size::Result(2)), uint("size")]),
    row(195, "llistxattr", &[path("path"), out("list", Size::Result(2)), uint("size")]),
    row(196, "flistxattr", &[fd("fd"), out("list", Size::Result(2)), uint("size")]),
    row(197, "removexattr", &[path("path"), text("name")]),
    row(198, "lremovexattr", &[path("path"), text("name")]),
    row(199, "fremovexattr", &[fd("fd"), text("name")]),
    row(217, "getdents64", &[fd("fd"), out("dirents", Size::Result(2)), uint("count")]).inside(Good::ForReads),
    row(221, "fadvise64", &[fd("fd"), long("offset"), uint("len"), flags("advice", &FADVISE)]),
    row(235, "utimes", &[path("path"), read("times", TWO_TIMEVALS)]),
    row(257, "openat", &[dirfd("dirfd"), path("path"), flags("flags", &OPEN), mode("mode")])
        .waits_unless(2, O_NONBLOCK)
        .opens(Opens::Flags(2)).inside_as(Good::ForAnything, Form::Open),
    row(258, "mkdirat", &[dirfd("dirfd"), path("path"), mode("mode")]),
    row(259, "mknodat", &[dirfd("dirfd"), path("path"), mode("mode"), hex("dev")]),
    row(260, "fchownat", &[dirfd("dirfd"), path("path"), int("owner"), int("group"), flags("flags", &AT)]),
    row(261, "futimesat", &[dirfd("dirfd"), path("path"), read("times", TWO_TIMEVALS)]),
    row(262, "newfstatat", &[dirfd("dirfd"), path("path"), wrote("statbuf", STAT), flags("flags", &AT)]).inside(Good::ForAnything),
    row(263, "unlinkat", &[dirfd("dirfd"), path("path"), flags("flags", &UNLINK_AT)]),
    row(264, "renameat", &[dirfd("olddirfd"), path("old"), dirfd("newdirfd"), path("new")]),
    row(
        265,
        "linkat",
        &[dirfd("olddirfd"), path("old"), dirfd("newdirfd"), path("new"), flags("flags", &AT)],
    ),
    row(266, "symlinkat", &[path("target"), dirfd("newdirfd"), path("link")]),
    row(267, "readlinkat", &[dirfd("dirfd"), path("path"), out("buf", Size::Result(3)), uint("size")]).inside(Good::ForAnything),
    row(268, "fchmodat", &[dirfd("dirfd"), path("path"), mode("mode")]),
    row(269, "faccessat", &[dirfd("dirfd"), path("path"), flags("mode", &ACCESS)]).inside(Good::ForAnything),
    row(
        275,
        "splice",
        &[
            fd("in"),
            both("off_in", LOFF),
            fd("out"),
            both("off_out", LOFF),
            uint("len"),
            flags("flags", &SPLICE),
        ],
    )
    .waits_unless(5, 2)
    .changes(2)
    .partial(UNSEEN),
    row(276, "tee", &[fd("in"), fd("out"), uint("len"), flags("flags", &SPLICE)])
        .waits_unless(3, 2)
        .partial(UNSEEN),
    row(277, "sync_file_range", &[fd("fd"), long("offset"), long("nbytes"), hex("flags")]),
    row(278, "vmsplice", &[fd("fd"), iov_out("iov", 2), uint("count"), flags("flags", &SPLICE)])
        .waits_unless(3, 2)
        .partial("from memory into a pipe, the bytes count as written, which they are not; towards the run's own output it is \
                  answered EINVAL"),
    row(280, "utimensat", &[dirfd("dirfd"), path("path"), read("times", TWO_TIMESPECS), flags("flags", &AT)]),
    row(285, "fallocate", &[fd("fd"), flags("mode", &FALLOC), long("offset"), long("len")])
        .changes(0),
    row(292, "dup3", &[fd("old"), fd("new"), flags("flags", &OPEN)]),
    row(293, "pipe2", &[wrote("fds", INT_PAIR), flags("flags", &OPEN_BITS)]),
    row(295, "preadv", &[fd("fd"), iov_out("iov", 2), uint("iovcnt"), long("pos_l"), long("pos_h")])
        .waits()
        .reads(Reads::At(3)),
    row(296, "pwritev", &[fd("fd"), iov_in("iov", 2), uint("iovcnt"), long("pos_l"), long("pos_h")])
        .waits()
        .changes(0)
        .sends(),
    row(
        303,
        "name_to_handle_at",
        &[
            dirfd("dirfd"),
            path("path"),
            hex("handle"),
            wrote_when("mount_id", INT, When::SuccessOr(Errno::EOVERFLOW)),
            flags("flags", &AT),
        ],
    )
    .hand(Hand::NameToHandle),
    row(304, "open_by_handle_at", &[dirfd("mount_fd"), hex("handle"), flags("flags", &OPEN)])
        .opens(Opens::Flags(2)),
    row(306, "syncfs", &[fd("fd")]),
    row(
        316,
        "renameat2",
        &[dirfd("olddirfd"), path("old"), dirfd("newdirfd"), path("new"), flags("flags", &RENAME)],
    ),
    row(319, "memfd_create", &[text("name"), flags("flags", &MEMFD)]).opens(Opens::Always(O_RDWR)),
    row(
        326,
        "copy_file_range",
        &[
            fd("in"),
            both_when("off_in", LOFF, When::Positive),
            fd("out"),
            both_when("off_out", LOFF, When::Positive),
            uint("len"),
            hex("flags"),
        ],
    )
    .waits()
    .changes(2)
    .partial(UNSEEN),
    row(
        327,
        "preadv2",
        &[fd("fd"), iov_out("iov", 2), uint("iovcnt"), long("pos_l"), long("pos_h"), flags("flags", &RWF)],
    )
    .waits()
    .reads(Reads::At(3)),
    row(
        328,
        "pwritev2",
        &[fd("fd"), iov_in("iov", 2), uint("iovcnt"), long("pos_l"), long("pos_h"), flags("flags", &RWF)],
    )
    .waits()
    .changes(0)
    .sends(),
    row(
        332,
        "statx",
        &[
            dirfd("dirfd"),
            path("path"),
            flags("flags", &AT),
            flags("mask", &STATX_MASK),
            wrote("statxbuf", STATX),
        ],
    )
    .inside(Good::ForAnything),
    row(436, "close_range", &[uint("first"), uint("last"), flags("flags", &CLOSE_RANGE)]),
    row(437, "openat2", &[dirfd("dirfd"), path("path"), input("how", Size::Arg(3)), uint("size")])
        .waits()
        .opens(Opens::How(2)),
    row(
        439,
        "faccessat2",
        &[dirfd("dirfd"), path("path"), flags("mode", &ACCESS), flags("flags", &AT_EACCESS)],
    )
    .inside(Good::ForAnything),
    row(
        451,
        "cachestat",
        &[fd("fd"), read("range", CACHESTAT_RANGE), wrote("cstat", CACHESTAT), hex("flags")],
    ),
    row(452, "fchmodat2", &[dirfd("dirfd"), path("path"), mode("mode"), flags("flags", &AT)]),
    row(
        463,
        "setxattrat",
        &[
            dirfd("dirfd"),
            path("path"),
            flags("flags", &AT),
            text("name"),
            input("args", Size::Arg(5)),
            uint("size"),
        ],
    ),
    row(
        464,
        "getxattrat",
        &[
            dirfd("dirfd"),
            path("path"),
            flags("flags", &AT),
            text("name"),
            input("args", Size::Arg(5)),
            uint("size"),
        ],
    )
    .hand(Hand::Getxattrat),
    row(
        465,
        "listxattrat",
        &[dirfd("dirfd"), path("path"), flags("flags", &AT), out("list", Size::Result(4)), uint("size")],
    ),
    row(466, "removexattrat", &[dirfd("dirfd"), path("path"), flags("flags", &AT), text("name")]),
    row(
        468,
        "file_getattr",
        &[dirfd("dirfd"), path("path"), out("attr", Size::Arg(3)), uint("size"), flags("flags", &AT)],
    ),
    row(
        469,
        "file_setattr",
        &[dirfd("dirfd"), path("path"), input("attr", Size::Arg(3)), uint("size"), flags("flags", &AT)],
    ),
];
