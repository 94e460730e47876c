//! Oracle: what the index says of several tasks in one space, around every place where one was interrupted: writes with values,
//! executions, calls, stacks and switches equal a list made by replaying instruction by instruction and decoding each.
#![expect(clippy::unwrap_used, reason = "a test says what failed")]

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use backstory_oracle::command::{backstory, record};
use backstory_oracle::programs;
use backstory_oracle::stores::Stores;
use guest::{GuestAddr, GuestMemory, GuestRange, Moment, Registers, TaskId};
use iced_x86::{Decoder, DecoderOptions, Instruction, Mnemonic};
use store::{Author, CallKind, CallQuery, CallRow, ExecutionQuery, Order, Store, WriteQuery};
use timeline::{Bias, StopReason, Stops, Timeline, Watch, WatchKind};
use trace::{Fact, Trace};

/// Instructions looked at on each side of a place.
const AROUND: u64 = 100;

/// How far the stack pointer may lie below a return address on the same stack.
const STACK: u64 = 8 << 20;

/// An instruction as it was stepped.
struct Step {
    moment: u64,
    task: TaskId,
    before: Registers,
    instruction: Instruction,
}

/// A stretch of the recording, stepped.
struct Window {
    from: u64,
    to: u64,
    steps: Vec<Step>,
    stores: Stores,
}

fn indexed(name: &str, scratch: &Path) -> Trace {
    let source = programs::folder().join("points").join(format!("{name}.c"));
    let program = programs::build_file(&source, scratch);
    let dir = scratch.join("trace");
    let recorded = record(&dir, &[program]);
    assert!(!recorded.stdout.is_empty(), "{}", String::from_utf8_lossy(&recorded.stderr));
    let indexed = backstory(["index"]).arg(&dir).output().unwrap();
    assert!(indexed.status.success(), "{}", String::from_utf8_lossy(&indexed.stderr));
    Trace::open(&dir).unwrap()
}

/// The moments at which something interrupts a task or tasks come and go, and some at which granules begin.
fn places(trace: &Trace, timeline: &Timeline, store: &Store) -> BTreeSet<u64> {
    let mut places = BTreeSet::new();
    for item in trace.events() {
        let (id, event) = item.unwrap();
        if let Fact::Point(_) | Fact::Signal(_) | Fact::Spawn(_) | Fact::Exit(_) = event.fact {
            places.insert(timeline.moments().end(id).0);
        }
    }
    let db = store.connection().unwrap();
    let mut granules = db.prepare("SELECT first FROM granules ORDER BY first").unwrap();
    let firsts: Vec<u64> =
        granules.query_map([], |row| row.get(0)).unwrap().collect::<Result<_, _>>().unwrap();
    assert!(firsts.len() > 10, "{} granules", firsts.len());
    places.extend(firsts.into_iter().step_by(12));
    places
}

fn decode(timeline: &Timeline, task: TaskId, regs: &Registers) -> Instruction {
    let memory = timeline.memory(timeline.space_of(task).unwrap()).unwrap();
    let code = memory.read_vec(regs.pc(), 15).unwrap();
    Decoder::with_ip(64, &code, regs.rip, DecoderOptions::NONE).decode()
}

fn step_through(timeline: &mut Timeline, from: u64, to: u64) -> Window {
    let mut window = Window { from, to, steps: Vec::new(), stores: Stores::default() };
    timeline.seek(Moment(from), Bias::NextInstruction).unwrap();
    for moment in from..to {
        let task = timeline.task();
        let space = timeline.space_of(task).unwrap();
        let before = timeline.registers(task).unwrap();
        let instruction = decode(timeline, task, &before);
        window.stores.expect(moment, &before, &instruction, true);
        timeline.step(1).unwrap();
        if timeline.memory(space).is_none() {
            // It died behind this instruction, and its memory with it.
            timeline.seek(Moment(moment + 1), Bias::Earliest).unwrap();
        }
        window.stores.ran(moment, &instruction, timeline.memory(space).unwrap());
        timeline.seek(Moment(moment + 1), Bias::NextInstruction).unwrap();
        window.steps.push(Step { moment, task, before, instruction });
    }
    window
}

fn range(window: &Window) -> std::ops::Range<Moment> {
    Moment(window.from)..Moment(window.to)
}

