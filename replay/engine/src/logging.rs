//! The log of the modes that log: room for it, and the records that only the supervisor can write.

use std::rc::Rc;

use guest::{GuestAddr, PAGE_SIZE};
use translate::Mark;
use translate::log::{MAX_BYTES_PER_INSTRUCTION, bulk_record, partial_record};

use crate::Block;
use crate::space::Space;

/// Kept free: records of blocks without instructions, each of which ends in the supervisor.
const SLACK: u64 = 4096;

/// A log that holds so many bytes is drained however much room it has: what was just written is still in the cache.
const ENOUGH: u64 = 1 << 20;

/// Contents of string stores end here at the latest, so that a log with much room does not fill much memory.
const BULK_END: u64 = 16 << 20;

impl Space {
    fn log_room(&self) -> u64 {
        (self.log_at + self.slot.log_len() as u64).saturating_sub(self.log_next + SLACK)
    }

    /// Whether the log must be drained before running on.
    pub(crate) fn log_is_full(&self) -> bool {
        let most = (self.slot.log_len() as u64).saturating_sub(SLACK);
        let held = self.log_next - self.log_at;
        self.mode.logs() && (!self.log_overflow.is_empty() || held >= ENOUGH || self.log_room() < most / 4)
    }

    /// How many instructions surely fit into the log.
    pub(crate) fn log_allows(&self) -> u64 {
        if self.mode.logs() { (self.log_room() / 2 / MAX_BYTES_PER_INSTRUCTION).max(64) } else { u64::MAX }
    }

    /// Where contents of string stores must end if `instructions` are still to be logged.
    pub(crate) fn log_bulk_limit(&self, instructions: u64) -> u64 {
        if !self.mode.logs() {
            return 0;
        }
        let end = self.log_at + self.slot.log_len() as u64;
        let end = end.saturating_sub(SLACK + instructions.saturating_mul(MAX_BYTES_PER_INSTRUCTION));
        end.min(self.log_at + BULK_END)
    }

    /// Modes that log: what was logged since the last drain, for [`translate::log::walk`]. The log is empty again
    /// afterwards.
    pub fn drain_log(&mut self) -> Vec<u8> {
        self.drain_log_with(<[u8]>::to_vec)
    }

    /// Hands what was logged since the last drain to `consume`, without copying it if nothing overflowed. The log is
    /// empty again afterwards.
    pub fn drain_log_with<T>(&mut self, consume: impl FnOnce(&[u8]) -> T) -> T {
        let [from, to] = [self.log_from, self.log_until.unwrap_or(self.log_next)].map(|at| at - self.log_at);
        let fit = &self.slot.log()[from as usize..to as usize];
        if self.log_until.is_some() {
            self.log_from = self.log_at + to;
            return consume(fit);
        }
        (self.log_next, self.log_from) = (self.log_at, self.log_at);
        if self.log_overflow.is_empty() {
            return consume(fit);
        }
        let whole = [fit, &self.log_overflow].concat();
        self.log_overflow.clear();
        consume(&whole)
    }

    fn append(&mut self, record: &[u8]) {
        let next = self.slot.page().log_next;
        let at = (next - self.log_at) as usize;
        if at + record.len() + PAGE_SIZE as usize <= self.slot.log_len() && self.log_overflow.is_empty() {
            self.slot.log_write(at, record);
            self.slot.page_mut().log_next = next + record.len() as u64;
        } else {
            self.log_overflow.extend_from_slice(record);
        }
    }

    fn contents(&self) -> impl FnMut(GuestAddr, &mut [u8]) {
        |addr, into: &mut [u8]| {
            if self.host.read(addr.0, into).is_err() {
                into.fill(0);
            }
        }
    }

    /// An opmask register of the guest.
    fn opmask(&self, number: u8) -> u64 {
        /// The component that holds them (Intel SDM vol. 1, 13.5.6).
        const OPMASKS: u32 = 5;
        let at = std::arch::x86_64::__cpuid_count(0xd, OPMASKS).ebx as usize + 8 * usize::from(number);
        let state = self.host.xstate().ok();
        let bytes = state.as_ref().and_then(|state| state.0.get(at..)?.first_chunk().copied());
        bytes.map_or(u64::MAX, u64::from_le_bytes)
    }

    /// A string store has retired whose contents were too long for the log.
    pub(crate) fn log_bulk(&mut self, block: &Rc<Block>) {
        let start = self.slot.page().bulk_start;
        let record = bulk_record(&block.translated, start, self.regs.rdi, &mut self.contents());
        self.append(&record);
    }

    /// A fault ended a block at `mark`.
    pub(crate) fn log_partial(&mut self, block: &Rc<Block>, mark: &Mark) {
        if !block.mode.logs() {
            return;
        }
        let longest = block.translated.paths.iter().map(|path| path.log_bytes).max().unwrap_or(0);
        let next = (self.slot.page().log_next - self.log_at) as usize;
        let end = (next + longest as usize + 4).min(self.slot.log_len());
        let written = self.slot.log()[next..end].to_vec();
        let string = (self.slot.page().bulk_start, self.regs.rdi);
        let mut opmask = |number| self.opmask(number);
        let record =
            partial_record(&block.translated, mark, &written, string, &mut self.contents(), &mut opmask);
        self.append(&record);
    }
}
