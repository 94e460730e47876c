//! The kernel as a writer: which event it was, and where the program asked for it.

use guest::{EventId, GuestAddr, GuestRange, Moment, TaskId};
use store::{QueryError, SyscallRow, WriteRow};
use tables::{Database, describe_signal, describe_syscall};
use trace::{Event, Fact, SpawnInfo};

use crate::answer::{Place, Source, StackFrame, Writer};
use crate::code::{self, Spot};
use crate::stack;

/// Linux `include/uapi/linux/sched.h`.
const CLONE_PIDFD: u64 = 0x1000;
/// Bit of a robust futex that the kernel sets when its owner dies (`include/uapi/linux/futex.h`).
const FUTEX_OWNER_DIED: u32 = 0x4000_0000;

/// Names the event that wrote `row`, and the calls in progress where the program asked for it; `first` is the target's first
/// byte that it wrote.
pub(crate) fn writer(
    database: &Database,
    row: &WriteRow,
    event: EventId,
    first: GuestAddr,
) -> Result<(Writer, Vec<StackFrame>), QueryError> {
    let store = database.store();
    if let Some(call) = store.syscall(event)? {
        // The syscall instruction is the one that retires at the write's moment.
        let (place, stack) = asked_from(database, row.moment, row.task)?;
        return Ok((by_call(database, row, call, (event, first), place)?, stack));
    }
    if let Some(signal) = store.signal(event)? {
        let text = format!("frame of {}", describe_signal(&signal));
        let spot = Spot { space: row.space, moment: row.moment, pc: signal.pc };
        let place = code::innermost(database, spot);
        return Ok((plain(text, Some(place)), stack::interrupted(database, spot)?));
    }
    match database.trace().event(event).ok() {
        // The program that asked for it is gone, and the new one has not run yet.
        Some(Event { fact: Fact::Exec(info), .. }) => Ok((
            plain(format!("exec of {}{}", info.exe, put_by_exec(database, row, first)?), None),
            Vec::new(),
        )),
        Some(Event { fact: Fact::Exit(_), task, .. }) => {
            let what = match word(database, row)? {
                Some(word) if word & FUTEX_OWNER_DIED != 0 => "marks a robust mutex that it held",
                _ => "clears its thread id for those who wait (set_tid_address, CLONE_CHILD_CLEARTID)",
            };
            Ok((plain(format!("exit of task {task}, which {what}"), None), Vec::new()))
        }
        Some(Event { fact: Fact::Spawn(info), task, .. }) => {
            let (place, stack) = asked_from(database, row.moment, task)?;
            Ok((plain(put_by_spawn(&info, row), place), stack))
        }
        Some(Event { fact: Fact::Traced(info), .. }) => {
            // `ptrace` does it before it returns; what else writes the memory of others has returned.
            let call = match info.request {
                Some(_) => store.call_behind(event, info.tracer)?,
                None => store.call_before(event, info.tracer)?,
            };
            let Some(call) = call else {
                return Ok((plain(describe_event(database, event)?, None), Vec::new()));
            };
            let text = format!("{} by task {}", describe_syscall(&call), call.task);
            let (place, stack) = asked_from(database, call.moment, call.task)?;
            Ok((plain(text, place), stack))
        }
        _ => Ok((plain(describe_event(database, event)?, None), Vec::new())),
    }
}

/// The instruction by which a task asked for a call at a moment, and the calls in progress there.
fn asked_from(
    database: &Database,
    moment: Moment,
    task: TaskId,
) -> Result<(Option<Place>, Vec<StackFrame>), QueryError> {
    let Some(at) = database.store().at(moment)?.filter(|at| at.task == task) else {
        return Ok((None, Vec::new()));
    };
    let spot = Spot { space: at.space, moment, pc: at.pc };
    Ok((Some(code::innermost(database, spot)), stack::frames(database, spot)?))
}

