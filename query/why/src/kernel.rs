//! The kernel as a writer: which event it was, and where the program asked for it.

use guest::{EventId, GuestAddr};
use store::{QueryError, WriteRow};
use tables::{Database, describe_signal, describe_syscall};

use crate::answer::{Place, Source, Writer};
use crate::code::{self, Spot};

/// Names the event that wrote `row`; `first` is the target's first byte that it wrote.
pub(crate) fn writer(
    database: &Database,
    row: &WriteRow,
    event: EventId,
    first: GuestAddr,
) -> Result<Writer, QueryError> {
    let store = database.store();
    let place = |pc| code::innermost(database, Spot { space: row.space, moment: row.moment, pc });
    if let Some(call) = store.syscall(event)? {
        // The syscall instruction is the one that retires at the write's moment.
        let at = store.at(row.moment)?.filter(|at| at.task == row.task);
        // A file offset is that of the buffer's first byte, which is this write's where there is one buffer.
        let offset = call.offset.map(|offset| offset + (first.0 - row.addr.0));
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
        return Ok(Writer::Kernel { text, fd, path, offset, place: at.map(|at| place(at.pc)), source });
    }
    if let Some(signal) = store.signal(event)? {
        let text = format!("frame of {}", describe_signal(&signal));
        return Ok(plain(text, Some(place(signal.pc))));
    }
    let text = describe_event(database, event)?;
    Ok(plain(text, None))
}

/// A kernel write that has nothing to do with a file.
fn plain(text: String, place: Option<Place>) -> Writer {
    Writer::Kernel { text, fd: None, path: None, offset: None, place, source: None }
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
    let forked = store.spaces()?.into_iter().any(|space| space.event == event);
    Ok(if forked { "fork".to_owned() } else { format!("event {event}") })
}
