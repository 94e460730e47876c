//! How calls are noted that were made without a stop, and readings of the time stamp counter: one after the other, in words of 8 bytes.
//!
//! A call is [`HEAD`] bytes, its arguments, and what it wrote, filled up to a whole word. The head holds the number (16 bits), how many
//! arguments follow (8 bits), which of them points to what it wrote (8 bits; [`NOTHING`], [`SEVERAL`]) and how many bytes that are (32
//! bits); the address after the `syscall` instruction; the result. Where it wrote in several places, these bytes are, for each: the
//! address, the length, the bytes, filled up to a whole word.
//!
//! A reading is [`HEAD`] bytes, too. Its head holds whether the processor was read with it (16 bits: 1 for `rdtscp`, else 0), [`READING`] in
//! place of how many arguments follow, [`NOTHING`], and the processor's number (32 bits); the address after the instruction; the counter.

/// Bytes before the arguments.
pub const HEAD: usize = 24;
/// In place of the argument that points to what was written: nothing was.
pub const NOTHING: u8 = 0xff;
/// Likewise: it wrote in several places, or in none. In recordings since version 1.6.
pub const SEVERAL: u8 = 0xfe;
/// In place of the number of arguments: no call. In recordings since version 1.7; no call has so many.
pub const READING: u8 = 0xff;

/// What is noted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Noted<'a> {
    /// A call.
    Call(Call<'a>),
    /// A reading of the time stamp counter.
    Reading(Reading),
}

/// A reading of the time stamp counter that was made without a stop.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Reading {
    /// The address after the instruction.
    pub after: u64,
    /// The counter.
    pub ticks: u64,
    /// The processor's number, where that was read as well (`rdtscp`).
    pub processor: Option<u32>,
}

impl Reading {
    /// Length of the instruction.
    pub const fn instruction_len(&self) -> u64 {
        if self.processor.is_some() { 3 } else { 2 }
    }
}

/// A call that was made without a stop.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Call<'a> {
    /// Its number.
    pub nr: u32,
    /// The address after the instruction.
    pub after: u64,
    /// What rax held on return.
    pub result: i64,
    /// Its arguments; those it does not have are 0.
    pub args: [u64; 6],
    /// What it wrote.
    pub wrote: Wrote<'a>,
}

/// What a call wrote: an iterator of pieces.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Wrote<'a> {
    /// Where, if that is one place.
    to: Option<u64>,
    bytes: &'a [u8],
    /// Where `bytes` begin in what the call was taken from.
    start: usize,
}

/// Bytes that a call wrote.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Piece<'a> {
    /// Where.
    pub to: u64,
    /// What.
    pub bytes: &'a [u8],
    /// Where that begins in what the call was taken from.
    pub start: usize,
}

impl<'a> Wrote<'a> {
    /// The first piece off several; `None` where there is not a whole one.
    fn take_first(&mut self) -> Option<Piece<'a>> {
        const HEAD: usize = 16;
        let (to, len) = (word(self.bytes, 0)?, usize::try_from(word(self.bytes, 8)?).ok()?);
        let end = HEAD.checked_add(len)?.checked_next_multiple_of(8)?;
        let piece = Piece { to, bytes: self.bytes.get(HEAD..HEAD + len)?, start: self.start + HEAD };
        self.bytes = self.bytes.get(end..)?;
        self.start += end;
        Some(piece)
    }
}

impl<'a> Iterator for Wrote<'a> {
    type Item = Piece<'a>;

    fn next(&mut self) -> Option<Piece<'a>> {
        if self.bytes.is_empty() {
            return None;
        }
        match self.to {
            Some(to) => Some(Piece { to, bytes: core::mem::take(&mut self.bytes), start: self.start }),
            None => self.take_first(),
        }
    }
}

fn word(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(*bytes.get(at..)?.first_chunk()?))
}

/// Takes off `bytes` what was noted first, and tells its length. `None` where `bytes` do not begin with all of it.
pub fn first(bytes: &[u8]) -> Option<(Noted<'_>, usize)> {
    let head = word(bytes, 0)?;
    if (head >> 16) as u8 == READING {
        return Some((Noted::Reading(reading(head, word(bytes, 8)?, word(bytes, 16)?)?), HEAD));
    }
    let (call, len) = first_call(head, bytes)?;
    Some((Noted::Call(call), len))
}

fn reading(head: u64, after: u64, ticks: u64) -> Option<Reading> {
    const PLAIN: u64 = (NOTHING as u64) << 24 | (READING as u64) << 16;
    const WITH_PROCESSOR: u64 = PLAIN | 1;
    let processor = match head & 0xffff_ffff {
        PLAIN if head == PLAIN => None,
        WITH_PROCESSOR => Some((head >> 32) as u32),
        _ => return None,
    };
    Some(Reading { after, ticks, processor })
}

fn first_call(head: u64, bytes: &[u8]) -> Option<(Call<'_>, usize)> {
    let (nr, count, out, len) = (head as u16, (head >> 16) as u8, (head >> 24) as u8, (head >> 32) as usize);
    let mut args = [0; 6];
    for (i, arg) in args.get_mut(..usize::from(count))?.iter_mut().enumerate() {
        *arg = word(bytes, HEAD + 8 * i)?;
    }
    let start = HEAD + 8 * usize::from(count);
    let to = match out {
        NOTHING if len == 0 => Some(0),
        NOTHING => return None,
        SEVERAL => None,
        // What it does not have among its arguments is none.
        _ => Some(*args.get(..usize::from(count))?.get(usize::from(out))?),
    };
    let end = start.checked_add(len)?.checked_next_multiple_of(8)?;
    let wrote = Wrote { to, bytes: bytes.get(..end)?.get(start..start + len)?, start };
    let mut rest = wrote;
    while to.is_none() && !rest.bytes.is_empty() {
        rest.take_first()?;
    }
    let call =
        Call { nr: u32::from(nr), after: word(bytes, 8)?, result: word(bytes, 16)? as i64, args, wrote };
    Some((call, end))
}
