//! The call stack at a write, from the calls in progress: inlined functions get frames of their own, and so do functions that
//! jumped away (tail calls), which no walk over the stack's memory can see. Ends where the program went over to another stack.

use guest::{GuestAddr, GuestRange, Moment};
use store::{CallKind, CallRow, ExecutionQuery, ExecutionRow, Order, QueryError};
use tables::Database;

use crate::answer::StackFrame;
use crate::code::{self, Spot};

/// How many jumps from function to function are followed in one frame.
const MAX_TAILS: usize = 8;

/// How many instructions a function that switches stacks may have: such functions are short.
const MAX_SWITCH: usize = 64;

/// How many nested calls are skipped in search of one jump.
const MAX_SKIPS: usize = 16;

/// The frames at `spot`, innermost first.
pub(crate) fn frames(database: &Database, spot: Spot) -> Result<Vec<StackFrame>, QueryError> {
    of_calls(database, spot, &database.store().stack_at(spot.moment)?)
}

/// The frames at `spot`, where a signal struck whose handler is the next to run; none where something else runs before it.
pub(crate) fn interrupted(database: &Database, spot: Spot) -> Result<Vec<StackFrame>, QueryError> {
    let calls = database.store().stack_at(spot.moment)?;
    let handler =
        |call: &CallRow| call.kind == CallKind::Signal && call.entry == spot.moment && call.site == spot.pc;
    match calls.iter().position(handler) {
        Some(at) => of_calls(database, spot, &calls[at + 1..]),
        None => Ok(Vec::new()),
    }
}

fn of_calls(database: &Database, spot: Spot, calls: &[CallRow]) -> Result<Vec<StackFrame>, QueryError> {
    let mut out = Vec::new();
    let mut pc = spot.pc;
    for (at, call) in calls.iter().enumerate() {
        let outer = out.len();
        activation(database, Spot { pc, ..spot }, Some(call), &mut out)?;
        if out.last().is_some_and(|frame| frame.switched.is_some()) {
            if let Some(calls) = unwound(database, Spot { pc, ..spot }, &calls[at..]) {
                out.truncate(outer);
                out.extend(of_calls(database, Spot { pc, ..spot }, calls)?);
            }
            return Ok(out);
        }
        if call.kind == CallKind::Signal {
            out.push(StackFrame { signal: true, ..StackFrame::default() });
        }
        pc = call.site;
    }
    if pc.0 != 0 {
        activation(database, Spot { pc, ..spot }, None, &mut out)?;
    }
    Ok(out)
}

/// The calls that are left of `calls`, the innermost of which is `longjmp`'s, where it went to the function that runs at `spot`; `None`
/// where that is not the one of just one of them. No call or return has shown yet that the others were left.
fn unwound<'a>(database: &Database, spot: Spot, calls: &'a [CallRow]) -> Option<&'a [CallRow]> {
    let callee = database.symbols().function(spot.space, spot.moment, calls.first()?.callee);
    let made_here = |call: &CallRow| same_function(database, spot, call.site, spot.pc);
    let mut made = calls.iter().enumerate().filter(|(_, call)| made_here(call));
    let (at, _) = made.next().filter(|_| callee.contains("longjmp"))?;
    made.next().is_none().then_some(&calls[at + 1..])
}

/// Appends the frames of one activation: inlined ones, the function, and who jumped to it.
fn activation(
    database: &Database,
    spot: Spot,
    call: Option<&CallRow>,
    out: &mut Vec<StackFrame>,
) -> Result<(), QueryError> {
    let tails = match call {
        Some(call) => tail_callers(database, spot, call)?,
        None => Tails::default(),
    };
    let entered = call.map(|call| call.entry.0);
    let first = out.len();
    push(database, spot, None, out);
    if let Some(last) = out.last_mut() {
        if last.place.function.is_none() {
            last.place.function = match (&tails.stub, call) {
                (Some(name), _) => Some(name.clone()),
                (None, Some(call)) if tails.frames.is_empty() => linked_name(database, spot, call)?,
                _ => None,
            };
        }
        last.entered = entered.filter(|_| tails.frames.is_empty());
    }
    for at in tails.frames.iter().rev() {
        push(database, Spot { pc: at.pc, ..spot }, Some(at.moment), out);
    }
    if let Some(last) = out[first..].last_mut() {
        last.entered = entered.filter(|_| tails.switched.is_none());
        last.switched = tails.switched.map(|moment| moment.0);
    }
    Ok(())
}

/// Appends the inlined frames at a spot and the function's own.
fn push(database: &Database, spot: Spot, jumped: Option<Moment>, out: &mut Vec<StackFrame>) {
    for frame in database.symbols().quick_frames(spot.space, spot.moment, spot.pc) {
        out.push(StackFrame {
            place: code::place(database, spot, &frame),
            inlined: frame.inlined,
            jumped: jumped.map(|moment| moment.0),
            ..StackFrame::default()
        });
    }
}

