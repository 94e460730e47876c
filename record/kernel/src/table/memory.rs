//! Rows: the address space. Data only.

use super::build::*;
use crate::errno::Errno;
use crate::flags::*;
use crate::inside::{Form, Good};
use crate::requests::{MADVISE, SHMCTL};
use crate::row::{Arg, Hand, Kind, MapCall, Row, Size, When};
use crate::structs::*;

pub(super) const ROWS: &[Row] = &[
    row(
        9,
        "mmap",
        &[hex("addr"), uint("length"), flags("prot", &PROT), flags("flags", &MAP), fd("fd"), hex("offset")],
    )
    .map(MapCall::Mmap)
    .inside_as(Good::ForAnything, Form::Fresh),
    row(10, "mprotect", &[hex("addr"), uint("length"), flags("prot", &PROT)])
        .map(MapCall::Mprotect)
        .inside_as(Good::ForAnything, Form::Range),
    row(11, "munmap", &[hex("addr"), uint("length")])
        .map(MapCall::Munmap)
        .inside_as(Good::ForAnything, Form::Range),
    row(12, "brk", &[hex("addr")]).map(MapCall::Brk).inside(Good::ForAnything),
    row(
        25,
        "mremap",
        &[
            hex("old_address"),
            uint("old_size"),
            uint("new_size"),
            flags("flags", &MREMAP),
            hex("new_address"),
        ],
    )
    .map(MapCall::Mremap),
    row(26, "msync", &[hex("addr"), uint("length"), flags("flags", &MSYNC)]),
    row(27, "mincore", &[hex("addr"), uint("length"), MINCORE]),
    row(28, "madvise", &[hex("addr"), uint("length"), request("advice")]).requests(&MADVISE),
    row(29, "shmget", &[hex("key"), uint("size"), flags("flags", &IPC_GET)]),
    row(30, "shmat", &[int("id"), hex("addr"), flags("flags", &SHM_AT)]).map(MapCall::Shmat),
    row(31, "shmctl", &[int("id"), request("cmd"), hex("buf")]).requests(&SHMCTL),
    row(67, "shmdt", &[hex("addr")]).map(MapCall::Shmdt),
    row(149, "mlock", &[hex("addr"), uint("length")]),
    row(150, "munlock", &[hex("addr"), uint("length")]),
    row(151, "mlockall", &[flags("flags", &MLOCKALL)]),
    row(152, "munlockall", &[]),
    row(
        216,
        "remap_file_pages",
        &[hex("addr"), uint("size"), flags("prot", &PROT), uint("pgoff"), flags("flags", &MAP)],
    )
    .refused("nonlinear mappings are not modelled"),
    row(
        237,
        "mbind",
        &[hex("addr"), uint("length"), int("mode"), hex("nodemask"), uint("maxnode"), hex("flags")],
    ),
    row(238, "set_mempolicy", &[int("mode"), hex("nodemask"), uint("maxnode")]),
    row(
        239,
        "get_mempolicy",
        &[wrote("mode", INT), hex("nodemask"), uint("maxnode"), hex("addr"), hex("flags")],
    )
    .hand(Hand::GetMempolicy),
    row(256, "migrate_pages", &[int("pid"), uint("maxnode"), hex("old_nodes"), hex("new_nodes")]),
    row(
        279,
        "move_pages",
        &[
            int("pid"),
            uint("count"),
            input("pages", Size::Items(1, POINTER)),
            input("nodes", Size::Items(1, INT)),
            MOVED,
            hex("flags"),
        ],
    ),
    row(325, "mlock2", &[hex("addr"), uint("length"), hex("flags")]),
    row(329, "pkey_mprotect", &[hex("addr"), uint("length"), flags("prot", &PROT), int("pkey")])
        .map(MapCall::Mprotect),
    row(330, "pkey_alloc", &[hex("flags"), hex("access_rights")])
        .emulate(Errno::ENOSPC, "protection keys are not recorded: there is never a free one"),
    row(331, "pkey_free", &[int("pkey")]),
    row(440, "process_madvise", &[fd("pidfd"), iov_in("iov", 2), uint("count"), int("advice"), hex("flags")])
        .emulate(Errno::ENOSYS, "advice for another process could drop its memory unseen"),
    row(447, "memfd_secret", &[hex("flags")]).emulate(Errno::ENOSYS, "a tracer cannot read such memory"),
    row(448, "process_mrelease", &[fd("pidfd"), hex("flags")]),
    row(450, "set_mempolicy_home_node", &[hex("start"), uint("length"), uint("home_node"), hex("flags")]),
    row(453, "map_shadow_stack", &[hex("addr"), uint("size"), hex("flags")])
        .emulate(Errno::ENOSYS, "the processor's own stack is not recorded"),
    row(462, "mseal", &[hex("addr"), uint("length"), hex("flags")]),
];

/// Filled as far as the kernel came, even where it then fails.
const MINCORE: Arg = Arg { name: "vec", kind: Kind::Out(Size::Pages(1), When::Always) };
/// Likewise.
const MOVED: Arg = Arg { name: "status", kind: Kind::Out(Size::Items(1, INT), When::Always) };
