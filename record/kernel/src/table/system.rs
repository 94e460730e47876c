//! Rows: the machine: mounts, modules, quotas, security modules, probes, and numbers that were never built. Data only.

use super::build::*;
use crate::errno::Errno;
use crate::flags::*;
use crate::requests::{BPF, QUOTACTL, QUOTACTL_FD, SYSLOG};
use crate::row::{Answer, Class, Hand, Row, Size};
use crate::structs::*;

const PRIVILEGED: &str = "the program changes the machine, not only itself";

pub(super) const ROWS: &[Row] = &[
    row(103, "syslog", &[request("type"), hex("buf"), int("len")]).requests(&SYSLOG),
    row(134, "uselib", &[path("library")]).absent(),
    row(139, "sysfs", &[int("option"), hex("arg1"), hex("arg2")]).hand(Hand::Sysfs),
    row(153, "vhangup", &[]),
    row(155, "pivot_root", &[path("new_root"), path("put_old")]),
    row(156, "_sysctl", &[hex("args")]).absent(),
    row(161, "chroot", &[path("path")])
        .partial("files are kept by what is open, their names are those inside the new root"),
    row(163, "acct", &[path("filename")]),
    row(165, "mount", &[path("source"), path("target"), text("type"), hex("flags"), hex("data")]),
    row(166, "umount2", &[path("target"), hex("flags")]),
    row(167, "swapon", &[path("path"), hex("flags")]).refused(PRIVILEGED),
    row(168, "swapoff", &[path("path")]).refused(PRIVILEGED),
    row(169, "reboot", &[hex("magic"), hex("magic2"), hex("cmd"), hex("arg")]).refused(PRIVILEGED),
    row(170, "sethostname", &[input("name", Size::Arg(1)), uint("len")]),
    row(171, "setdomainname", &[input("name", Size::Arg(1)), uint("len")]),
    row(174, "create_module", &[]).absent(),
    row(175, "init_module", &[input("module", Size::Arg(1)), uint("len"), text("params")])
        .refused(PRIVILEGED),
    row(176, "delete_module", &[text("name"), hex("flags")]).refused(PRIVILEGED),
    row(177, "get_kernel_syms", &[]).absent(),
    row(178, "query_module", &[]).absent(),
    row(179, "quotactl", &[request("cmd"), path("special"), int("id"), hex("addr")]).requests(&QUOTACTL),
    row(180, "nfsservctl", &[]).absent(),
    row(181, "getpmsg", &[]).absent(),
    row(182, "putpmsg", &[]).absent(),
    row(183, "afs_syscall", &[]).absent(),
    row(184, "tuxcall", &[]).absent(),
    row(185, "security", &[]).absent(),
    row(212, "lookup_dcookie", &[]).absent(),
    row(236, "vserver", &[]).absent(),
    row(246, "kexec_load", &[hex("entry"), uint("segments"), hex("segment"), hex("flags")])
        .refused(PRIVILEGED),
    row(298, "perf_event_open", &[hex("attr"), int("pid"), int("cpu"), fd("group_fd"), hex("flags")])
        .class(Class::Answer(Answer::OpenCounter))
        .hand(Hand::CounterSize)
        .partial("counts of the kernel's own events, to be read; others answer EACCES"),
    row(313, "finit_module", &[fd("fd"), text("params"), hex("flags")]).refused(PRIVILEGED),
    row(318, "getrandom", &[out("buf", Size::Result(1)), uint("len"), flags("flags", &GETRANDOM)])
        .waits_unless(2, 1),
    row(
        320,
        "kexec_file_load",
        &[fd("kernel"), fd("initrd"), uint("cmdline_len"), text("cmdline"), hex("flags")],
    )
    .refused(PRIVILEGED),
    row(321, "bpf", &[request("cmd"), hex("attr"), uint("size")]).requests(&BPF),
    row(335, "uretprobe", &[]).emulate(Errno::ENOSYS, "only a probe's own trampoline may call it"),
    row(336, "uprobe", &[]).emulate(Errno::ENOSYS, "only a probe's own trampoline may call it"),
    row(428, "open_tree", &[dirfd("dirfd"), path("path"), hex("flags")]),
    row(429, "move_mount", &[dirfd("from"), path("from_path"), dirfd("to"), path("to_path"), hex("flags")]),
    row(430, "fsopen", &[text("fsname"), hex("flags")]),
    row(431, "fsconfig", &[fd("fd"), hex("cmd"), text("key"), hex("value"), int("aux")]),
    row(432, "fsmount", &[fd("fs_fd"), hex("flags"), hex("attr_flags")]),
    row(433, "fspick", &[dirfd("dirfd"), path("path"), hex("flags")]),
    row(
        442,
        "mount_setattr",
        &[dirfd("dirfd"), path("path"), hex("flags"), input("attr", Size::Arg(4)), uint("size")],
    ),
    row(443, "quotactl_fd", &[fd("fd"), request("cmd"), int("id"), hex("addr")]).requests(&QUOTACTL_FD),
    row(444, "landlock_create_ruleset", &[input("attr", Size::Arg(1)), uint("size"), hex("flags")]),
    row(445, "landlock_add_rule", &[fd("ruleset"), int("type"), hex("attr"), hex("flags")]),
    row(446, "landlock_restrict_self", &[fd("ruleset"), hex("flags")]),
    row(457, "statmount", &[hex("req"), out("buf", Size::Arg(2)), uint("bufsize"), hex("flags")])
        .hand(Hand::Statmount),
    row(
        458,
        "listmount",
        &[hex("req"), out("ids", Size::ResultItems(2, ULONG)), uint("count"), hex("flags")],
    ),
    row(459, "lsm_get_self_attr", &[uint("attr"), hex("ctx"), hex("size"), hex("flags")]).hand(Hand::LsmAttr),
    row(460, "lsm_set_self_attr", &[uint("attr"), input("ctx", Size::Arg(2)), uint("size"), hex("flags")]),
    row(461, "lsm_list_modules", &[hex("ids"), hex("size"), hex("flags")]).hand(Hand::LsmModules),
    row(
        467,
        "open_tree_attr",
        &[dirfd("dirfd"), path("path"), hex("flags"), input("attr", Size::Arg(4)), uint("size")],
    ),
];
