//! Calls that were made without a stop: one record for many of them, an event each when it is read. Pure: bytes in, events out.

use abi::calls::{Call, Piece, first};
use guest::{GuestAddr, Registers, SpaceId, TaskId};

use crate::event::{Data, Event, Fact, MemWrite, PayloadRef, Stop, SyscallInfo};
use crate::validate::Problem;

/// Length of the `syscall` instruction.
const LENGTH: u64 = 2;
/// What is read of this length lies in the event; what is longer, in the payload stream, where it is already.
const INLINE: usize = 64;

/// The events of `bytes`, which lie at `offset` in the payload stream. Ends after a problem.
pub(crate) fn events(
    of: (TaskId, SpaceId),
    offset: u64,
    bytes: &[u8],
) -> impl Iterator<Item = Result<Event, Problem>> {
    let mut at = 0;
    std::iter::from_fn(move || {
        let rest = bytes.get(at..).filter(|rest| !rest.is_empty())?;
        let offset = offset + at as u64;
        let Some((event, len)) = take_first(of, offset, rest) else {
            at = bytes.len();
            return Some(Err(Problem::Calls { offset }));
        };
        at += len;
        Some(Ok(event))
    })
}

/// The first event of `bytes`, and how long it is.
pub(crate) fn take_first(
    (task, space): (TaskId, SpaceId),
    offset: u64,
    bytes: &[u8],
) -> Option<(Event, usize)> {
    let (call, len) = first(bytes)?;
    Some((event(task, space, &call, offset), len))
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
