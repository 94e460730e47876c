//! The same of readings of the time stamp counter.

use std::collections::BTreeSet;
use std::mem;

use abi::buffer::{
    CODE, HEAD, RING, SITE, STUBS, TSC_FOR, TSC_FROM, TSC_PROCESSOR, TSC_RATE, TSC_TICKS, TSC_TOLD,
};
use abi::calls::{Noted, Reading};
use buffer::{Standing, Used, standing};

use super::{GETPPID, GUEST, STACK, Scene, Tracee, scene};

/// The time stamp counter is read, alone or with the processor's number.
#[derive(Clone, Copy)]
struct Read {
    both: bool,
    flags: u64,
    go: u32,
    head: u32,
    /// How long what is known holds.
    holds: u64,
    /// The newest reading before.
    told: u64,
    /// Whether the code makes it itself.
    made: bool,
}

const PLAIN: Read = Read { both: false, flags: 0x202, go: 1, head: 0, holds: u64::MAX, told: 0, made: true };
/// What a reading is reckoned of.
const RATE: u64 = 3 << 32;
const TICKS: u64 = 0x1234_5678_9abc;
const PROCESSOR: u64 = 0x1007;

fn raw_clock() -> u64 {
    // SAFETY: the structure is plain numbers, and filled by the call.
    unsafe {
        let mut now: libc::timespec = mem::zeroed();
        libc::clock_gettime(libc::CLOCK_MONOTONIC_RAW, &mut now);
        now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
    }
}

impl Read {
    /// A task at the start of the stub, and the clock then.
    fn start(self) -> (Tracee, u64) {
        let scene = Scene { flags: self.flags, go: self.go, head: self.head, ..scene(GETPPID, &[]) };
        let tracee = Tracee::at(&scene, STUBS + 16);
        let mut stub = vec![0x48, 0xc7, 0x04, 0x25];
        stub.extend((SITE as u32).to_le_bytes());
        stub.extend((STUBS as u32).to_le_bytes());
        let from = STUBS + 16 + stub.len() as u64 + 5;
        stub.push(0xe9);
        stub.extend((buffer::reading(self.both).wrapping_sub(from) as u32).to_le_bytes());
        tracee.write(STUBS + 16, &stub);
        let now = raw_clock();
        for (at, word) in [
            (TSC_FROM, now),
            (TSC_FOR, self.holds),
            (TSC_RATE, RATE),
            (TSC_TICKS, TICKS),
            (TSC_PROCESSOR, PROCESSOR),
            (TSC_TOLD, self.told),
        ] {
            tracee.write(at, &word.to_le_bytes());
        }
        (tracee, now)
    }

    /// Where it is read in vain.
    fn trap(self, tracee: &Tracee) -> u64 {
        let bytes: &[u8] = if self.both { &[0x0f, 0x01, 0xf9] } else { &[0x0f, 0x31] };
        let code = tracee.read(CODE, buffer::code().len());
        let at = code.windows(bytes.len()).rposition(|window| window == bytes).unwrap();
        assert!(buffer::is_reading(CODE + at as u64));
        CODE + at as u64
    }

    /// Checks what a task shows that has come out, having begun at a time of the clock.
    #[track_caller]
    fn check(self, what: &str, tracee: &Tracee, begun: u64) {
        let (mut words, memory) = tracee.state();
        let head = u32::from_le_bytes(tracee.read(HEAD, 4).try_into().unwrap());
        let mut expected = [
            GUEST + 2,
            GETPPID,
            101,
            107,
            0x33,
            0x22,
            0x11,
            102,
            STACK,
            0x55,
            0x66,
            0x44,
            108,
            103,
            104,
            105,
            106,
            self.flags,
        ];
        if self.made {
            let told = words[4] << 32 | words[1];
            assert!(words[1] >> 32 == 0 && words[4] >> 32 == 0, "{what}");
            let latest = TICKS + (raw_clock() - begun) * 3;
            match self.told {
                0 => assert!((TICKS + 1..latest).contains(&told), "{what}: {told:#x}"),
                before => assert_eq!(told, before + 1, "{what}"),
            }
            (words[1], words[4]) = (expected[1], expected[4]);
            expected[3] = if self.both { PROCESSOR } else { 107 };
            assert_eq!(tracee.read(TSC_TOLD, 8), told.to_le_bytes(), "{what}");
            let bytes = tracee.read(RING + u64::from(self.head), (head - self.head) as usize);
            let processor = self.both.then_some(PROCESSOR as u32);
            let reading = Reading { after: GUEST + 2, ticks: told, processor };
            assert_eq!(abi::calls::first(&bytes), Some((Noted::Reading(reading), bytes.len())), "{what}");
        } else {
            expected[0] = self.trap(tracee);
            assert_eq!(head, self.head, "{what}");
        }
        assert_eq!(words, expected, "{what}");
        assert!(memory[..64].iter().all(|byte| *byte == b'x') && memory[64..].iter().all(|byte| *byte == 0));
    }

