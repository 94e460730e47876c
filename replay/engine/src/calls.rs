//! System calls that are prepared before a run, and readings of the time stamp counter: the cache puts their effects itself, one after the
//! other, as long as each is the one that the guest comes to.

use guest::GuestAddr;
use translate::{PreparedCall, PreparedPiece, after_reading};

use crate::space::Space;

/// Bytes for prepared calls, and what they write.
pub(crate) const CALLS_BYTES: u64 = 0xB000;

/// A call that the guest is expected to make next.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Call<'a> {
    /// The address after the `syscall` instruction.
    pub after: GuestAddr,
    /// Its number: the low half of rax.
    pub number: u32,
    /// Its arguments.
    pub args: [u64; 6],
    /// How many of them are compared.
    pub compared: u8,
    /// What rax holds afterwards.
    pub result: i64,
    /// Where it wrote what.
    pub wrote: &'a [(GuestAddr, &'a [u8])],
}

/// A reading of the time stamp counter that the guest is expected to make next.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Reading {
    /// The address after the instruction.
    pub after: GuestAddr,
    /// The counter.
    pub ticks: u64,
    /// What rcx holds afterwards, if the instruction is `rdtscp`.
    pub processor: Option<u32>,
}

/// A prepared call, or reading, that the guest came to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Made {
    /// What [`Space::retired`] was there. The call's own instruction is not in it.
    pub retired: u64,
    /// What had been logged by then.
    log_next: u64,
}

/// Prepared calls, and those that were made. All of it is of one run.
#[derive(Default, Debug)]
pub(crate) struct Calls {
    /// Bytes in use.
    used: usize,
    /// Offset of the last one.
    last: Option<usize>,
    /// Address of the first one that is not in `made`; 0 where there is none.
    next: u64,
    made: Vec<Made>,
}

impl Space {
    /// Prepares one more call for the next [`run`](Space::run), to be made after those prepared before: at a `syscall` instruction where
    /// address, number and arguments are equal, the effects are put as the kernel would have left them, and the guest goes on. Else, and
    /// where what it wrote cannot be written just so (a page that is protected, or from which code was translated), the run ends
    /// there, as it does where none is prepared. Tells whether there was room; there is none while watchpoints are set.
    pub fn prepare_call(&mut self, call: &Call<'_>) -> bool {
        let prepared = PreparedCall {
            next: 0,
            after: call.after.0,
            number: call.number,
            compared: u32::from(call.compared),
            args: call.args,
            result: call.result as u64,
            counter: 0,
            log_next: 0,
        };
        self.prepare(&prepared, call.wrote)
    }

    /// The same of a reading.
    pub fn prepare_reading(&mut self, reading: &Reading) -> bool {
        let Reading { after, ticks, processor } = *reading;
        let prepared = PreparedCall {
            after: after_reading(after, processor.is_some()),
            args: [ticks >> 32, processor.unwrap_or_default().into(), 0, 0, 0, 0],
            result: ticks & 0xffff_ffff,
            ..PreparedCall::default()
        };
        self.prepare(&prepared, &[])
    }

    fn prepare(&mut self, prepared: &PreparedCall, wrote: &[(GuestAddr, &[u8])]) -> bool {
        let Calls { used, last, .. } = self.calls;
        let mut size = size_of::<PreparedCall>() + size_of::<PreparedPiece>();
        for (_, bytes) in wrote {
            size = size.saturating_add(size_of::<PreparedPiece>() + bytes.len().next_multiple_of(8));
        }
        let end = used.saturating_add(size);
        if end as u64 > CALLS_BYTES || !self.watchpoints.is_empty() {
            return false;
        }
        self.slot.put_call(used, prepared, wrote);
        let at = u64::from(self.low.calls()) + used as u64;
        match last {
            Some(last) => self.slot.link_call(last, at),
            None => {
                self.slot.page_mut().calls = at;
                self.calls.next = at;
            }
        }
        (self.calls.used, self.calls.last) = (end, Some(used));
        true
    }

    /// The prepared calls that were made, in order. Those that were not are prepared no more.
    pub fn take_made_calls(&mut self) -> Vec<Made> {
        let calls = std::mem::take(&mut self.calls);
        if calls.last.is_some() {
            self.slot.page_mut().calls = 0;
        }
        if !calls.made.is_empty() {
            // As it is set after a call that a supervisor performs.
            self.regs.orig_rax = u64::MAX;
        }
        calls.made
    }

    /// Notes which calls were made since the budget was last given, or looked at.
    pub(crate) fn note_made_calls(&mut self) {
        if self.calls.next == 0 {
            return;
        }
        let now = self.slot.page().calls;
        while self.calls.next != now && self.calls.next != 0 {
            let at = self.calls.next - u64::from(self.low.calls());
            let PreparedCall { next, counter, log_next, .. } = self.slot.call(at as usize);
            let retired = self.retired.wrapping_add_signed(self.granted - counter);
            self.calls.made.push(Made { retired, log_next });
            self.calls.next = next;
        }
    }

    /// Modes that log: until this is called again, draining hands out what was logged before a call was made, as far as it was not
    /// handed out yet; with `None`, everything.
    pub fn look_back(&mut self, to: Option<&Made>) {
        self.log_until = to.map(|made| made.log_next);
    }
}
