//! Calls and readings that were made without a stop: one record for many of them, an event each when it is read. Pure: bytes in, events
//! out.

use abi::calls::{Call, Noted, Piece, Reading, first};
use guest::{GuestAddr, Registers, SpaceId, TaskId};

use crate::event::{Data, Event, Fact, MemWrite, PayloadRef, Stop, SyscallInfo, Trapped};
use crate::validate::{Problem, check_write_place};

/// Length of the `syscall` instruction.
const LENGTH: u64 = 2;
/// What is read of this length lies in the event; what is longer, in the payload stream, where it is already.
const INLINE: usize = 64;

/// How many calls `bytes` hold, and where the last begins, if all that can be wrong with the event of each is not; else which one it is. So
/// that an event need not be made of every call, just to see that it could be.
pub(crate) fn sound(offset: u64, bytes: &[u8]) -> Result<(u32, usize), (u32, Problem)> {
    let (mut count, mut last, mut at) = (0, 0, 0);
    while at < bytes.len() {
        let undecoded = || (count, Problem::Calls { offset: offset + at as u64 });
        let (noted, len) = first(&bytes[at..]).ok_or_else(undecoded)?;
        let wrote = match noted {
            Noted::Call(call) => call.wrote,
            Noted::Reading(_) => abi::calls::Wrote::default(),
        };
        for piece in wrote {
            let checked = check_write_place(GuestAddr(piece.to), piece.bytes.len() as u64);
            checked.map_err(|problem| (count, problem))?;
        }
        count += 1;
        (last, at) = (at, at + len);
    }
    Ok((count, last))
}

/// The first event of `bytes`, and how long it is.
pub(crate) fn take_first(
    (task, space): (TaskId, SpaceId),
    offset: u64,
    bytes: &[u8],
) -> Option<(Event, usize)> {
    let (noted, len) = first(bytes)?;
    let event = match noted {
        Noted::Call(call) => event(task, space, &call, offset),
        Noted::Reading(reading) => of_reading(task, space, &reading),
    };
    Some((event, len))
}

fn of_reading(task: TaskId, space: SpaceId, reading: &Reading) -> Event {
    let rip = reading.after.wrapping_sub(reading.instruction_len());
    let before = Registers { rip, ..Registers::default() };
    let kind = if reading.processor.is_some() { Trapped::Rdtscp } else { Trapped::Rdtsc };
    Event {
        stop: Stop::BufferedInstruction(kind),
        after: Registers {
            rip: reading.after,
            rax: reading.ticks & 0xffff_ffff,
            rdx: reading.ticks >> 32,
            rcx: reading.processor.unwrap_or_default().into(),
            ..before
        },
        ..Event::in_place(task, space, before, Fact::Instruction)
    }
}

fn event(task: TaskId, space: SpaceId, call: &Call<'_>, offset: u64) -> Event {
    let Call { nr, after, result, args, wrote } = *call;
    let [rdi, rsi, rdx, r10, r8, r9] = args;
    let rip = after.wrapping_sub(LENGTH);
    let before = Registers { rip, rax: u64::from(nr), rdi, rsi, rdx, r10, r8, r9, ..Registers::default() };
    let data = |piece: &Piece<'_>| match piece.bytes.len() {
        0..=INLINE => Data::Inline(piece.bytes.to_vec()),
        len => Data::Payload(PayloadRef { offset: offset + piece.start as u64, len: len as u32 }),
    };
    let writes = wrote.map(|piece| MemWrite { addr: GuestAddr(piece.to), data: data(&piece) }).collect();
    let info = SyscallInfo { nr, args, result: Some(result), output: None, output_crc: 0 };
    Event {
        task,
        space,
        stop: Stop::Buffered,
        before,
        after: Registers { rip: after, rax: result as u64, ..before },
        xstate: None,
        maps: Vec::new(),
        writes,
        fact: Fact::Syscall(info),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::validate::{Bounds, check_alone};

    #[test]
    fn what_is_sound_is_what_events_can_be_made_of() {
        let call = |to: u64, wrote: &[u8]| {
            let head = 1u64 << 16 | (wrote.len() as u64) << 32;
            let mut bytes: Vec<u8> =
                [head, 0x1000, 5, to].iter().flat_map(|word| word.to_le_bytes()).collect();
            bytes.extend(wrote);
            bytes.resize(bytes.len().next_multiple_of(8), 0);
            bytes
        };
        // In two places: 8 bytes and 5.
        let places = [0x3000u64, 8, 1, 1 << 50, 5, 2].map(u64::to_le_bytes).concat();
        let mut several = call(0, &places);
        several[3] = abi::calls::SEVERAL;
        let reading = |head: u64| [head, 0x1002, 77].map(u64::to_le_bytes).concat();
        let readings = [reading(0xffff_0000), reading(0x5_ffff_0001)].concat();
        let calls =
            [call(0x2000, &[7; 9]), call(0, &[]), readings, several, call(1 << 55, &[8; 100])].concat();
        let mut tried =
            vec![calls.clone(), Vec::new(), [calls.clone(), call(u64::MAX - 3, &[1; 8])].concat()];
        for at in 0..calls.len() {
            tried.push(calls[..at].to_vec());
            for bit in 0..8 {
                let mut damaged = calls.clone();
                damaged[at] ^= 1 << bit;
                tried.push(damaged);
            }
        }
        for bytes in tried {
            let bounds = Bounds { files: 0, payload: 64 + bytes.len() as u64, pieces: &[] };
            let (mut count, mut problem, mut at) = (0, None, 0);
            while at < bytes.len() && problem.is_none() {
                let offset = 64 + at as u64;
                let taken = take_first((TaskId(0), SpaceId(0)), offset, &bytes[at..]);
                let checked = taken.ok_or(Problem::Calls { offset }).and_then(|(event, len)| {
                    at += len;
                    check_alone(&event, bounds)
                });
                match checked {
                    Ok(()) => count += 1,
                    Err(found) => problem = Some((count, found)),
                }
            }
            match sound(64, &bytes) {
                Ok((found, last)) => {
                    assert_eq!((found, problem), (count, None));
                    assert!(
                        count == 0 || first(&bytes[last..]).is_some_and(|(_, len)| last + len == bytes.len())
                    );
                }
                Err(found) => assert_eq!(Some(found), problem),
            }
        }
    }
}
