//! Programs and maps in the kernel (`bpf`): which may be loaded and described, and how long a map's keys and values are.

use std::fs;

use guest::{GuestAddr, GuestMemory};

use crate::task::Task;

const BPF: u32 = kernel::number("bpf");

/// Kinds of programs that see packets, sockets and control groups, and whose helpers cannot write a process's memory
/// (`enum bpf_prog_type`).
const HARMLESS: [u32; 22] =
    [1, 3, 4, 6, 8, 9, 10, 11, 12, 13, 14, 15, 16, 18, 19, 20, 21, 22, 23, 25, 30, 32];

/// Whether the program that `attr` describes may be loaded. What cannot be read is the kernel's to refuse.
pub(crate) fn may_load(task: &Task, attr: u64) -> bool {
    task.space.memory.read_u32(GuestAddr(attr)).map_or(true, |kind| HARMLESS.contains(&kind))
}

/// Whether a description is asked for without buffers of its own, which would be named in what it is stored to.
pub(crate) fn may_describe(task: &Task, attr: u64) -> bool {
    let memory = &task.space.memory;
    let at = |offset| GuestAddr(attr).wrapping_add(offset);
    let (Ok(len), Ok(place)) = (memory.read_u32(at(4)), memory.read_u64(at(8))) else { return true };
    memory.read_vec(GuestAddr(place), len as usize).map_or(true, |bytes| bytes.iter().all(|byte| *byte == 0))
}

/// How long what a command stores is, where only the map tells.
pub(crate) fn element(task: &Task, nr: u32, args: &[u64; 6]) -> Option<u64> {
    const LOOKUP: u64 = 1;
    const NEXT_KEY: u64 = 4;
    const LOOKUP_AND_DELETE: u64 = 21;
    /// Maps with a value for each processor (`enum bpf_map_type`).
    const PER_CPU: [u64; 4] = [5, 6, 10, 21];
    if nr != BPF {
        return None;
    }
    let name = match args[0] & 0xffff_ffff {
        LOOKUP | LOOKUP_AND_DELETE => "value_size",
        NEXT_KEY => "key_size",
        _ => return None,
    };
    let map = task.space.memory.read_u32(GuestAddr(args[1])).ok()?;
    let text = fs::read_to_string(format!("/proc/{}/fdinfo/{map}", task.host)).ok()?;
    let field = |name: &str| -> Option<u64> {
        text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?.trim().parse().ok()
    };
    let known = name == "key_size" || !PER_CPU.contains(&field("map_type")?);
    known.then(|| field(name)).flatten()
}