/// The name of the function called, by the linkage stub that the call went through: for libraries without symbols.
fn linked_name(database: &Database, spot: Spot, call: &CallRow) -> Result<Option<String>, QueryError> {
    if call.kind == CallKind::Signal || !same_function(database, spot, call.callee, spot.pc) {
        return Ok(None);
    }
    let site = Spot { pc: call.site, ..spot };
    let target = code::instruction(database, site)?.as_ref().and_then(code::direct_target);
    Ok(target.and_then(|stub| database.symbols().stub_target(spot.space, spot.moment, stub)))
}

/// The jumps by which an activation went from the function called to the one that runs.
#[derive(Default)]
struct Tails {
    /// The jump instructions, in the order they ran.
    frames: Vec<ExecutionRow>,
    /// The name of the linkage stub behind the last.
    stub: Option<String>,
    /// When one of them, which then have nothing to do with the frame, went over to another stack.
    switched: Option<Moment>,
}

/// Finds the functions that were entered by `call` and jumped on until `spot`.
fn tail_callers(database: &Database, spot: Spot, call: &CallRow) -> Result<Tails, QueryError> {
    let mut tails = Tails::default();
    let symbols = database.symbols();
    let range_of = |pc| symbols.function_range(spot.space, spot.moment, pc);
    let mut function = range_of(call.callee);
    let mut since = call.entry;
    while let Some(range) = function.filter(|_| tails.frames.len() < MAX_TAILS) {
        if range.contains(spot.pc) || same_name(database, spot, range.start, spot.pc) {
            break;
        }
        let Some(jump) = last_in(database, range, since, spot.moment, call)? else { break };
        let Some(mut next) = following(database, &jump)? else { break };
        if switches_stack(database, spot, range.start, jump.pc)? {
            return Ok(Tails { switched: Some(jump.moment), ..Tails::default() });
        }
        tails.frames.push(jump);
        tails.stub = symbols.stub_target(spot.space, spot.moment, next.pc);
        // A stub is one or two instructions (endbr64, jmp): go on behind it.
        while tails.stub.is_some()
            && symbols.stub_target(spot.space, spot.moment, next.pc).is_some()
            && let Some(after) = following(database, &next)?
        {
            next = after;
        }
        since = next.moment;
        function = range_of(next.pc);
    }
    Ok(tails)
}

/// The last instruction in `range` that ran in the activation `call` in `since..until`, in no nested call of it.
fn last_in(
    database: &Database,
    range: GuestRange,
    since: Moment,
    until: Moment,
    call: &CallRow,
) -> Result<Option<ExecutionRow>, QueryError> {
    let store = database.store();
    let mut until = until;
    for _ in 0..MAX_SKIPS {
        let query = ExecutionQuery {
            space: Some(call.space),
            pcs: Some(range),
            moments: since..until,
            task: Some(call.task),
            order: Order::Descending,
        };
        let Some(row) = store.executions(&query)?.next().transpose()? else { return Ok(None) };
        let stack = store.stack_at(row.moment)?;
        match stack.iter().position(|frame| frame.entry == call.entry) {
            Some(0) => return Ok(Some(row)),
            Some(depth) => until = stack[depth - 1].entry,
            None => return Ok(None),
        }
    }
    Ok(None)
}

/// The instruction that its task ran next.
fn following(database: &Database, row: &ExecutionRow) -> Result<Option<ExecutionRow>, QueryError> {
    let query = ExecutionQuery {
        space: Some(row.space),
        task: Some(row.task),
        moments: Moment(row.moment.0 + 1)..Moment(u64::MAX),
        ..ExecutionQuery::default()
    };
    database.store().executions(&query)?.next().transpose()
}

/// Whether a function gives `rsp` an unrelated value on the way from its start to a jump out of it.
fn switches_stack(
    database: &Database,
    spot: Spot,
    start: GuestAddr,
    jump: GuestAddr,
) -> Result<bool, QueryError> {
    let mut pc = start;
    for _ in 0..MAX_SWITCH {
        if pc >= jump {
            break;
        }
        let Some(instruction) = code::instruction(database, Spot { pc, ..spot })? else { break };
        if code::loads_stack_pointer(&instruction) {
            return Ok(true);
        }
        pc = pc.wrapping_add(instruction.len() as u64);
    }
    Ok(false)
}

fn same_function(database: &Database, spot: Spot, a: GuestAddr, b: GuestAddr) -> bool {
    let symbols = database.symbols();
    match symbols.function_range(spot.space, spot.moment, a) {
        Some(range) => range.contains(b),
        None => symbols.function_range(spot.space, spot.moment, b).is_none(),
    }
}

/// Whether two pcs belong to one function that the compiler split (`f` and `f.cold`).
fn same_name(database: &Database, spot: Spot, a: GuestAddr, b: GuestAddr) -> bool {
    let name = |pc| {
        let frame = database.symbols().quick_frames(spot.space, spot.moment, pc).pop();
        frame.and_then(|frame| frame.function).map(|name| name.split(".cold").next().unwrap_or("").to_owned())
    };
    name(a).is_some_and(|first| name(b) == Some(first))
}
