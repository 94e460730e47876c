//! The table's oracle: all writable memory before and after a system call, and what changed that the table does not tell.

use guest::{GuestAddr, GuestRange, PAGE_SIZE};
use trace::MapOp;

use crate::procfs;
use crate::scratch;
use crate::task::Task;

/// The contents of a task's writable private memory.
#[derive(Debug)]
pub(crate) struct Snapshot {
    areas: Vec<(GuestRange, Vec<u8>)>,
}

impl Snapshot {
    /// Reads everything that the task could see change.
    pub(crate) fn take(task: &Task) -> Self {
        let maps = procfs::maps(task.host).unwrap_or_default();
        let writable =
            maps.into_iter().filter(|mapping| mapping.prot.write && !scratch::is_ours(task, mapping.range));
        let mut areas = Vec::new();
        for mapping in writable {
            let pages = if mapping.shared {
                vec![mapping.range]
            } else {
                procfs::own_pages(task.host, mapping.range).unwrap_or_default()
            };
            for range in pages {
                let mut bytes = vec![0; range.len() as usize];
                let read = task.space.memory.read_forced(range.start, &mut bytes);
                bytes.truncate(read);
                areas.push((GuestRange::new(range.start, read as u64), bytes));
            }
        }
        Self { areas }
    }

    /// What differs now outside `explained` and outside memory that was mapped anew. A line for each range.
    pub(crate) fn unexplained(&self, task: &Task, explained: &[GuestRange], maps: &[MapOp]) -> Vec<String> {
        let remapped: Vec<GuestRange> = maps.iter().flat_map(touched).collect();
        let mut lines = Vec::new();
        for (range, old) in &self.areas {
            let mut new = vec![0; old.len()];
            let read = task.space.memory.read_forced(range.start, &mut new);
            let mut from = None;
            for at in 0..=read {
                let addr = range.start.wrapping_add(at as u64);
                let differs = at < read
                    && old[at] != new[at]
                    && !explained.iter().chain(&remapped).any(|range| range.contains(addr));
                match (differs, from) {
                    (true, None) => from = Some(addr),
                    (false, Some(start)) => {
                        lines.push(describe(start, addr));
                        from = None;
                    }
                    _ => {}
                }
            }
        }
        lines
    }
}

fn describe(start: GuestAddr, end: GuestAddr) -> String {
    format!("changed {start}..{end} (page offset {:#x})", start.0 % PAGE_SIZE)
}

fn touched(op: &MapOp) -> Vec<GuestRange> {
    match op {
        // Code is not writable.
        MapOp::UnmapAll | MapOp::Protect { .. } | MapOp::Rewrite { .. } => Vec::new(),
        MapOp::Map { range, .. } | MapOp::Unmap { range } | MapOp::Discard { range } => vec![*range],
        MapOp::Remap { from, to, .. } => vec![*from, *to],
    }
}
