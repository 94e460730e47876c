//! `Space`: a guest address space in a live host process.

use std::marker::PhantomData;
use std::rc::Rc;

use guest::{GuestAddr, GuestMemory, GuestRange, Prot, Registers, Unmapped, XState};

use crate::{
    Block, Config, Exit, ForkError, HostError, MapError, MapRequest, Mapping, Mode, NewError, RunError, Watch,
    WriteError,
};

/// What a fork does with shared mappings.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Sharing {
    /// They stay shared between the two spaces, as the guest's own `fork` has it.
    Kept,
    /// The copy gets its own, as a checkpoint needs.
    Copied,
}

/// A guest address space in a live host process.
///
/// Must be used and dropped on the thread that made it (as `ptrace` requires), hence not `Send`.
#[derive(Debug)]
pub struct Space {
    _thread: PhantomData<*const ()>,
}

impl Space {
    /// Starts a process with nothing mapped but the engine's own.
    pub fn new(config: &Config) -> Result<Self, NewError> {
        let _ = config;
        Err(NewError::NoRoom { bytes: 0 })
    }

    /// A copy of everything: memory, registers, translated code, the retired count. Breakpoints, watchpoints and what
    /// is in the log are not copied.
    pub fn fork(&mut self, sharing: Sharing) -> Result<Self, ForkError> {
        let _ = sharing;
        Err(HostError::Gone { status: 0 }.into())
    }

    /// Unmaps all of the guest's memory.
    pub fn unmap_all(&mut self) -> Result<(), MapError> {
        Ok(())
    }

    /// Maps, replacing what was there.
    pub fn map(&mut self, request: &MapRequest) -> Result<(), MapError> {
        let _ = request;
        Ok(())
    }

    /// Unmaps; holes are fine.
    pub fn unmap(&mut self, range: GuestRange) -> Result<(), MapError> {
        let _ = range;
        Ok(())
    }

    /// Changes protection.
    pub fn protect(&mut self, range: GuestRange, prot: Prot) -> Result<(), MapError> {
        let _ = (range, prot);
        Ok(())
    }

    /// Moves pages: the contents of `from` appear at `to`, which may be longer or shorter and replaces what was there.
    /// `from` is unmapped unless `keep` (`MREMAP_DONTUNMAP`).
    pub fn remap(&mut self, from: GuestRange, to: GuestRange, keep: bool) -> Result<(), MapError> {
        let _ = (from, to, keep);
        Ok(())
    }

    /// Drops contents (`MADV_DONTNEED`): private pages read as at first again.
    pub fn discard(&mut self, range: GuestRange) -> Result<(), MapError> {
        let _ = range;
        Ok(())
    }

    /// The guest's mappings in ascending order.
    pub fn mappings(&self) -> Vec<Mapping> {
        Vec::new()
    }

    /// Writes as the kernel does: protections do not matter, translations of bytes that change are dropped.
    pub fn write(&mut self, addr: GuestAddr, bytes: &[u8]) -> Result<(), WriteError> {
        let _ = (addr, bytes);
        Ok(())
    }

    /// The guest's registers. `orig_rax` is as it was set.
    pub fn registers(&self) -> Registers {
        Registers::default()
    }

    /// Replaces the guest's registers.
    pub fn set_registers(&mut self, registers: &Registers) {
        let _ = registers;
    }

    /// The guest's extended state.
    pub fn xstate(&self) -> Result<XState, HostError> {
        Ok(XState::default())
    }

    /// Replaces the guest's extended state.
    pub fn set_xstate(&mut self, state: &XState) -> Result<(), HostError> {
        let _ = state;
        Ok(())
    }

    /// Runs until something stops it, or `budget` instructions have been retired by this call.
    pub fn run(&mut self, budget: Option<u64>) -> Result<Exit, RunError> {
        let _ = budget;
        Err(RunError::NoLog)
    }

    /// Guest instructions retired by translated code since the first ancestor was made: exact at every exit.
    /// Instructions that the caller performs (syscalls, trapped ones) are not in it.
    pub fn retired(&self) -> u64 {
        0
    }

    /// The mode in force.
    pub fn mode(&self) -> Mode {
        Mode::Plain
    }

    /// Changes the mode; each has its own code cache, which stays.
    pub fn set_mode(&mut self, mode: Mode) -> Result<(), RunError> {
        let _ = mode;
        Ok(())
    }

    /// Replaces the set of breakpoints. With any set, code runs in exact mode whatever the mode.
    pub fn set_breakpoints(&mut self, at: &[GuestAddr]) {
        let _ = at;
    }

    /// Replaces the set of watchpoints.
    pub fn set_watchpoints(&mut self, watches: &[Watch]) -> Result<(), RunError> {
        let _ = watches;
        Ok(())
    }

    /// Logging modes: what was logged since the last drain, for [`translate::log::walk`]. The log is empty again afterwards.
    pub fn drain_log(&mut self) -> &[u8] {
        &[]
    }

    /// All blocks ever translated here, by [`BlockId`](translate::BlockId), for reading logs.
    pub fn blocks(&self) -> &[Rc<Block>] {
        &[]
    }
}

impl GuestMemory for Space {
    fn read(&self, addr: GuestAddr, into: &mut [u8]) -> Result<(), Unmapped> {
        let _ = into;
        Err(Unmapped { addr })
    }
}
