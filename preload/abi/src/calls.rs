//! How calls are noted that were made without a stop: one after the other, in words of 8 bytes.
//!
//! A call is [`HEAD`] bytes, its arguments, and what it wrote, filled up to a whole word. The head holds the number (16 bits), how many
//! arguments follow (8 bits), which of them points to what it wrote (8 bits, 255 for none) and how many bytes that are (32 bits); the
//! address after the `syscall` instruction; the result.

/// Bytes before the arguments.
pub const HEAD: usize = 24;
/// In place of the argument that points to what was written: nothing was.
pub const NOTHING: u8 = 0xff;

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
    /// Where it wrote.
    pub to: u64,
    /// What it wrote.
    pub wrote: &'a [u8],
}

/// Takes the first call off `bytes`: the call, where what it wrote begins, and its length in all. `None` where `bytes` do not begin with
/// a whole one.
pub fn first(bytes: &[u8]) -> Option<(Call<'_>, usize, usize)> {
    let word = |at: usize| Some(u64::from_le_bytes(*bytes.get(at..)?.first_chunk()?));
    let head = word(0)?;
    let (nr, count, out, len) = (head as u16, (head >> 16) as u8, (head >> 24) as u8, (head >> 32) as usize);
    let mut args = [0; 6];
    for (i, arg) in args.get_mut(..usize::from(count))?.iter_mut().enumerate() {
        *arg = word(HEAD + 8 * i)?;
    }
    let start = HEAD + 8 * usize::from(count);
    let to = match out {
        NOTHING if len == 0 => 0,
        NOTHING => return None,
        // What it does not have among its arguments is none.
        _ => *args.get(..usize::from(count))?.get(usize::from(out))?,
    };
    let end = start.checked_add(len)?.checked_next_multiple_of(8)?;
    let wrote = bytes.get(..end)?.get(start..start + len)?;
    let call = Call { nr: u32::from(nr), after: word(8)?, result: word(16)? as i64, args, to, wrote };
    Some((call, start, end))
}
