//! `bpf` by command (bpf(2), linux/bpf.h). Data only.

use super::{Key, Request, Requests, UnknownRequest, request as req};
use crate::errno::Errno;
use crate::row::{Answer, Arg, Class, Hand};
use crate::table::build::*;

/// `bpf(cmd, attr, size)`.
pub(crate) static BPF: Requests =
    Requests { call: "bpf", key: Key::Arg(0), rest: 1, rows: &[ROWS], unknown: UnknownRequest::Fails };

const ATTR: &[Arg] = &[hex("attr"), uint("size")];

const WHY: &str = "it could write this program's memory, or fills buffers of its own";

const fn no(value: u64, name: &'static str) -> Request {
    req(value, name, ATTR).emulate(Errno::EPERM, WHY)
}

const ROWS: &[Request] = &[
    req(0, "BPF_MAP_CREATE", ATTR),
    req(1, "BPF_MAP_LOOKUP_ELEM", ATTR)
        .hand(Hand::BpfElement)
        .partial("not of maps with a value for each processor"),
    req(2, "BPF_MAP_UPDATE_ELEM", ATTR),
    req(3, "BPF_MAP_DELETE_ELEM", ATTR),
    req(4, "BPF_MAP_GET_NEXT_KEY", ATTR).hand(Hand::BpfElement),
    req(5, "BPF_PROG_LOAD", ATTR).class(Class::Answer(Answer::LoadProgram)).hand(Hand::BpfLog).partial(
        "only programs that see packets and sockets; others, which could write memory, answer EPERM",
    ),
    req(6, "BPF_OBJ_PIN", ATTR),
    req(7, "BPF_OBJ_GET", ATTR),
    req(8, "BPF_PROG_ATTACH", ATTR),
    req(9, "BPF_PROG_DETACH", ATTR),
    no(10, "BPF_PROG_TEST_RUN"),
    req(11, "BPF_PROG_GET_NEXT_ID", ATTR).hand(Hand::BpfNextId),
    req(12, "BPF_MAP_GET_NEXT_ID", ATTR).hand(Hand::BpfNextId),
    req(13, "BPF_PROG_GET_FD_BY_ID", ATTR),
    req(14, "BPF_MAP_GET_FD_BY_ID", ATTR),
    req(15, "BPF_OBJ_GET_INFO_BY_FD", ATTR)
        .class(Class::Answer(Answer::DescribeProgram))
        .hand(Hand::BpfInfo)
        .partial("only what has no buffers of its own; else EPERM"),
    req(16, "BPF_PROG_QUERY", ATTR).hand(Hand::BpfQuery),
    no(17, "BPF_RAW_TRACEPOINT_OPEN"),
    no(18, "BPF_BTF_LOAD"),
    req(19, "BPF_BTF_GET_FD_BY_ID", ATTR),
    no(20, "BPF_TASK_FD_QUERY"),
    req(21, "BPF_MAP_LOOKUP_AND_DELETE_ELEM", ATTR)
        .hand(Hand::BpfElement)
        .partial("not of maps with a value for each processor"),
    req(22, "BPF_MAP_FREEZE", ATTR),
    req(23, "BPF_BTF_GET_NEXT_ID", ATTR).hand(Hand::BpfNextId),
    no(24, "BPF_MAP_LOOKUP_BATCH"),
    no(25, "BPF_MAP_LOOKUP_AND_DELETE_BATCH"),
    no(26, "BPF_MAP_UPDATE_BATCH"),
    no(27, "BPF_MAP_DELETE_BATCH"),
    req(28, "BPF_LINK_CREATE", ATTR),
    req(29, "BPF_LINK_UPDATE", ATTR),
    req(30, "BPF_LINK_GET_FD_BY_ID", ATTR),
    req(31, "BPF_LINK_GET_NEXT_ID", ATTR).hand(Hand::BpfNextId),
    req(32, "BPF_ENABLE_STATS", ATTR),
    no(33, "BPF_ITER_CREATE"),
    req(34, "BPF_LINK_DETACH", ATTR),
    req(35, "BPF_PROG_BIND_MAP", ATTR),
    no(36, "BPF_TOKEN_CREATE"),
    no(37, "BPF_PROG_STREAM_READ_BY_FD"),
];
