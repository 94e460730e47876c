//! Calls and readings that are put back many at a time, against each by itself: events, moments, states on the way, stops, divergences are the same.

use std::path::Path;

use backstory_oracle::programs;
use engine::{Space, Watch, WatchKind};
use guest::{EventId, GuestAddr, GuestMemory, GuestRange, Moment, Registers, SpaceId, TaskId, XState};
use replayer::{
    Bias, Look, Observer, Options, Position, Replay, Silent, Stopped, Stops, Until, Watched, learn,
};
use trace::{Event, Fact, Stop, SyscallInfo, Trace, TraceWriter, Trapped};

use crate::recorded::{find, record, turn};

fn options(one_by_one: bool) -> Options {
    Options { one_by_one, ..Options::default() }
}

fn recording(scratch: &Path) -> Trace {
    let program = programs::build("many_calls", scratch);
    record(scratch, &[program.to_str().unwrap()])
}

/// Of a program that does little but read the time stamp counter.
fn of_readings(scratch: &Path) -> Trace {
    let program = programs::build("counter_readings", scratch);
    record(scratch, &[program.to_str().unwrap(), "3000"])
}

/// What is told of events, and how often spaces were stopped.
#[derive(Default)]
struct Told {
    /// Before (and after) which event of which task, which goes on where.
    events: Vec<(bool, Position, TaskId, u64)>,
    printed: Vec<u8>,
    stops: u64,
}

impl Observer for Told {
    fn looks_at(&self, call: Option<&SyscallInfo>) -> Look {
        // Of some, at once.
        if call.is_some_and(|info| info.args[2] == 17) { Look::There } else { Look::Afterwards }
    }

    fn before_event(&mut self, _id: SpaceId, _space: &mut Space, event: &Event, at: Position) -> Watched {
        self.events.push((true, at, event.task, event.before.rip));
        Ok(())
    }

    fn after_event(&mut self, space: &mut Space, event: &Event, at: Position) -> Watched {
        self.events.push((false, at, event.task, event.after.rip));
        if let (Fact::Syscall(info), Stop::Syscall) = (&event.fact, event.stop)
            && info.args[2] == 17
        {
            assert_eq!(space.registers(), event.after);
        }
        Ok(())
    }

    fn space_ends(&mut self, _id: SpaceId, space: &mut Space, _at: Position) -> Watched {
        self.stops += space.counters().stops;
        Ok(())
    }

    fn output(&mut self, _stream: trace::OutputStream, bytes: &[u8], _at: Position) -> Watched {
        self.printed.extend_from_slice(bytes);
        Ok(())
    }
}

#[test]
fn events_and_moments_are_the_same() {
    let _turn = turn();
    for recording in [recording, of_readings] {
        let scratch = tempfile::tempdir().unwrap();
        check_events(&recording(scratch.path()));
    }
}

#[track_caller]
fn check_events(trace: &Trace) {
    let told = [true, false].map(|one_by_one| {
        let _ = std::fs::remove_dir_all(trace.dir().join("learned"));
        let mut told = Told::default();
        let moments = Replay::open(trace, &options(one_by_one)).unwrap().finish(&mut told).unwrap();
        // With the moments known it is the same, too.
        let mut again = Told::default();
        Replay::open(trace, &options(one_by_one)).unwrap().run(Until::End, &mut again).unwrap();
        assert_eq!(again.events, told.events);
        (told, moments)
    });
    let [(one_by_one, moments), (together, others)] = told;
    assert_eq!(moments, others);
    assert_eq!(one_by_one.events.len(), together.events.len());
    for (one, other) in one_by_one.events.iter().zip(&together.events) {
        assert_eq!(one, other);
    }
    assert_eq!(one_by_one.printed, together.printed);
    assert!(together.stops * 4 < one_by_one.stops, "{} against {}", together.stops, one_by_one.stops);
}

/// All that can be seen of a replay.
#[derive(PartialEq, Debug)]
struct Seen {
    position: Position,
    registers: Vec<(TaskId, Option<Registers>, Option<XState>)>,
    /// Each space's mappings, with a checksum of what can be written.
    memory: Vec<(SpaceId, GuestRange, u32)>,
}

fn seen(replay: &Replay) -> Seen {
    let of = |task| (task, replay.registers(task), replay.xstate(task).unwrap());
    let registers = replay.tasks().into_iter().map(|view| of(view.task)).collect();
    let mut memory = Vec::new();
    for (id, space) in replay.spaces() {
        for mapping in space.mappings().into_iter().filter(|mapping| mapping.prot.write) {
            let mut sum = crc32fast::Hasher::new();
            let mut bytes = vec![0; guest::PAGE_SIZE as usize];
            for page in (mapping.range.start.0..mapping.range.end.0).step_by(bytes.len()) {
                if space.read(GuestAddr(page), &mut bytes).is_ok() {
                    sum.update(&bytes);
                }
            }
            memory.push((id, mapping.range, sum.finalize()));
        }
    }
    Seen { position: replay.position(), registers, memory }
}

