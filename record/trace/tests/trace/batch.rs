//! Calls that were made without a stop: written as one record, read as events.

use guest::{GuestAddr, Registers, SpaceId, TaskId};
use trace::{Data, Event, Fact, MemWrite, ReadError, Stop, SyscallInfo, Trace, Trapped, WriteError};

use crate::sample;

/// A call as a tracee notes it; `out` is the argument that leads to what it wrote.
fn noted(nr: u16, args: &[u64], out: u8, result: i64, wrote: &[u8]) -> Vec<u8> {
    let head = u64::from(nr) | (args.len() as u64) << 16 | u64::from(out) << 24 | (wrote.len() as u64) << 32;
    let words = [head, 0x1012, result as u64];
    let mut bytes: Vec<u8> = words.iter().chain(args).flat_map(|word| word.to_le_bytes()).collect();
    bytes.extend(wrote);
    bytes.resize(bytes.len().next_multiple_of(8), 0xee);
    bytes
}

/// What is written in several places, as a tracee notes it.
fn pieces(all: &[(u64, &[u8])]) -> Vec<u8> {
    let mut noted = Vec::new();
    for (to, bytes) in all {
        noted.extend([*to, bytes.len() as u64].into_iter().flat_map(u64::to_le_bytes));
        noted.extend(*bytes);
        noted.resize(noted.len().next_multiple_of(8), 0xee);
    }
    noted
}

fn calls() -> Vec<u8> {
    let long: Vec<u8> = (0..100).collect();
    [
        noted(110, &[], 0xff, 7, &[]),
        noted(0, &[3, 0x2000, 5], 1, 5, b"bytes"),
        noted(0, &[3, 0x3000, 100], 1, 100, &long),
        noted(4, &[0x1000, 0x2000], 1, -2, &[]),
        noted(19, &[3, 0x1000, 2], 0xfe, 102, &pieces(&[(0x4000, b"ab"), (0x5000, &long)])),
        noted(7, &[0x1000, 2, 3], 0xfe, -2, &[]),
    ]
    .concat()
}

fn event(nr: u32, args: [u64; 6], result: i64, write: Option<(u64, Vec<u8>)>) -> Event {
    let [rdi, rsi, rdx, r10, r8, r9] = args;
    let before =
        Registers { rip: 0x1010, rax: u64::from(nr), rdi, rsi, rdx, r10, r8, r9, ..Registers::default() };
    let info = SyscallInfo { nr, args, result: Some(result), output: None, output_crc: 0 };
    let write = write.map(|(addr, bytes)| MemWrite { addr: GuestAddr(addr), data: Data::Inline(bytes) });
    Event {
        stop: Stop::Buffered,
        after: Registers { rip: 0x1012, rax: result as u64, ..before },
        writes: write.into_iter().collect(),
        ..Event::in_place(TaskId(0), SpaceId(0), before, Fact::Syscall(info))
    }
}

fn expected() -> Vec<Event> {
    let args = |first: u64, second: u64, third: u64| [first, second, third, 0, 0, 0];
    let write = |addr, bytes: &[u8]| MemWrite { addr: GuestAddr(addr), data: Data::Inline(bytes.to_vec()) };
    let several = vec![write(0x4000, b"ab"), write(0x5000, &(0..100).collect::<Vec<u8>>())];
    vec![
        event(110, [0; 6], 7, None),
        event(0, args(3, 0x2000, 5), 5, Some((0x2000, b"bytes".to_vec()))),
        event(0, args(3, 0x3000, 100), 100, Some((0x3000, (0..100).collect()))),
        event(4, args(0x1000, 0x2000, 0), -2, None),
        Event { writes: several, ..event(19, args(3, 0x1000, 2), 102, None) },
        event(7, args(0x1000, 2, 3), -2, None),
    ]
}

#[test]
fn calls_made_without_a_stop_are_events() {
    let dir = tempfile::tempdir().unwrap();
    let mut writer = sample::begin(dir.path());
    let all = sample::events();
    writer.event(&all[0]).unwrap();
    assert_eq!(writer.batch(TaskId(0), SpaceId(0), &[]).unwrap(), None);
    let last = writer.batch(TaskId(0), SpaceId(0), &calls()).unwrap();
    assert_eq!(last, expected().pop());
    assert_eq!(writer.next_id().0, 7);
    for event in &all[1..] {
        writer.event(event).unwrap();
    }
    let summary = sample::summary(&writer);
    writer.finish(&summary).unwrap();

    let trace = Trace::open(dir.path()).unwrap();
    let read: Vec<Event> = trace.events().map(|item| sample::inlined(&trace, item.unwrap().1)).collect();
    assert_eq!(read[..1], all[..1]);
    assert_eq!(read[1..7], expected());
    assert_eq!(read[7..], all[1..]);
    assert_eq!(trace::check(&trace), []);
    for from in 0..9 {
        let first = trace.event(guest::EventId(from)).unwrap();
        assert_eq!(sample::inlined(&trace, first), read[from as usize], "from {from}");
    }
}

