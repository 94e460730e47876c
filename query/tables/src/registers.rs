//! The SQL functions `arg` and `reg`: registers at a moment. The index does not hold them: whoever opened the recording hands in
//! what can find them. Knows nothing of how.

use std::sync::Arc;

use guest::{Moment, Registers};
use rusqlite::functions::{Context, FunctionFlags};
use rusqlite::types::ValueRef;
use rusqlite::{Connection, Error, Result};

use crate::database::Recording;

/// Finds the registers of the task that runs the instruction at a moment, with which it begins.
pub type RegistersAt = dyn Fn(Moment) -> std::result::Result<Registers, String> + Send + Sync;

/// The registers of the integer and pointer arguments of a function, in order (System V ABI, AMD64 supplement, 3.2.3).
const ARGUMENTS: [&str; 6] = ["rdi", "rsi", "rdx", "rcx", "r8", "r9"];

/// Makes the functions known on `connection`.
pub(crate) fn register(connection: &Connection, recording: &Arc<Recording>) -> Result<()> {
    let flags =
        FunctionFlags::SQLITE_UTF8 | FunctionFlags::SQLITE_DETERMINISTIC | FunctionFlags::SQLITE_INNOCUOUS;
    let here = recording.clone();
    connection.create_scalar_function(c"arg", 2, flags, move |context| {
        let ValueRef::Integer(number) = context.get_raw(1) else {
            return Err(failed("arg(entry, n): n is a number from 0 to 5".to_owned()));
        };
        let name = usize::try_from(number).ok().and_then(|number| ARGUMENTS.get(number));
        let name = name.ok_or_else(|| failed(format!("arg: {number} is not 0 to 5")))?;
        value(&here, context, name)
    })?;
    let here = recording.clone();
    connection.create_scalar_function(c"reg", 2, flags, move |context| {
        let ValueRef::Text(name) = context.get_raw(1) else {
            return Err(failed("reg(moment, name): the name is text, such as 'rax'".to_owned()));
        };
        value(&here, context, &String::from_utf8_lossy(name))
    })
}

/// What a register holds at the moment that is the first argument; NULL for none.
fn value(recording: &Recording, context: &Context<'_>, name: &str) -> Result<Option<i64>> {
    let at = Registers::NAMES.iter().position(|known| *known == name);
    let at = at.ok_or_else(|| failed(format!("reg: no register `{name}` (there are {})", known())))?;
    let moment = match context.get_raw(0) {
        ValueRef::Null => return Ok(None),
        ValueRef::Integer(moment) if moment >= 0 => Moment(moment as u64),
        _ => return Err(failed("a moment is an integer from 0 on".to_owned())),
    };
    let find = recording.registers.get().ok_or_else(|| failed("nothing can replay here".to_owned()))?;
    let registers = find(moment).map_err(failed)?;
    Ok(Some(registers.to_words()[at] as i64))
}

fn known() -> String {
    Registers::NAMES.join(", ")
}

fn failed(text: String) -> Error {
    Error::UserFunctionError(text.into())
}