/// A few numbers below `limit`, ascending.
fn some(count: u64, limit: u64) -> Vec<u64> {
    let mut state = 0x2545_f491_4f6c_dd1du64;
    let mut numbers: Vec<u64> = (0..count)
        .map(|_| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state % limit
        })
        .collect();
    numbers.sort_unstable();
    numbers
}

#[test]
fn states_on_the_way_are_the_same() {
    let _turn = turn();
    for (recording, stop) in [
        (recording as fn(&Path) -> Trace, Stop::Buffered),
        (of_readings, Stop::BufferedInstruction(Trapped::Rdtsc)),
    ] {
        let scratch = tempfile::tempdir().unwrap();
        check_states(&recording(scratch.path()), stop);
    }
}

/// From the first such stop on.
#[track_caller]
fn check_states(trace: &Trace, stop: Stop) {
    let moments = learn(trace, &options(false)).unwrap();
    let mut goals = Vec::new();
    for moment in some(60, moments.total().0) {
        goals.push(Until::Moment(Moment(moment), Bias::NextInstruction));
        goals.push(Until::Moment(Moment(moment), Bias::Earliest));
    }
    let first = find(trace, |event| event.stop == stop);
    for event in some(60, trace.len() - first).into_iter().map(|event| EventId(first + event)) {
        let (start, end) = (moments.start(event), moments.end(event));
        for moment in [start, Moment(end.0.saturating_sub(1).max(start.0)), end] {
            goals.push(Until::Position(Position { moment, event }));
            goals.push(Until::Moment(moment, Bias::NextInstruction));
        }
        // No such place: as soon as one is behind it.
        goals.push(Until::Position(Position { moment: start, event: EventId(event.0 + 3) }));
        goals.push(Until::Position(Position { moment: end, event: EventId(0) }));
    }
    goals.sort_by_key(|goal| match goal {
        Until::Moment(moment, _) | Until::Position(Position { moment, .. }) => *moment,
        Until::End => Moment(u64::MAX),
    });
    let [mut one_by_one, mut together] =
        [true, false].map(|one_by_one| Replay::open(trace, &options(one_by_one)).unwrap());
    let mut kept = None;
    for (at, goal) in goals.iter().enumerate() {
        let stopped = [&mut one_by_one, &mut together].map(|replay| replay.run(*goal, &mut Silent).unwrap());
        assert_eq!(stopped[0], stopped[1], "{goal:?}");
        assert_eq!(seen(&one_by_one), seen(&together), "{goal:?}");
        if at == goals.len() / 2 {
            kept = Some(together.snapshot().unwrap());
        }
    }
    let mut kept = kept.unwrap();
    together.restore(&mut kept).unwrap();
    for goal in &goals[goals.len() / 2 + 1..] {
        together.run(*goal, &mut Silent).unwrap();
    }
    assert_eq!(seen(&one_by_one), seen(&together), "from a kept state");
    let ends = [&mut one_by_one, &mut together].map(|replay| replay.run(Until::End, &mut Silent).unwrap());
    assert_eq!(ends, [Stopped::End; 2]);
}

/// Runs through all stops: each, and where it was.
fn stops(trace: &Trace, stops: &Stops, one_by_one: bool) -> Vec<(Stopped, Position)> {
    let mut replay = Replay::open(trace, &options(one_by_one)).unwrap();
    replay.set_stops(stops).unwrap();
    let mut met = Vec::new();
    loop {
        let stopped = replay.run(Until::End, &mut Silent).unwrap();
        met.push((stopped, replay.position()));
        if stopped == Stopped::End || met.len() == 400 {
            return met;
        }
    }
}

#[test]
fn stops_are_met_at_and_behind_calls() {
    let _turn = turn();
    let scratch = tempfile::tempdir().unwrap();
    let trace = recording(scratch.path());
    // A read of the program itself, again and again.
    let again =
        |event: &Event| event.stop == Stop::Buffered && (event.before.rax, event.before.rdx) == (0, 3);
    let reads = find(&trace, again);
    let event = trace.event(EventId(reads)).unwrap();
    let (call, after) = (event.before.pc(), event.after.pc());
    let watch = Watch { range: GuestRange::new(event.writes[0].addr, 1), kind: WatchKind::Write };
    for (breakpoints, watchpoints) in
        [(vec![call], vec![]), (vec![after], vec![]), (vec![call, after], vec![]), (vec![], vec![watch])]
    {
        let wanted = Stops { breakpoints, watchpoints, spaces: Vec::new() };
        let [one_by_one, together] = [true, false].map(|one_by_one| stops(&trace, &wanted, one_by_one));
        assert!(together.len() > 100, "{wanted:?}: only {}", together.len());
        assert_eq!(one_by_one, together, "{wanted:?}");
    }
}

