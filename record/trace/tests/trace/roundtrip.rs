//! What is written is read back, whatever it is; what is invalid is not written.

use crate::sample;
use guest::{EventId, GuestAddr, GuestRange, PieceId, Prot, Registers, SpaceId, TaskId, XState};
use proptest::prelude::*;
use trace::{
    Backing, Data, Event, Fact, MapOp, MemWrite, Moments, PieceRef, Problem, Stop, SyscallInfo, Trace,
    TracedInfo, Trapped, WriteError, check, write_ticks,
};

#[test]
fn the_sample_round_trips() {
    for every in [1, 3, 100] {
        let scratch = tempfile::tempdir().unwrap();
        let dir = scratch.path().join("t");
        sample::write(&dir, every, usize::MAX);
        let trace = Trace::open(&dir).unwrap();
        let read: Vec<Event> = trace.events().map(|item| sample::inlined(&trace, item.unwrap().1)).collect();
        assert_eq!(read, sample::events());
        assert_eq!(trace.header(), &sample::header());
        assert!(trace.is_complete());
        assert_eq!(trace.summary().unwrap().exit_code, 139);
        assert_eq!(check(&trace), []);
        for (i, event) in sample::events().iter().enumerate() {
            assert_eq!(&sample::inlined(&trace, trace.event(EventId(i as u64)).unwrap()), event);
        }
        assert!(trace.event(EventId(99)).is_err());
        let file = std::fs::read(trace.file_path(guest::FileId(0)).unwrap()).unwrap();
        assert_eq!(file, sample::KEPT);
        let footprint = trace.footprint().unwrap();
        assert_eq!(footprint[0], GuestRange::new(GuestAddr(0x1000), 0x1000));
    }
}

#[test]
fn a_killed_writer_leaves_what_it_flushed() {
    let scratch = tempfile::tempdir().unwrap();
    let dir = scratch.path().join("t");
    let mut writer = sample::begin(&dir);
    for (i, event) in sample::events().iter().enumerate() {
        writer.event(event).unwrap();
        if i == 4 {
            writer.flush().unwrap();
        }
    }
    // As SIGKILL does: nothing more is written.
    std::mem::forget(writer);
    let trace = Trace::open(&dir).unwrap();
    assert!(!trace.is_complete());
    let read: Vec<Event> = trace.events().map(|item| sample::inlined(&trace, item.unwrap().1)).collect();
    assert_eq!(read, sample::events()[..5]);
    assert_eq!(check(&trace), []);
    assert_eq!(trace.footprint().unwrap().len(), 3);
}

#[test]
fn counts_are_stored_and_summed() {
    let scratch = tempfile::tempdir().unwrap();
    let dir = scratch.path().join("t");
    sample::write(&dir, 4, usize::MAX);
    let trace = Trace::open(&dir).unwrap();
    assert_eq!(Moments::load(&trace).unwrap(), None);
    let counts: Vec<u64> = (0..trace.len()).map(|i| i % 3).collect();
    write_ticks(&trace, &counts).unwrap();
    let moments = Moments::load(&trace).unwrap().unwrap();
    assert_eq!(moments, Moments::from_counts(counts));
    assert_eq!(moments.total().0, 12);
    assert_eq!(moments.event_at(guest::Moment(0)), Some(EventId(1)));
    assert_eq!(moments.event_at(guest::Moment(1)), Some(EventId(2)));
    assert_eq!(moments.event_at(guest::Moment(12)), None);
    assert_eq!((moments.start(EventId(2)).0, moments.end(EventId(2)).0), (1, 3));
    assert_eq!(check(&trace), []);
    std::fs::write(dir.join("learned/ticks"), "BACKSTRYxx").unwrap();
    assert!(Moments::load(&trace).is_err());
    assert_eq!(check(&trace).len(), 1);
}

/// Breaks the sample's event number `at` and expects the writer to refuse it.
#[track_caller]
fn refuse(at: usize, break_it: impl FnOnce(&mut Event), expected: Problem) {
    let scratch = tempfile::tempdir().unwrap();
    let mut writer = sample::begin(&scratch.path().join("t"));
    let mut events = sample::events();
    break_it(&mut events[at]);
    for event in &events[..at] {
        writer.event(event).unwrap();
    }
    match writer.event(&events[at]) {
        Err(WriteError::Invalid(violation)) => {
            assert_eq!((violation.event, violation.problem), (Some(EventId(at as u64)), expected));
        }
        other => panic!("accepted: {other:?}"),
    }
}

#[test]
fn invalid_events_are_refused() {
    refuse(0, |e| e.task = TaskId(1), Problem::FirstEvent);
    refuse(1, |e| e.task = TaskId(7), Problem::UnknownTask { task: TaskId(7) });
    let wrong = Problem::WrongSpace { task: TaskId(0), found: SpaceId(5), expected: SpaceId(0) };
    refuse(1, |e| e.space = SpaceId(5), wrong);
    refuse(1, |e| e.stop = Stop::None, Problem::StopMismatch { fact: "syscall", stop: Stop::None });
    refuse(1, |e| e.before.rax = 2, Problem::SyscallNumber { found: 1, expected: 2 });
    let range = GuestRange::new(GuestAddr(0x1001), 0x1000);
    refuse(1, |e| e.maps[0] = MapOp::Unmap { range }, Problem::Range { range });
    refuse(
        7,
        |e| e.before.rbx = 1,
        Problem::Chain { task: TaskId(0), register: guest::RegisterName(5), expected: 0, found: 1 },
    );
    refuse(7, |e| e.task = TaskId(1), Problem::DeadTask { task: TaskId(1) });
    refuse(9, |e| e.space = SpaceId(4), Problem::SpaceNotDense { found: SpaceId(4), expected: SpaceId(2) });
    refuse(10, |e| e.xstate = Some(XState(vec![0; 9])), Problem::XState { len: 9 });
    let payload = Data::Payload(trace::PayloadRef { offset: 1 << 30, len: 1 });
    let part = PieceRef { piece: PieceId(0), offset: 0, len: 1 };
    let no_piece = Problem::Piece { piece: part.piece, offset: 0, len: 1 };
    refuse(10, |e| e.writes[0].data = Data::Pieces(vec![part]), no_piece);
    refuse(10, |e| e.writes[0].data = payload, Problem::Payload { offset: 1 << 30, len: 1 });
}