/// Each row of `writes` against what instructions stored and events put.
fn check_writes(window: &Window, trace: &Trace, timeline: &Timeline, store: &Store) {
    let mut rows = BTreeMap::new();
    for row in store.writes(&WriteQuery { moments: range(window), ..WriteQuery::default() }).unwrap() {
        let row = row.unwrap();
        let value = store.value(&row).unwrap();
        let kernel = matches!(row.author, Author::Kernel { .. });
        for (i, byte) in value.into_iter().enumerate() {
            rows.insert((kernel, row.moment.0, row.addr.0 + i as u64), (row.task, byte));
        }
    }
    let task_at = |moment: u64| window.steps[(moment - window.from) as usize].task;
    for (&(moment, addr), byte) in window.stores.bytes.iter().filter(|(_, byte)| byte.sure) {
        let row = rows.get(&(false, moment, addr));
        assert_eq!(row.map(|row| row.0), Some(task_at(moment)), "{addr:#x} @{moment} by {:#x}", byte.pc);
        // A signal's frame may overwrite what the last instruction stored.
        let covered = rows.contains_key(&(true, moment + 1, addr));
        assert!(covered || row.unwrap().1 == byte.value, "{addr:#x} @{moment}: {row:?}, {byte:?}");
    }
    for ((kernel, moment, addr), row) in &rows {
        let stepped = window.stores.bytes.contains_key(&(*moment, *addr));
        let known = *kernel || stepped || window.stores.unsized_at.contains(moment);
        assert!(known, "{addr:#x} @{moment}: {row:?} was not stepped");
    }
    for item in trace.events() {
        let (id, event) = item.unwrap();
        let own = matches!(event.fact, Fact::Syscall(_) | Fact::SyscallLeave(_) | Fact::Instruction);
        let moment = timeline.moments().end(id).0 - u64::from(own);
        // What is put at a point was written by the program before.
        if !(window.from..window.to).contains(&moment) || matches!(event.fact, Fact::Point(_)) {
            continue;
        }
        for write in &event.writes {
            for i in 0..write.data.len() as u64 {
                let row = rows.get(&(true, moment, write.addr.0 + i));
                assert_eq!(row.map(|row| row.0), Some(event.task), "{} @{moment}, event {id}", write.addr);
            }
        }
    }
}

fn check_executions(window: &Window, store: &Store) {
    let query = ExecutionQuery { moments: range(window), ..ExecutionQuery::default() };
    let rows: Vec<_> = store.executions(&query).unwrap().map(Result::unwrap).collect();
    assert_eq!(rows.len(), window.steps.len());
    for (row, step) in rows.iter().zip(&window.steps) {
        let found = (row.moment.0, row.task, row.pc);
        assert_eq!(found, (step.moment, step.task, step.before.pc()));
        assert_eq!(store.at(row.moment).unwrap().as_ref(), Some(row));
    }
}

/// A call in the window: by whom, the address of its return address, its call instruction.
type CallKey = (TaskId, u64, u64);

/// Each call and return of the window against `calls`, and the stack at each step.
fn check_calls(window: &Window, timeline: &mut Timeline, store: &Store) -> usize {
    let query = CallQuery { entered: range(window), ..CallQuery::default() };
    let rows: Vec<CallRow> = store.calls(&query).unwrap().map(Result::unwrap).collect();
    // By task: the calls of the window it is in, each with the row it must have, if it is in the window.
    let mut stacks: BTreeMap<TaskId, Vec<CallKey>> = BTreeMap::new();
    let mut last: BTreeMap<TaskId, &Step> = BTreeMap::new();
    let mut expected: BTreeMap<(u64, CallKey), Option<u64>> = BTreeMap::new();
    let mut entries: BTreeMap<CallKey, u64> = BTreeMap::new();
    let handlers = |step: &Step| {
        rows.iter()
            .any(|row| row.kind == CallKind::Signal && row.entry.0 == step.moment && row.task == step.task)
    };
    for step in &window.steps {
        let stack = stacks.entry(step.task).or_default();
        let previous = last.insert(step.task, step);
        match previous.map(|before| (before, before.instruction.mnemonic())) {
            Some((before, Mnemonic::Call)) => {
                let key = (step.task, before.before.rsp - 8, before.before.rip);
                stack.push(key);
                entries.insert(key, step.moment);
                expected.insert((step.moment, key), None);
            }
            Some((before, Mnemonic::Ret)) if !handlers(step) => {
                if let Some(key) = stack.pop() {
                    assert_eq!(key.1, before.before.rsp, "a return takes what its call pushed");
                    expected.insert((entries[&key], key), Some(step.moment));
                }
            }
            _ => {}
        }
        let jumped =
            stack.last().is_some_and(|key| !(0..STACK).contains(&key.1.wrapping_sub(step.before.rsp)));
        if handlers(step) || jumped {
            // What a handler interrupts, or a jump leaves, is not followed.
            stack.clear();
        }
        if let Some(&(_, sp, _)) = stacks[&step.task].last()
            && step.moment.is_multiple_of(32)
        {
            let innermost = store.stack_at(Moment(step.moment)).unwrap().first().map(|row| row.sp.0);
            assert_eq!(innermost, Some(sp), "@{} in the window from @{}", step.moment, window.from);
        }
    }
    let found: BTreeMap<(u64, CallKey), Option<u64>> = rows
        .iter()
        .filter(|row| row.kind == CallKind::Call)
        .map(|row| ((row.entry.0, (row.task, row.sp.0, row.site.0)), row.exit.map(|exit| exit.0)))
        .collect();
    for (key, exit) in &expected {
        let row = found.get(key).unwrap_or_else(|| panic!("no call at {key:x?}: {found:x?}"));
        assert!(exit.is_none() || exit == row, "{key:x?}: left at {row:?}, stepped {exit:?}");
    }
    for row in &rows {
        let begins = last_before(window, row);
        let stepped = expected.contains_key(&(row.entry.0, (row.task, row.sp.0, row.site.0)));
        assert!(stepped || row.kind == CallKind::Signal || !begins, "{row:x?} was not stepped");
    }
    check_frames(window, timeline, store);
    expected.len()
}