/// A reading of the time stamp counter as a tracee notes it.
fn reading(head: u64) -> Vec<u8> {
    [head, 0x1012, 0x5_1234_5678].map(u64::to_le_bytes).concat()
}

#[test]
fn readings_are_events_of_instructions() {
    let dir = tempfile::tempdir().unwrap();
    let mut writer = sample::begin(dir.path());
    writer.event(&sample::events()[0]).unwrap();
    let bytes = [reading(0xffff_0000), calls(), reading(0x107_ffff_0001)].concat();
    writer.batch(TaskId(0), SpaceId(0), &bytes).unwrap();
    for head in [0xffff_0002, 0x107_ffff_0000, 0xfeff_0001] {
        assert!(writer.batch(TaskId(0), SpaceId(0), &reading(head)).is_err(), "{head:#x}");
    }
    writer.flush().unwrap();
    let trace = Trace::open(dir.path()).unwrap();
    let read: Vec<Event> = trace.events().map(Result::unwrap).map(|(_, event)| event).collect();
    let expected = |kind, rip, rcx| {
        let before = Registers { rip, ..Registers::default() };
        let after = Registers { rip: 0x1012, rax: 0x1234_5678, rdx: 5, rcx, ..Registers::default() };
        let stop = Stop::BufferedInstruction(kind);
        Event { stop, after, ..Event::in_place(TaskId(0), SpaceId(0), before, Fact::Instruction) }
    };
    assert_eq!(read[1], expected(Trapped::Rdtsc, 0x1010, 0));
    assert_eq!(read.last(), Some(&expected(Trapped::Rdtscp, 0x100f, 0x107)));
    assert_eq!((read.len(), read[1].writes.len()), (9, 0));
    let at = Registers { rip: 0x1010, rbx: 3, rcx: 4, r11: 5, rdx: 6, ..Registers::default() };
    let whole = read[1].clone().completed(&at);
    assert_eq!(whole.stop, Stop::Instruction(Trapped::Rdtsc));
    assert_eq!(whole.after, Registers { rip: 0x1012, rax: 0x1234_5678, rdx: 5, orig_rax: u64::MAX, ..at });
}

#[test]
fn what_is_not_a_call_is_refused_when_it_is_written() {
    let whole = calls();
    for cut in 1..whole.len() {
        let dir = tempfile::tempdir().unwrap();
        let mut writer = sample::begin(dir.path());
        writer.event(&sample::events()[0]).unwrap();
        let written = writer.batch(TaskId(0), SpaceId(0), &whole[..cut]);
        let at_an_end = [24, 80, 232, 272, 464].contains(&cut);
        match written {
            Ok(_) => assert!(at_an_end, "cut to {cut}"),
            Err(error) => assert!(!at_an_end && matches!(error, WriteError::Invalid(_)), "{cut}: {error}"),
        }
    }
    let mut writer = sample::begin(tempfile::tempdir().unwrap().path());
    writer.event(&sample::events()[0]).unwrap();
    for (bad, why) in [
        (noted(0, &[1; 7], 0xff, 0, &[]), "seven arguments"),
        (noted(0, &[1], 1, 1, b"x"), "what it wrote is behind an argument that it has not"),
        (noted(0, &[1], 0xff, 1, b"x"), "it wrote nowhere"),
        (noted(0, &[u64::MAX], 0, 1, b"x"), "it wrote outside user space"),
        (noted(0, &[1], 0xfe, 1, &pieces(&[(u64::MAX, b"x")])), "one of what it wrote is outside user space"),
        (
            noted(0, &[1], 0xfe, 1, &pieces(&[(0x1000, b"x")])[..16]),
            "the second half of what it wrote is not there",
        ),
        (
            noted(0, &[1], 0xfe, 1, &[&pieces(&[(0x1000, b"x")])[..], &[1; 8]].concat()),
            "what follows is no place",
        ),
    ] {
        assert!(writer.batch(TaskId(0), SpaceId(0), &bad).is_err(), "{why}");
    }
    assert!(writer.batch(TaskId(1), SpaceId(0), &whole).is_err(), "a task that is not there");
}

#[test]
fn what_follows_such_a_call_starts_where_it_ended() {
    let dir = tempfile::tempdir().unwrap();
    let mut writer = sample::begin(dir.path());
    let first = sample::events().remove(0);
    writer.event(&first).unwrap();
    writer.batch(TaskId(0), SpaceId(0), &calls()).unwrap();
    let killed = trace::Killed { signo: 9, core: false, unlocated: true };
    let exit = |regs| Event::in_place(TaskId(0), SpaceId(0), regs, Fact::Exit(trace::Status::Killed(killed)));
    let there = Registers { rip: 0x1012, rax: -2_i64 as u64, rbx: 9, ..Registers::default() };
    assert!(writer.event(&exit(Registers { rip: 0x1014, ..there })).is_err());
    assert!(writer.event(&exit(Registers { rax: 0, ..there })).is_err());
    writer.event(&exit(there)).unwrap();
    writer.flush().unwrap();
    let trace = Trace::open(dir.path()).unwrap();
    assert_eq!(trace.events().collect::<Result<Vec<_>, ReadError>>().unwrap().len(), 8);
}