/// Makes the sample's `rdtsc` (event 2) an event of a tracer's.
fn traced(event: &mut Event, stop: Stop, tracer: u32, request: Option<u32>) {
    let after = Registers { rip: 0x1012, rax: 3, rcx: 0x1012, r11: 0x202, ..event.before };
    (event.stop, event.before, event.after) = (stop, after, after);
    event.fact = Fact::Traced(TracedInfo { tracer: TaskId(tracer), request });
}

#[test]
fn a_tracer_is_another_task_and_its_requests_happen_in_place() {
    refuse(2, |e| traced(e, Stop::None, 7, Some(5)), Problem::UnknownTask { task: TaskId(7) });
    refuse(2, |e| traced(e, Stop::None, 0, Some(5)), Problem::UnknownTask { task: TaskId(0) });
    for (stop, request) in [(Stop::Point, None), (Stop::Syscall, Some(5)), (Stop::Fault, None)] {
        refuse(2, |e| traced(e, stop, 0, request), Problem::StopMismatch { fact: "traced", stop });
    }
}

fn regs() -> impl Strategy<Value = Registers> {
    prop_oneof![
        Just(Registers::default()),
        prop::array::uniform27(any::<u64>()).prop_map(Registers::from_words),
        prop::array::uniform27(0u64..3).prop_map(Registers::from_words),
    ]
}

fn range() -> impl Strategy<Value = GuestRange> {
    (0u64..1 << 40, 1u64..1 << 8)
        .prop_map(|(page, pages)| GuestRange::new(GuestAddr(page << 12), pages << 12))
}

fn map_op() -> impl Strategy<Value = MapOp> {
    let map = (range(), 0u64..8, any::<[bool; 3]>(), any::<bool>(), ".{0,9}").prop_map(
        |(range, bits, flags, zero, name)| {
            let backing = if zero {
                Backing::Zero
            } else {
                Backing::File { file: guest::FileId(0), offset: bits << 12 }
            };
            let [shared, grows_down, no_reserve] = flags;
            MapOp::Map { range, prot: Prot::from_bits(bits), shared, grows_down, no_reserve, backing, name }
        },
    );
    prop_oneof![
        map,
        range().prop_map(|range| MapOp::Unmap { range }),
        (range(), 0u64..8).prop_map(|(range, bits)| MapOp::Protect { range, prot: Prot::from_bits(bits) }),
        (range(), range(), any::<bool>()).prop_map(|(from, to, keep)| MapOp::Remap { from, to, keep }),
        range().prop_map(|range| MapOp::Discard { range }),
        (range(), any::<[u8; 5]>(), any::<[u8; 5]>()).prop_map(|(range, shown, own)| MapOp::Rewrite {
            addr: range.start,
            shown: shown.to_vec(),
            own: own.to_vec()
        }),
    ]
}

fn write() -> impl Strategy<Value = MemWrite> {
    let bytes =
        prop_oneof![prop::collection::vec(any::<u8>(), 0..200), prop::collection::vec(Just(0u8), 0..70_000)];
    (0u64..1 << 47, bytes)
        .prop_map(|(addr, bytes)| MemWrite { addr: GuestAddr(addr), data: Data::Inline(bytes) })
}

fn plain_event() -> impl Strategy<Value = Event> {
    let state =
        prop::option::of(prop::collection::vec(prop_oneof![3 => Just(0u8), 1 => any::<u8>()], 512..3000));
    let parts =
        (regs(), regs(), state, prop::collection::vec(map_op(), 0..3), prop::collection::vec(write(), 0..4));
    (parts, any::<bool>(), any::<[u64; 6]>(), any::<Option<i64>>()).prop_map(|(parts, trap, args, result)| {
        let (before, after, xstate, maps, writes) = parts;
        let (stop, fact) = if trap {
            (Stop::Instruction(Trapped::Cpuid), Fact::Instruction)
        } else {
            let info = SyscallInfo { nr: before.rax as u32, args, result, output: None, output_crc: 0 };
            (Stop::Syscall, Fact::Syscall(info))
        };
        Event {
            task: TaskId(0),
            space: SpaceId(0),
            stop,
            before,
            after,
            xstate: xstate.map(XState),
            maps,
            writes,
            fact,
        }
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn any_valid_events_round_trip(events in prop::collection::vec(plain_event(), 0..12), every in 1usize..20) {
        let scratch = tempfile::tempdir().unwrap();
        let dir = scratch.path().join("t");
        let mut writer = sample::begin(&dir);
        let all: Vec<Event> = sample::events().into_iter().take(1).chain(events).collect();
        for (i, event) in all.iter().enumerate() {
            writer.event(event).unwrap();
            if i % every == 0 {
                writer.flush().unwrap();
            }
        }
        writer.flush().unwrap();
        drop(writer);
        let trace = Trace::open(&dir).unwrap();
        let read: Vec<Event> = trace.events().map(|item| sample::inlined(&trace, item.unwrap().1)).collect();
        prop_assert_eq!(read, all);
        prop_assert_eq!(check(&trace), vec![]);
    }
}