/// Whether the task of the call ran in the window before the call was entered.
fn last_before(window: &Window, row: &CallRow) -> bool {
    window.steps.iter().any(|step| step.task == row.task && step.moment < row.entry.0)
}

/// The stacks at both ends of the window: each return address is where the index says, none below the stack pointer.
fn check_frames(window: &Window, timeline: &mut Timeline, store: &Store) {
    for step in [window.steps.first().unwrap(), window.steps.last().unwrap()] {
        timeline.seek(Moment(step.moment), Bias::NextInstruction).unwrap();
        let memory = timeline.memory(timeline.space_of(step.task).unwrap()).unwrap();
        for row in store.stack_at(Moment(step.moment)).unwrap() {
            assert!(row.sp.0 >= step.before.rsp, "@{}: {row:x?}", step.moment);
            assert_eq!(memory.read_u64(row.sp).unwrap(), row.ret.0, "@{}: {row:x?}", step.moment);
        }
    }
}

/// Each change of task in the window against `switches`.
fn check_switches(window: &Window, store: &Store) -> usize {
    let db = store.connection().unwrap();
    let mut statement =
        db.prepare("SELECT moment, task, next, pc FROM switches WHERE moment > ?1 AND moment < ?2").unwrap();
    let rows = statement.query_map([window.from, window.to], |row| {
        Ok((row.get(0)?, TaskId(row.get(1)?), TaskId(row.get(2)?), GuestAddr(row.get::<_, i64>(3)? as u64)))
    });
    let found: Vec<(u64, TaskId, TaskId, GuestAddr)> = rows.unwrap().map(Result::unwrap).collect();
    let pairs = window.steps.windows(2).filter(|pair| pair[0].task != pair[1].task);
    let expected: Vec<_> = pairs.map(|pair| (pair[1].moment, pair[0].task, pair[1].task)).collect();
    assert_eq!(found.iter().map(|row| (row.0, row.1, row.2)).collect::<Vec<_>>(), expected);
    for (moment, task, _, pc) in &found {
        let resumed = window.steps.iter().find(|step| step.task == *task && step.moment > *moment);
        let handled = |step: &Step| step.before.pc() != *pc;
        // It goes on where it stood, unless a signal or a call in progress changed that.
        if let Some(step) = resumed.filter(|step| handled(step)) {
            let at = store.connection().unwrap().query_row(
                "SELECT count(*) FROM signals WHERE task = ?1 AND moment >= ?2 AND moment <= ?3",
                [u64::from(task.0), *moment - 1, step.moment],
                |row| row.get::<_, u64>(0),
            );
            assert!(at.unwrap() > 0, "task {task} stood at {pc}, goes on at {}", step.before.pc());
        }
    }
    found.len()
}

/// Checks the index of a guest. Returns how many calls and switches were checked.
#[track_caller]
fn check(name: &str) -> (usize, usize) {
    let scratch = tempfile::tempdir().unwrap();
    let trace = indexed(name, scratch.path());
    let store = Store::open(trace.dir(), &trace.uuid()).unwrap();
    let mut timeline = Timeline::open(&trace).unwrap();
    let end = timeline.moments().total().0;
    let (mut calls, mut switches, mut done) = (0, 0, 0);
    for place in places(&trace, &timeline, &store) {
        let (from, to) = (place.saturating_sub(AROUND).max(done), (place + AROUND).min(end));
        if from >= to {
            continue;
        }
        done = to;
        let window = step_through(&mut timeline, from, to);
        check_writes(&window, &trace, &timeline, &store);
        check_executions(&window, &store);
        calls += check_calls(&window, &mut timeline, &store);
        switches += check_switches(&window, &store);
    }
    (calls, switches)
}