    fn stands(self, what: &str, tracee: &Tracee) {
        let regs = tracee.registers();
        let word = |at: u64| Some(u64::from_le_bytes(tracee.read(at, 8).try_into().unwrap()));
        let args = [regs.rdi, regs.rsi, regs.rdx, regs.r10, regs.r8, regs.r9];
        let libc::user_regs_struct { rax, rbx, rcx, rbp, r11, r12, rsp, eflags, .. } = regs;
        let now = Used { rax, args, rbx, rbp, r12, rcx, r11, rsp, eflags: eflags & !0x1_0000 };
        let args = [0x11, 0x22, 0x33, 0x44, 0x55, 0x66];
        let (rbx, rcx, rbp, r11, r12, rsp) = (101, 107, 102, 108, 103, STACK);
        let at = Used { rax: GETPPID, args, rbx, rbp, r12, rcx, r11, rsp, eflags: self.flags };
        let head = u32::from_le_bytes(tracee.read(HEAD, 4).try_into().unwrap());
        let expected = match (CODE..STUBS).contains(&regs.rip) {
            false => None,
            true if head != self.head => Some(Standing::Behind),
            true => Some(Standing::AtReading(at)),
        };
        assert_eq!(standing(regs.rip, now, word), expected, "{what}, at {:#x}", regs.rip);
    }
}

/// Checks a reading, wherever its task is stopped on the way.
#[track_caller]
fn reads(what: &str, read: Read) {
    let (stepped, _) = read.start();
    let ends = [GUEST + 2, read.trap(&stepped)];
    let mut seen = BTreeSet::new();
    while !ends.contains(&stepped.registers().rip) {
        seen.insert(stepped.registers().rip);
        stepped.step();
    }
    assert!(seen.len() > 20, "{what}");
    let run_out = |tracee: &Tracee| {
        tracee.break_at(2, ends[1]);
        tracee.run_to(GUEST + 2);
    };
    let (unhindered, begun_unhindered) = read.start();
    run_out(&unhindered);
    read.check(what, &unhindered, begun_unhindered);
    for at in seen {
        let (stopped, begun) = read.start();
        if at != STUBS + 16 {
            assert!(stopped.run_to(at), "{what}: {at:#x} is not met");
        }
        if (CODE..STUBS).contains(&at) {
            assert_eq!(stopped.read(SITE, 8), STUBS.to_le_bytes(), "{what}, at {at:#x}");
        }
        read.stands(what, &stopped);
        run_out(&stopped);
        read.check(&format!("{what}, stopped at {at:#x}"), &stopped, begun);
    }
}

#[test]
fn the_time_stamp_counter_is_read() {
    for both in [false, true] {
        let plain = Read { both, ..PLAIN };
        reads("a reading", plain);
        reads("flags", Read { flags: 0x202 | 0x8d5 | 0x400, ..plain });
        reads("far in the ring", Read { head: 200_000, ..plain });
        reads("as late as before", Read { told: 1 << 60, ..plain });
        reads("not at present", Read { go: 0, made: false, ..plain });
        reads("no room", Read { head: 262_000, made: false, ..plain });
        reads("nothing is known", Read { holds: 0, made: false, ..plain });
        reads(
            "what is known holds no more",
            Read { holds: 1000, flags: 0x202 | 0x8d5, made: false, ..plain },
        );
    }
}