#[test]
fn stops_are_met_at_and_behind_readings() {
    let _turn = turn();
    let scratch = tempfile::tempdir().unwrap();
    let trace = of_readings(scratch.path());
    let reads = find(&trace, |event| event.stop == Stop::BufferedInstruction(Trapped::Rdtscp));
    let event = trace.event(EventId(reads)).unwrap();
    for breakpoints in [vec![event.before.pc()], vec![event.after.pc()]] {
        let wanted = Stops { breakpoints, watchpoints: Vec::new(), spaces: Vec::new() };
        let [one_by_one, together] = [true, false].map(|one_by_one| stops(&trace, &wanted, one_by_one));
        assert!(together.len() > 100, "{wanted:?}: only {}", together.len());
        assert_eq!(one_by_one, together, "{wanted:?}");
    }
}

/// A call as the recorded program notes it.
fn noted(event: &Event, trace: &Trace) -> Vec<u8> {
    let Fact::Syscall(info) = &event.fact else { panic!("{event:?}") };
    let count = kernel::inside(info.nr, &info.args).unwrap().args;
    let mut bytes = Vec::new();
    let mut out = 0xff;
    for write in &event.writes {
        let wrote = trace.data(&write.data).unwrap();
        let at = info.args[..usize::from(count)].iter().position(|arg| *arg == write.addr.0);
        if let (Some(at), [_]) = (at, &event.writes[..]) {
            (out, bytes) = (at as u64, wrote.into_owned());
            break;
        }
        out = 0xfe;
        bytes.extend([write.addr.0, wrote.len() as u64].into_iter().flat_map(u64::to_le_bytes));
        bytes.extend(&*wrote);
        bytes.resize(bytes.len().next_multiple_of(8), 0);
    }
    let head = u64::from(info.nr) | u64::from(count) << 16 | out << 24 | (bytes.len() as u64) << 32;
    let words =
        [head, event.after.rip, event.after.rax].into_iter().chain(info.args[..usize::from(count)].to_vec());
    let mut noted: Vec<u8> = words.flat_map(u64::to_le_bytes).collect();
    noted.extend(bytes);
    noted.resize(noted.len().next_multiple_of(8), 0);
    noted
}

/// A copy of a trace in which calls lie together as they did, one of them changed.
fn changed(trace: &Trace, dir: &Path, which: u64, change: impl Fn(&mut Event)) -> Trace {
    let mut writer = TraceWriter::create_with_store(dir, trace.header(), None).unwrap();
    for (i, kept) in trace.files().iter().enumerate() {
        let path = trace.file_path(guest::FileId(i as u32)).unwrap();
        writer.keep_file(&std::fs::File::open(path).unwrap(), &kept.path).unwrap();
    }
    let mut calls: Option<(TaskId, SpaceId, Vec<u8>)> = None;
    for item in trace.events() {
        let (id, mut event) = item.unwrap();
        if id.0 == which {
            change(&mut event);
        }
        let owner = (event.task, event.space);
        let buffered = event.stop == Stop::Buffered;
        if let Some((task, space, bytes)) = calls
            .take_if(|(task, space, bytes)| !buffered || (*task, *space) != owner || bytes.len() > 60_000)
        {
            writer.batch(task, space, &bytes).unwrap();
        }
        if buffered {
            let (_, _, bytes) = calls.get_or_insert((event.task, event.space, Vec::new()));
            bytes.extend(noted(&event, trace));
            continue;
        }
        for write in &mut event.writes {
            write.data = trace::Data::Inline(trace.data(&write.data).unwrap().into_owned());
        }
        writer.event(&event).unwrap();
    }
    let (tasks, spaces) = writer.counts();
    writer.finish(&trace::Summary { tasks, spaces, ..trace.summary().unwrap().clone() }).unwrap();
    Trace::open(dir).unwrap()
}

#[test]
fn a_call_that_differs_is_told_as_it_is() {
    let _turn = turn();
    let scratch = tempfile::tempdir().unwrap();
    let trace = recording(scratch.path());
    let read = |event: &Event| event.stop == Stop::Buffered && event.before.rax == 0;
    let first = find(&trace, read);
    let which = trace
        .events_from(EventId(first + 100))
        .map(Result::unwrap)
        .find(|(_, event)| read(event))
        .unwrap()
        .0
        .0;
    type Change = fn(&mut Event);
    let changes: [(&str, Change); 5] = [
        ("nothing", |_| {}),
        ("an argument", |event| {
            let Fact::Syscall(info) = &mut event.fact else { return };
            info.args[2] += 1;
        }),
        ("the number", |event| {
            let Fact::Syscall(info) = &mut event.fact else { return };
            info.nr = 1;
        }),
        ("the place", |event| event.after.rip += 1),
        ("the result", |event| event.after.rax += 1),
    ];
    for (what, change) in changes {
        let changed = changed(&trace, &scratch.path().join(what), which, change);
        let ends = [true, false].map(|one_by_one| {
            let mut replay = Replay::open(&changed, &options(one_by_one)).unwrap();
            let end = replay.run(Until::End, &mut Silent);
            (format!("{end:?}"), replay.position(), replay.counts().to_vec())
        });
        assert_eq!(ends[0], ends[1], "{what}");
        assert_eq!(ends[0].0.contains("Divergence"), what != "nothing", "{what}: {}", ends[0].0);
    }
}