#[test]
fn threads_are_told_apart() {
    let (calls, switches) = check("interrupted");
    assert!(calls > 300 && switches >= 3, "{calls} calls, {switches} switches");
}

#[test]
fn signals_at_any_instruction() {
    let (calls, _) = check("asynchronous");
    assert!(calls > 10, "{calls} calls");
}

/// Where a task was interrupted, breakpoints and watchpoints stop at what the index says ran and was written, task by task.
#[test]
fn stops_are_what_ran() {
    let scratch = tempfile::tempdir().unwrap();
    let trace = indexed("interrupted", scratch.path());
    let store = Store::open(trace.dir(), &trace.uuid()).unwrap();
    let mut timeline = Timeline::open(&trace).unwrap();
    let points = trace.events().map(Result::unwrap).filter(|(_, event)| event.stop == trace::Stop::Point);
    let mut checked = 0;
    for (id, event) in points.take(8) {
        let place = timeline.moments().end(id);
        let from = Moment(place.0 - 100);
        let pcs = Some(GuestRange::new(event.before.pc(), 1));
        // A task that stands at a breakpoint when it goes on does not meet that one.
        let ran = store.executions(&ExecutionQuery {
            moments: Moment(from.0 + 1)..Moment(u64::MAX),
            pcs,
            ..ExecutionQuery::default()
        });
        let ran: Vec<_> = ran.unwrap().take(3).map(Result::unwrap).collect();
        let stops = Stops { breakpoints: vec![event.before.pc()], ..Stops::default() };
        timeline.seek(from, Bias::NextInstruction).unwrap();
        for row in &ran {
            let reason = timeline.cont(&stops).unwrap();
            assert_eq!((reason, timeline.moment()), (StopReason::Breakpoint { task: row.task }, row.moment));
        }
        for row in ran.iter().rev().skip(1) {
            let reason = timeline.reverse_cont(&stops).unwrap();
            assert_eq!((reason, timeline.moment()), (StopReason::Breakpoint { task: row.task }, row.moment));
        }
        let before = WriteQuery { moments: from..place, order: Order::Descending, ..WriteQuery::default() };
        let Some(last) = store.writes(&before).unwrap().map(Result::unwrap).next() else { continue };
        let range = GuestRange::new(last.addr, 1);
        let writes =
            WriteQuery { moments: from..Moment(u64::MAX), addrs: Some(range), ..WriteQuery::default() };
        let written: Vec<_> = store.writes(&writes).unwrap().take(6).map(Result::unwrap).collect();
        let watch = Watch { range, kind: WatchKind::Write };
        let stops = Stops { watchpoints: vec![watch], ..Stops::default() };
        timeline.seek(from, Bias::NextInstruction).unwrap();
        for row in written.iter().filter(|row| matches!(row.author, Author::Code { .. })) {
            let reason = timeline.cont(&stops).unwrap();
            assert_eq!(reason, StopReason::Watchpoint { task: row.task, addr: last.addr });
            assert_eq!(timeline.moment().0, row.moment.0 + 1, "{row:?}");
        }
        checked += ran.len() + written.len();
    }
    assert!(checked > 20, "{checked} stops");
}

/// Every signal is in `signals`, with where it struck.
#[test]
fn signals_between_any_two_instructions_are_listed() {
    let scratch = tempfile::tempdir().unwrap();
    let trace = indexed("asynchronous", scratch.path());
    let store = Store::open(trace.dir(), &trace.uuid()).unwrap();
    let timeline = Timeline::open(&trace).unwrap();
    let (mut signals, mut between) = (0, 0);
    let mut stopped = BTreeMap::new();
    for item in trace.events() {
        let (id, event) = item.unwrap();
        let stood = stopped.remove(&event.task);
        match &event.fact {
            Fact::Point(info) if info.signal != 0 => {
                stopped.insert(event.task, event.before.pc());
            }
            Fact::Signal(info) => {
                let row = store.signal(id).unwrap().unwrap();
                let expected = (timeline.moments().end(id), event.task, info.signo);
                assert_eq!((row.moment, row.task, row.signo), expected);
                assert_eq!(row.pc, stood.unwrap_or(event.before.pc()));
                signals += 1;
                between += u32::from(stood.is_some());
            }
            _ => {}
        }
    }
    assert!(signals >= 4 && between >= 1, "{signals} signals, {between} of them in user code");
}
