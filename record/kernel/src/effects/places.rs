//! Where a call about to run may write, and where it is told so: what is needed to have it write elsewhere.

use guest::{GuestAddr, GuestMemory, GuestRange, Unmapped};

use super::{Described, describe, iovecs, message, room, set_bytes};
use crate::call::Call;
use crate::row::{Arg, Effect, Hand, Kind, Struct};
use crate::structs;
use crate::table;

/// Memory that a call may write.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Place {
    /// All that it may write there.
    pub range: GuestRange,
    /// Whether the kernel reads it, too.
    pub read: bool,
    /// What tells the kernel where it is.
    pub pointer: Pointer,
}

/// What tells the kernel where memory is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Pointer {
    /// The argument at this position.
    Argument(u8),
    /// The word at this address, which lies in another place of the call.
    Word(GuestAddr),
}

/// The memory that a call about to run may write through pointers, structures that hold such pointers included. `None` where it
/// must use the memory in place (words by which tasks wait for each other, pages that a pipe refers to), where that is not described, or
/// where its arguments cannot be read, so that it is about to fail.
pub fn places(call: &Call, mem: &dyn GuestMemory) -> Option<Vec<Place>> {
    if IN_PLACE.contains(&call.nr) {
        return None;
    }
    let Described { args, effect, .. } = describe(call).ok()?;
    let mut places = Places { list: Vec::new() };
    match effect {
        Effect::Args => by_arguments(call, args, mem, &mut places).ok()?,
        Effect::Hand(hand) => by_hand(hand, call, mem, &mut places).ok()??,
    }
    Some(places.list)
}

const FUTEX: u32 = table::number("futex");
/// A pipe that memory is put into shows what that holds when it is read.
const VMSPLICE: u32 = table::number("vmsplice");
const IN_PLACE: [u32; 2] = [FUTEX, VMSPLICE];
const POLL: u32 = table::number("poll");
/// `struct mmsghdr`.
const MESSAGE: u64 = message::ENTRY;

struct Places {
    list: Vec<Place>,
}

impl Places {
    /// What is behind the argument at `position`, unless that is NULL.
    fn argument(&mut self, call: &Call, position: u8, len: u64, read: bool) {
        self.push(call.args[usize::from(position)], len, read, Pointer::Argument(position));
    }

    fn push(&mut self, at: u64, len: u64, read: bool, pointer: Pointer) {
        let range = GuestRange::new(GuestAddr(at), len);
        if at != 0 && !range.is_empty() {
            self.list.push(Place { range, read, pointer });
        }
    }

    /// The buffers of a vector that lies at `at`, and the vector.
    fn vector(
        &mut self,
        at: u64,
        count: u64,
        pointer: Pointer,
        mem: &dyn GuestMemory,
    ) -> Result<(), Unmapped> {
        let entries = iovecs(at, count, mem)?;
        self.push(at, 16 * entries.len() as u64, true, pointer);
        for (word, (base, len)) in (at..).step_by(16).zip(entries) {
            self.push(base, len, false, Pointer::Word(GuestAddr(word)));
        }
        Ok(())
    }

    /// What the header of a message to be received, itself in a place already, points to.
    fn message(&mut self, header: GuestAddr, mem: &dyn GuestMemory) -> Result<(), Unmapped> {
        let field = |offset| header.wrapping_add(offset);
        let word = |offset| mem.read_u64(field(offset));
        let name_len = u64::from(mem.read_u32(field(message::NAME_LENGTH))?);
        self.push(word(0)?, name_len, false, Pointer::Word(header));
        let vector = Pointer::Word(field(message::VECTOR));
        self.vector(word(message::VECTOR)?, word(message::VECTOR_LENGTH)?, vector, mem)?;
        let control = Pointer::Word(field(message::CONTROL));
        self.push(word(message::CONTROL)?, word(message::CONTROL_LENGTH)?, false, control);
        Ok(())
    }
}

fn by_arguments(
    call: &Call,
    args: [&[Arg]; 2],
    mem: &dyn GuestMemory,
    places: &mut Places,
) -> Result<(), Unmapped> {
    for (arg, position) in args.into_iter().flatten().zip(0u8..) {
        match arg.kind {
            Kind::Out(size, _) => places.argument(call, position, room(call, size), false),
            Kind::InOut(size, _) => places.argument(call, position, room(call, size), true),
            Kind::OutIov(count) => {
                let at = call.args[usize::from(position)];
                let count = call.args[usize::from(count)];
                places.vector(at, count, Pointer::Argument(position), mem)?;
            }
            _ => {}
        }
    }
    Ok(())
}

