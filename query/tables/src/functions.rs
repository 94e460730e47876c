//! The SQL functions `hex`, `sym`, `line`, and `call_text` and `signal_name`, which the views use.

use std::sync::Arc;

use guest::{GuestAddr, Moment, SpaceId};
use rusqlite::functions::{Context, FunctionFlags};
use rusqlite::types::ValueRef;
use rusqlite::{Connection, Result};

use crate::database::Recording;

/// Makes the functions known on `connection`.
pub(crate) fn register(connection: &Connection, recording: &Arc<Recording>) -> Result<()> {
    let pure =
        FunctionFlags::SQLITE_UTF8 | FunctionFlags::SQLITE_DETERMINISTIC | FunctionFlags::SQLITE_INNOCUOUS;
    connection.create_scalar_function(c"hex", 1, pure, |context| Ok(hex(context.get_raw(0))))?;
    connection.create_scalar_function(c"call_text", 8, pure, |context| call_text(context))?;
    connection.create_scalar_function(c"signal_name", 1, pure, |context| {
        Ok(context.get::<Option<i32>>(0)?.map(crate::syscall::signal_name))
    })?;
    for arguments in 1..=3 {
        let here = recording.clone();
        connection.create_scalar_function(c"sym", arguments, pure, move |context| {
            let found = place(&here, context)?;
            Ok(found.map(|(space, moment, pc)| here.symbols.name(space, moment, pc)))
        })?;
        let here = recording.clone();
        connection.create_scalar_function(c"line", arguments, pure, move |context| {
            let found = place(&here, context)?;
            Ok(found.and_then(|(space, moment, pc)| here.symbols.line(space, moment, pc)))
        })?;
    }
    Ok(())
}

/// `0x..` for an integer; SQLite's own `hex` for the rest.
fn hex(value: ValueRef<'_>) -> String {
    let bytes = match value {
        ValueRef::Integer(n) => return format!("{:#x}", n as u64),
        ValueRef::Null => return String::new(),
        ValueRef::Real(f) => f.to_string().into_bytes(),
        ValueRef::Text(bytes) | ValueRef::Blob(bytes) => bytes.to_vec(),
    };
    bytes.iter().map(|byte| format!("{byte:02X}")).collect()
}

/// `(pc [, moment [, space]])`. Without a space, the one that runs at the moment; without a moment, wherever a file is mapped
/// at the pc.
fn place(recording: &Recording, context: &Context<'_>) -> Result<Option<(SpaceId, Moment, GuestAddr)>> {
    let number = |index| {
        let what = "sym and line (pc [, moment [, space]]) take numbers";
        context.get::<Option<i64>>(index).map_err(|_| rusqlite::Error::UserFunctionError(what.into()))
    };
    let Some(pc) = number(0)?.map(|n| GuestAddr(n as u64)) else { return Ok(None) };
    let moment = if context.len() > 1 { number(1)?.map(|n| Moment(n as u64)) } else { None };
    let space =
        if context.len() > 2 { number(2)?.and_then(|n| u32::try_from(n).ok()).map(SpaceId) } else { None };
    let anywhere = || recording.symbols.layout().anywhere(pc).map(|m| (m.space, m.from, pc));
    let found = match (moment, space) {
        (Some(moment), Some(space)) => Some((space, moment, pc)),
        (Some(moment), None) => {
            let space = recording.store.space_at(moment).map_err(|e| recording.failure(e))?;
            space.map(|space| (space, moment, pc)).or_else(anywhere)
        }
        (None, _) => anywhere(),
    };
    Ok(Some(found.unwrap_or((SpaceId(0), Moment(0), pc))))
}

/// `(nr, a0, .. a5, result)` as people read a call.
fn call_text(context: &Context<'_>) -> Result<String> {
    let number = |index| context.get::<Option<i64>>(index);
    let nr = u32::try_from(number(0)?.unwrap_or(-1)).unwrap_or(u32::MAX);
    let mut args = [0; 6];
    for (index, arg) in args.iter_mut().enumerate() {
        *arg = number(index + 1)?.unwrap_or(0) as u64;
    }
    Ok(kernel::format_call(nr, &args, number(7)?, None))
}
