//! `/proc/PID/status` of recorded tasks, as it would be without a recorder: read for the guest, and told anew where it tells of us.

use std::fs::{self, File, Metadata};
use std::io::{Seek, SeekFrom};
use std::os::unix::fs::{FileExt, MetadataExt};

use guest::GuestRange;
use kernel::{Call, Errno, FilePlace};
use ptrace::HostTid;

use crate::session::Core;
use crate::shared::identity;
use crate::task::Task;
use crate::{answer, buffer, procfs, ptracing};

const PREADV2: u32 = kernel::number("preadv2");

/// The result of a read of such a file, which is not made; what it writes is promised. `None` for any other call, or where the read
/// fails: it is to be made.
pub(crate) fn read(core: &mut Core, task: &mut Task, call: &Call) -> Option<i64> {
    let place = kernel::reads_file(call).filter(|_| call.nr != PREADV2 || call.args[5] == 0)?;
    if buffer::is_plain(task, place.fd as u32) {
        return None;
    }
    let owner = owner(task, place.fd)?;
    let mut file = open_file(core, task, place.fd)?;
    let text = contents(&file)?;
    let text = Seen::of(core, task, shown(core, task, owner, &text)?, &text).tell(&text)?;
    let offset = match place.offset {
        Some(offset) => i64::try_from(offset).ok()? as u64,
        None => file.stream_position().ok()?,
    };
    let rest = usize::try_from(offset).ok().and_then(|offset| text.as_bytes().get(offset..)).unwrap_or(&[]);
    let result = if rest.is_empty() { 0 } else { put(task, call, rest)? };
    if let (FilePlace { offset: None, .. }, Ok(read)) = (place, u64::try_from(result)) {
        file.seek(SeekFrom::Start(offset + read)).ok()?;
    }
    Some(result)
}

/// Whose status a descriptor shows, by the name of the file.
fn owner(task: &Task, fd: i32) -> Option<i32> {
    procfs::link(task.host, &format!("fd/{fd}")).strip_suffix("/status")?.rsplit('/').next()?.parse().ok()
}

/// The recorded task that is known by this id, in the reader's namespace or, where `/proc` is still an outer one's, in ours.
fn shown(core: &Core, task: &Task, owner: i32, text: &str) -> Option<HostTid> {
    let ids = procfs::ids_in(text);
    let known = [core.named(task.host, owner), Some(HostTid(owner))].into_iter().flatten();
    known.filter(|tid| core.sandbox(*tid).is_some()).find(|tid| procfs::ids(*tid).ends_with(&ids))
}

/// That descriptor as a file of ours, which has its offset.
fn open_file(core: &mut Core, task: &Task, fd: i32) -> Option<File> {
    // `/proc` has no device behind it, and its files no length.
    let of_proc = |meta: &Metadata| meta.is_file() && meta.len() == 0 && meta.dev() >> 8 == 0;
    let file = core.looking.borrowed(task.process, fd).ok()?;
    let meta = file.metadata().ok().filter(of_proc)?;
    // The thread may have descriptors of its own.
    let own = fs::metadata(format!("/proc/{}/fd/{fd}", task.host)).ok()?;
    (identity(&own) == identity(&meta)).then_some(file)
}

/// All that a file holds, its offset left as it is.
fn contents(file: &File) -> Option<String> {
    const ROOM: usize = 8192;
    let mut bytes = vec![0; ROOM];
    let mut len = 0;
    loop {
        bytes.resize(len + ROOM, 0);
        match file.read_at(&mut bytes[len..], len as u64).ok()? {
            0 => break,
            read => len += read,
        }
    }
    bytes.truncate(len);
    Some(String::from_utf8_lossy(&bytes).into_owned())
}

/// Promises as many bytes as the call has room for.
fn put(task: &mut Task, call: &Call, bytes: &[u8]) -> Option<i64> {
    let all = call.clone().returned(bytes.len() as i64);
    let ranges = kernel::effects(&all, &task.space.memory).ok()?;
    // No room, or none that the kernel would take.
    if ranges.iter().all(|range| range.is_empty()) {
        return None;
    }
    let mut done = 0;
    for GuestRange { start, end } in ranges {
        let len = (end.0 - start.0) as usize;
        let answered = answer::promise(task, start.0, &bytes[done..done + len], 0);
        if answered != 0 {
            return Some(if done == 0 { Errno::EFAULT.as_result() } else { done as i64 });
        }
        done += len;
    }
    Some(done as i64)
}

/// What a status has that would be otherwise without a recorder.
struct Seen {
    /// 0 where there is none.
    tracer: i32,
    /// Whether that one holds the task.
    held: bool,
    mode: i64,
    filters: usize,
    no_new_privs: bool,
}

impl Seen {
    fn of(core: &Core, reader: &Task, shown: HostTid, text: &str) -> Self {
        let traced = match shown == reader.host {
            true => ptracing::tracer(reader),
            false => core.tracing.tracer_of(shown),
        };
        // The namespace of this `/proc`: the text has its ids and the inner ones'.
        let depth = procfs::ids(shown).len().saturating_sub(procfs::ids_in(text).len());
        let seen = |tracer| procfs::ids(tracer).get(depth).copied().unwrap_or(0);
        let (tracer, held) = traced.map_or((0, false), |(tracer, held)| (seen(tracer), held));
        let sandbox = core.sandbox(shown).unwrap_or(&reader.sandbox);
        let (mode, filters) = (sandbox.mode(), sandbox.filter_count());
        Self { tracer, held, mode, filters, no_new_privs: sandbox.no_new_privs() }
    }

    /// The text told anew; `None` if it is no status.
    fn tell(&self, text: &str) -> Option<String> {
        text.starts_with("Name:").then(|| text.split_inclusive('\n').map(|line| self.line(line)).collect())
    }

    fn line(&self, line: &str) -> String {
        let told = match line.split_once(":\t") {
            // It stands in a stop of ours, unless in its tracer's.
            Some(("State", state)) if state.starts_with('t') && !self.held => "R (running)".into(),
            Some(("TracerPid", _)) => self.tracer.to_string(),
            Some(("NoNewPrivs", _)) => u8::from(self.no_new_privs).to_string(),
            Some(("Seccomp", _)) => self.mode.to_string(),
            Some(("Seccomp_filters", _)) => self.filters.to_string(),
            _ => return line.into(),
        };
        let (name, _) = line.split_once(':').unwrap_or_default();
        format!("{name}:\t{told}\n")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "Name:\ta\nState:\tt (tracing stop)\nTracerPid:\t77\nSigBlk:\t0\nNoNewPrivs:\t1\n\
                        Seccomp:\t2\nSeccomp_filters:\t3\nThreads:\t1\n";

    #[test]
    fn nothing_of_the_recorder_is_told() {
        let alone = Seen { tracer: 0, held: false, mode: 0, filters: 0, no_new_privs: false };
        let told = "Name:\ta\nState:\tR (running)\nTracerPid:\t0\nSigBlk:\t0\nNoNewPrivs:\t0\n\
                    Seccomp:\t0\nSeccomp_filters:\t0\nThreads:\t1\n";
        assert_eq!(alone.tell(TEXT).unwrap(), told);
        assert_eq!(alone.tell("no status"), None);
    }

    #[test]
    fn what_is_the_guests_own_is_told() {
        let traced = Seen { tracer: 9, held: true, mode: 2, filters: 1, no_new_privs: true };
        let told = TEXT.replace("77", "9").replace("filters:\t3", "filters:\t1");
        assert_eq!(traced.tell(TEXT).unwrap(), told);
    }
}