/// `None` where the effect is of a kind that no call has which waits.
fn by_hand(
    hand: Hand,
    call: &Call,
    mem: &dyn GuestMemory,
    places: &mut Places,
) -> Result<Option<()>, Unmapped> {
    const SIGINFO: u64 = 128;
    const TIME: u64 = 16;
    let size = |one: Struct| u64::from(one.size);
    match hand {
        Hand::Poll => {
            places.argument(call, 0, u64::from(call.args[1] as u32) * size(structs::POLLFD), true);
            if call.nr != POLL {
                places.argument(call, 2, TIME, true);
            }
        }
        Hand::Select => {
            for position in 1..4 {
                places.argument(call, position, set_bytes(call.args[0]), true);
            }
            places.argument(call, 4, TIME, true);
        }
        Hand::Waitid => {
            places.argument(call, 2, SIGINFO, true);
            places.argument(call, 4, size(structs::RUSAGE), false);
        }
        Hand::Recvmsg => {
            places.argument(call, 1, message::MESSAGE_LENGTH, true);
            places.message(GuestAddr(call.args[1]), mem)?;
        }
        Hand::Recvmmsg => {
            let count = message::count(call);
            places.argument(call, 1, count * MESSAGE, true);
            for at in 0..count {
                places.message(GuestAddr(call.args[1]).wrapping_add(at * MESSAGE), mem)?;
            }
            places.argument(call, 4, TIME, true);
        }
        Hand::Sendmmsg => places.argument(call, 1, message::count(call) * MESSAGE, true),
        _ => return Ok(None),
    }
    Ok(Some(()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::Bytes;
    use crate::row::Class;

    #[track_caller]
    fn check(name: &str, args: &[u64], mem: &Bytes, expected: &[(u64, u64, bool, Pointer)]) {
        let mut all = [0; 6];
        all[..args.len()].copy_from_slice(args);
        let call = Call::enter(table::number(name), all, mem);
        let found: Vec<_> = places(&call, mem)
            .unwrap()
            .iter()
            .map(|place| (place.range.start.0, place.range.len(), place.read, place.pointer))
            .collect();
        assert_eq!(found, expected, "{name}{args:x?}");
    }

    #[test]
    fn places_are_told_with_their_pointers() {
        use Pointer::{Argument, Word};
        let word = |at| Word(GuestAddr(at));
        let mut mem = Bytes::default();
        check("read", &[3, 0x1000, 5], &mem, &[(0x1000, 5, false, Argument(1))]);
        check("read", &[3, 0, 5], &mem, &[]);
        check(
            "wait4",
            &[1, 0x1000, 0, 0x2000],
            &mem,
            &[(0x1000, 4, false, Argument(1)), (0x2000, 144, false, Argument(3))],
        );
        check(
            "ppoll",
            &[0x1000, 2, 0x2000],
            &mem,
            &[(0x1000, 16, true, Argument(0)), (0x2000, 16, true, Argument(2))],
        );
        check(
            "select",
            &[65, 0x1000, 0, 0x3000, 0],
            &mem,
            &[(0x1000, 16, true, Argument(1)), (0x3000, 16, true, Argument(3))],
        );
        mem.put_u32(0x5000, 16);
        check(
            "accept",
            &[3, 0x4000, 0x5000],
            &mem,
            &[(0x4000, 16, false, Argument(1)), (0x5000, 4, true, Argument(2))],
        );
        // A vector of two.
        for (at, value) in (0x6000..).step_by(8).zip([0x7000, 10, 0x8000, 20]) {
            mem.put_u64(at, value);
        }
        let buffers = [(0x7000, 10, false, word(0x6000)), (0x8000, 20, false, word(0x6010))];
        check("readv", &[3, 0x6000, 2], &mem, &[&[(0x6000, 32, true, Argument(1))], &buffers[..]].concat());
        // A message: name, its length, vector, its length, control, its length.
        for (at, value) in (0x9000..).step_by(8).zip([0xa000, 28, 0x6000, 2, 0xb000, 64, 0]) {
            mem.put_u64(at, value);
        }
        let vector = (0x6000, 32, true, word(0x9010));
        let mut expected = vec![(0x9000, 56, true, Argument(1)), (0xa000, 28, false, word(0x9000)), vector];
        expected.extend(buffers);
        expected.push((0xb000, 64, false, word(0x9020)));
        check("recvmsg", &[3, 0x9000], &mem, &expected);
    }

    #[test]
    fn what_others_look_at_meanwhile_is_used_in_place() {
        let lock_pi = Call::finished(FUTEX, [0x1000, 6, 0, 0, 0, 0], 0);
        assert_eq!(places(&lock_pi, &Bytes::default()), None);
        let vmsplice = Call::finished(VMSPLICE, [3, 0x1000, 0, 0, 0, 0], 0);
        assert_eq!(places(&vmsplice, &Bytes::default()), None);
    }

    #[test]
    fn all_calls_that_may_wait_and_write_are_described() {
        let mut mem = Bytes::default();
        mem.zero(0x1000, 0x2_0000);
        let waits = table::all().filter(|row| row.class == Class::MayBlock && row.requests.is_none());
        for row in
            waits.filter(|row| !IN_PLACE.contains(&row.nr) && row.effect != Effect::Hand(Hand::Restart))
        {
            let call = Call::enter(row.nr, [0x1000; 6], &mem);
            assert!(places(&call, &mem).is_some(), "{}", row.name);
        }
    }
}
