//! One system call: number, arguments, the words it reads and overwrites, result.

use guest::{GuestAddr, GuestMemory};

use crate::errno::Errno;

/// A system call of the guest. Made at entry by [`Call::enter`], completed by [`Call::returned`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Call {
    /// Number in the x86-64 table.
    pub nr: u32,
    /// Arguments as in the registers at entry.
    pub args: [u64; 6],
    /// What rax held on return; 0 before.
    pub result: i64,
    /// Words that the kernel reads and then overwrites, such as the room for a socket address, as they were at entry.
    before: Vec<(GuestAddr, u64)>,
    /// See [`Call::telling`].
    told: Option<u64>,
}

impl Call {
    /// A call about to run: notes the few words in `mem` that it may overwrite and whose old values decide how much
    /// else it writes. Unreadable ones are skipped, for then the kernel fails too.
    pub fn enter(nr: u32, args: [u64; 6], mem: &dyn GuestMemory) -> Self {
        let mut call = Self::finished(nr, args, 0);
        crate::effects::note(&mut call, mem);
        call
    }

    /// A finished call of which only the registers are known. Where a length in memory was overwritten, its new value
    /// stands for the old, so that ranges may come out longer than what the kernel wrote.
    pub const fn finished(nr: u32, args: [u64; 6], result: i64) -> Self {
        Self { nr, args, result, before: Vec::new(), told: None }
    }

    /// The call with the number of bytes that it stores on success, where neither arguments nor memory tell.
    pub fn telling(self, bytes: Option<u64>) -> Self {
        Self { told: bytes, ..self }
    }

    pub(crate) const fn told(&self) -> Option<u64> {
        self.told
    }

    /// The call with its result.
    pub fn returned(self, result: i64) -> Self {
        Self { result, ..self }
    }

    /// Whether it succeeded.
    pub const fn succeeded(&self) -> bool {
        Errno::from_result(self.result).is_none()
    }

    /// Whether any word was noted.
    pub(crate) const fn has_noted(&self) -> bool {
        !self.before.is_empty()
    }

    /// The word at `addr` at entry, if it was noted.
    pub(crate) fn before(&self, addr: GuestAddr) -> Option<u64> {
        self.before.iter().find(|(at, _)| *at == addr).map(|(_, word)| *word)
    }

    /// Notes the 32-bit word at `addr`.
    pub(crate) fn note_u32(&mut self, addr: GuestAddr, mem: &dyn GuestMemory) {
        if let Ok(word) = mem.read_u32(addr) {
            self.before.push((addr, u64::from(word)));
        }
    }

    /// Notes the 64-bit word at `addr`.
    pub(crate) fn note_u64(&mut self, addr: GuestAddr, mem: &dyn GuestMemory) {
        if let Ok(word) = mem.read_u64(addr) {
            self.before.push((addr, word));
        }
    }
}