fn by_call(
    database: &Database,
    row: &WriteRow,
    call: SyscallRow,
    (event, first): (EventId, GuestAddr),
    place: Option<Place>,
) -> Result<Writer, QueryError> {
    let offset = call.offset.map(|offset| offset + before(database, row, event, first));
    let source = match (&call.path, offset) {
        (Some(path), Some(offset)) => database.file_writer(path, offset, row.moment)?,
        _ => None,
    };
    let source = source.map(|(call, addr)| Source {
        moment: call.moment.0,
        text: describe_syscall(&call),
        addr: addr.to_string(),
    });
    let (text, fd, path) = (describe_syscall(&call), call.fd, call.path);
    Ok(Writer::Kernel { text, fd, path, offset, place, source })
}

/// How many bytes of a call's event come before the one at `first`: a call that fills several buffers fills one after the other.
fn before(database: &Database, row: &WriteRow, event: EventId, first: GuestAddr) -> u64 {
    let mut before = 0;
    for write in database.trace().event(event).map(|event| event.writes).unwrap_or_default() {
        let range = GuestRange::new(write.addr, write.data.len() as u64);
        if range.contains(first) {
            return before + (first.0 - range.start.0);
        }
        before += range.len();
    }
    // Where the trace does not have it, there is this buffer.
    first.0 - row.addr.0
}

/// A kernel write that has nothing to do with a file.
fn plain(text: String, place: Option<Place>) -> Writer {
    Writer::Kernel { text, fd: None, path: None, offset: None, place, source: None }
}

/// What an exec put at `first`, by what is mapped there.
fn put_by_exec(database: &Database, row: &WriteRow, first: GuestAddr) -> Result<String, QueryError> {
    let mapping = database.store().mapping_at(row.space, first, Moment(row.moment.0.saturating_add(1)))?;
    let Some(mapping) = mapping else { return Ok(String::new()) };
    if let Some((file, offset)) = mapping.file {
        let files = database.symbols().files();
        let path =
            files.get(file as usize).map_or_else(String::new, |kept| kept.original.display().to_string());
        let offset = offset + (first.0 - mapping.range.start.0);
        return Ok(format!(
            ", which loaded {path} from offset {offset:#x} and cleared what the file does not fill (.bss)"
        ));
    }
    Ok(match mapping.name.as_str() {
        "[stack]" => ", which put arguments, environment and auxiliary vector there".to_owned(),
        _ => String::new(),
    })
}

/// What the birth of a task put where `row` is.
fn put_by_spawn(info: &SpawnInfo, row: &WriteRow) -> String {
    let childs = info.writes.iter().any(|write| write.addr == row.addr);
    let what = match childs {
        true => "its thread id for itself (CLONE_CHILD_SETTID)",
        false if info.flags & CLONE_PIDFD != 0 => "its descriptor or thread id for its maker (CLONE_PIDFD)",
        false => "its thread id for its maker (CLONE_PARENT_SETTID)",
    };
    format!("birth of task {} (tid {}): {what}", info.child, info.tid)
}

/// The four bytes written.
fn word(database: &Database, row: &WriteRow) -> Result<Option<u32>, QueryError> {
    let value = database.store().value(row)?;
    Ok(value.first_chunk().map(|bytes| u32::from_le_bytes(*bytes)).filter(|_| value.len() == 4))
}

/// What an event did, in a few words.
pub(crate) fn describe_event(database: &Database, event: EventId) -> Result<String, QueryError> {
    let store = database.store();
    if let Some(call) = store.syscall(event)? {
        return Ok(describe_syscall(&call));
    }
    if let Some(image) = store.images()?.into_iter().find(|image| image.event == event) {
        return Ok(format!("exec of {}", image.exe));
    }
    if let Some(signal) = store.signal(event)? {
        return Ok(describe_signal(&signal));
    }
    if store.spaces()?.into_iter().any(|space| space.event == event) {
        return Ok("fork".to_owned());
    }
    let name = database.trace().event(event).ok().map(|event| event.fact.name());
    Ok(name.map_or_else(|| format!("event {event}"), |name| format!("event {event}, {name}")))
}
