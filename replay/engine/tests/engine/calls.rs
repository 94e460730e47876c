//! System calls and readings of the time stamp counter that are prepared: what is left of them, where they end.

use backstory_engine::{
    Call, Config, Exit, MapRequest, MapSource, Mode, Reading, Sharing, Space, Trapped, Watch, WatchKind,
};
use guest::{GuestAddr, GuestMemory, GuestRange, Prot, Registers};

const MODES: [Mode; 4] = [Mode::Plain, Mode::Exact, Mode::Indexed, Mode::IndexedExact];
const CODE: u64 = 0x4000_0000;
const DATA: u64 = 0x4001_0000;
/// CF, DF, and what is always set.
const FLAGS: u64 = 0x603 & !0x200;

/// A loop: `mov %ebx, %eax; inc %rdi; syscall; jmp`.
const LOOP: [u8; 9] = [0x89, 0xd8, 0x48, 0xff, 0xc7, 0x0f, 0x05, 0xeb, 0xf7];
const AFTER: GuestAddr = GuestAddr(CODE + 7);

fn map(space: &mut Space, at: u64, prot: u64) {
    let request = MapRequest {
        range: GuestRange::new(GuestAddr(at), 4096),
        prot: Prot::from_bits(prot),
        shared: false,
        grows_down: false,
        no_reserve: false,
        source: MapSource::Zero,
    };
    space.map(&request).unwrap();
}

/// A space that stands before the loop.
fn looping(mode: Mode) -> Space {
    let mut space = Space::new(&Config { mode, log_bytes: 1 << 20, ..Config::default() }).unwrap();
    map(&mut space, CODE, 7);
    map(&mut space, DATA, 3);
    space.write(GuestAddr(CODE), &LOOP).unwrap();
    let start =
        Registers { rip: CODE, rbx: 110, rdi: 0, rsi: DATA, eflags: 0x202 | FLAGS, ..space.registers() };
    space.set_registers(&start);
    space
}

/// The call of so many rounds.
fn call<'a>(round: u64, wrote: &'a [(GuestAddr, &'a [u8])]) -> Call<'a> {
    Call {
        after: AFTER,
        number: 110,
        args: [round, DATA, 0, 0, 0, 0],
        compared: 2,
        result: -(round as i64),
        wrote,
    }
}

/// Where such a call writes.
fn place(round: u64) -> GuestAddr {
    GuestAddr(DATA + 8 * round)
}

/// Runs until something stops it, which is a call; the rounds made, each with what was retired before its call.
#[track_caller]
fn made(space: &mut Space) -> Vec<u64> {
    assert_eq!(space.run(None).unwrap(), Exit::Syscall);
    assert_eq!(space.registers().pc(), GuestAddr(CODE + 5));
    space.take_made_calls().iter().map(|made| made.retired).collect()
}

#[test]
fn calls_leave_what_the_kernel_leaves() {
    for mode in MODES {
        let mut space = looping(mode);
        let wrote = [[1u8; 13], [2; 13], [3; 13]];
        for (round, wrote) in (1..).zip(&wrote) {
            assert!(space.prepare_call(&call(round, &[(place(round), wrote)])));
        }
        let before = space.registers();
        assert_eq!(made(&mut space), [2, 5, 8], "{mode:?}");
        assert_eq!(space.retired(), 11);
        let eflags = space.registers().eflags;
        // `inc` leaves CF alone.
        assert_eq!((eflags & (FLAGS | 0x40), eflags & 1), (FLAGS, 1), "{mode:?}");
        let left = Registers {
            rip: CODE + 5,
            rax: 110,
            rdi: 4,
            rcx: AFTER.0,
            // Of the last call: its argument's parity is even.
            r11: eflags | 4,
            eflags,
            orig_rax: u64::MAX,
            ..before
        };
        assert_eq!(space.registers(), left, "{mode:?}");
        let mut bytes = [0; 40];
        space.read(GuestAddr(DATA), &mut bytes).unwrap();
        assert_eq!((bytes[7..17].to_vec(), bytes[36]), ([vec![0], vec![1; 8], vec![2]].concat(), 3));
        // None is prepared any more.
        space.set_registers(&Registers { rip: CODE, ..left });
        assert_eq!(made(&mut space), []);
    }
}

#[test]
fn readings_leave_what_the_instruction_leaves() {
    // A loop: `inc %rdi; rdtsc; mov %rdx, %rsi; rdtscp; jmp`.
    let code = [0x48, 0xff, 0xc7, 0x0f, 0x31, 0x48, 0x89, 0xd6, 0x0f, 0x01, 0xf9, 0xeb, 0xf3];
    let (first, second) = (GuestAddr(CODE + 5), GuestAddr(CODE + 11));
    let alone = |ticks| Reading { after: first, ticks, processor: None };
    let both = |ticks| Reading { after: second, ticks, processor: Some(0x8000_1007) };
    for mode in MODES {
        let mut space = looping(mode);
        space.write(GuestAddr(CODE), &code).unwrap();
        let start = Registers { rax: 7, rcx: 8, r11: 9, ..space.registers() };
        space.set_registers(&start);
        let mut run = |prepared: &[Reading], at: u64, kind: Trapped| {
            prepared.iter().for_each(|reading| assert!(space.prepare_reading(reading)));
            assert_eq!(space.run(None).unwrap(), Exit::Instruction(kind), "{mode:?}");
            assert_eq!(space.registers().pc(), GuestAddr(CODE + at), "{mode:?}");
            let made: Vec<u64> = space.take_made_calls().iter().map(|made| made.retired).collect();
            (space.registers(), made)
        };
        let (left, made) = run(&[alone(0x9_8765_4321)], 8, Trapped::Rdtscp);
        assert_eq!(made, [1], "{mode:?}");
        // `inc` leaves CF alone.
        assert_eq!(left.eflags & (FLAGS | 0x40), FLAGS, "{mode:?}");
        let (rip, rax, rdx, eflags) = (CODE + 8, 0x8765_4321, 9, left.eflags);
        let orig_rax = u64::MAX;
        assert_eq!(left, Registers { rip, rax, rdx, rsi: 9, rdi: 1, eflags, orig_rax, ..start }, "{mode:?}");
        // One of the other kind is none that fits, nor is one elsewhere.
        let (left, made) = run(&[Reading { after: second, ..alone(5) }, both(6)], 8, Trapped::Rdtscp);
        assert_eq!((left.rax, made), (rax, vec![]), "{mode:?}");
        let (left, made) = run(&[both(3 << 32 | 4), alone(7)], 8, Trapped::Rdtscp);
        assert_eq!(made.len(), 2, "{mode:?}");
        let (rax, rdx, rsi, rcx, eflags) = (7, 0, 0, 0x8000_1007, left.eflags);
        assert_eq!(
            left,
            Registers { rip, rax, rdx, rsi, rcx, rdi: 2, eflags, orig_rax, ..start },
            "{mode:?}"
        );
    }
}

#[test]
fn calls_write_in_several_places() {
    for mode in MODES {
        let mut space = looping(mode);
        let first = [(place(1), &b"some"[..]), (place(4), b"more bytes"), (place(1), b"S")];
        assert!(space.prepare_call(&call(1, &first)));
        assert!(space.prepare_call(&call(2, &[(GuestAddr(DATA + 13), b"x"), (place(3), b"eight by")])));
        assert_eq!(made(&mut space), [2, 5], "{mode:?}");
        let mut bytes = [0; 45];
        space.read(GuestAddr(DATA), &mut bytes).unwrap();
        assert_eq!(bytes, *b"\0\0\0\0\0\0\0\0Some\0x\0\0\0\0\0\0\0\0\0\0eight bymore bytes\0\0\0");
    }
}

#[test]
fn the_log_is_handed_out_call_by_call() {
    for mode in [Mode::Indexed, Mode::IndexedExact] {
        let mut space = looping(mode);
        (1..=3).for_each(|round| assert!(space.prepare_call(&call(round, &[]))));
        assert_eq!(space.run(None).unwrap(), Exit::Syscall);
        let calls = space.take_made_calls();
        let mut parts = Vec::new();
        for call in calls.iter().map(Some).chain([None]) {
            space.look_back(call);
            parts.push(space.drain_log());
        }
        // In each round a block up to the call, and from the second on the jump before it.
        assert!(parts.iter().all(|part| !part.is_empty()), "{parts:?}");
        assert_eq!(parts[1], parts[2]);
        assert_eq!(parts[1], parts[3]);
        assert_eq!(space.drain_log(), []);
    }
}

#[test]
fn a_call_that_differs_is_not_made() {
    let differ: [fn(&mut Call<'_>); 6] = [
        |call| call.after = GuestAddr(AFTER.0 + 1),
        |call| call.number = 111,
        |call| call.args[0] = 9,
        |call| call.args[1] = 9,
        // Nothing is there.
        |call| call.wrote = &[(GuestAddr(0x7777_0000), b"bytes")],
        // Nor behind some that can be written.
        |call| call.wrote = &[(GuestAddr(DATA + 16), b"bytes"), (GuestAddr(0x7777_0000), b"bytes")],
    ];
    for mode in MODES {
        for change in differ {
            let mut space = looping(mode);
            let wrote: [(GuestAddr, &[u8]); 1] = [(place(2), b"bytes")];
            let mut second = call(2, &wrote);
            change(&mut second);
            [call(1, &[]), second, call(3, &[])].iter().for_each(|call| assert!(space.prepare_call(call)));
            let before = space.registers();
            assert_eq!(made(&mut space), [2]);
            let now = space.registers();
            let expected = Registers {
                rip: now.rip,
                rax: 110,
                rdi: 2,
                rcx: AFTER.0,
                r11: now.eflags,
                eflags: now.eflags,
                orig_rax: u64::MAX,
                ..before
            };
            assert_eq!(now, expected, "{mode:?}");
        }
        let mut space = looping(mode);
        let mut first = call(1, &[]);
        // What is not compared may differ, and so may the high half of rax.
        (first.compared, first.args[1]) = (1, 9);
        space.set_registers(&Registers { rax: u64::MAX, ..space.registers() });
        assert!(space.prepare_call(&first));
        assert_eq!(made(&mut space), [2]);
    }
}

#[test]
fn code_that_a_call_writes_is_run_as_written() {
    for mode in MODES {
        let mut space = looping(mode);
        // The kernel overwrites the loop: `mov $7, %ebx` and a jump back in place of the first jump.
        let new = [0xbb, 111, 0, 0, 0, 0xeb, 0xf2];
        let wrote: [(GuestAddr, &[u8]); 1] = [(AFTER, &new)];
        let over = call(2, &wrote);
        let mut next = call(3, &[]);
        next.number = 111;
        [call(1, &[]), over, next].iter().for_each(|call| assert!(space.prepare_call(call)));
        // Blocks came from that page: it is performed from outside.
        assert_eq!(made(&mut space), [2], "{mode:?}");
        space.write(AFTER, &new).unwrap();
        space.set_registers(&Registers { rip: AFTER.0, ..space.registers() });
        assert!(space.prepare_call(&next));
        assert_eq!(space.run(None).unwrap(), Exit::Syscall);
        assert_eq!((space.take_made_calls().len(), space.registers().rbx), (1, 111), "{mode:?}");
    }
}

#[test]
fn none_is_prepared_where_it_would_not_be_noticed() {
    let mut space = looping(Mode::Plain);
    let mut room = 0;
    while space.prepare_call(&call(1, &[(place(1), &[0; 100])])) {
        room += 1;
    }
    assert!((100..1000).contains(&room), "{room}");
    let mut copy = space.fork(Sharing::Copied).unwrap();
    assert_eq!(made(&mut copy), []);
    assert_eq!(made(&mut space), [2]);
    space
        .set_watchpoints(&[Watch { range: GuestRange::new(GuestAddr(DATA), 8), kind: WatchKind::Write }])
        .unwrap();
    assert!(!space.prepare_call(&call(1, &[])));
}
