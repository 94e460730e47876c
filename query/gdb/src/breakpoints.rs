//! Breakpoints and watchpoints. Software and hardware breakpoints are the same thing here: no guest byte changes.

use gdbstub::target::TargetResult;
use gdbstub::target::ext::breakpoints::{
    Breakpoints, HwBreakpoint, HwBreakpointOps, HwWatchpoint, HwWatchpointOps, SwBreakpoint, SwBreakpointOps,
    WatchKind,
};
use guest::{GuestAddr, GuestRange};
use timeline::Watch;

use crate::session::{Session, Watchpoint};

impl Breakpoints for Session {
    fn support_sw_breakpoint(&mut self) -> Option<SwBreakpointOps<'_, Self>> {
        Some(self)
    }

    fn support_hw_breakpoint(&mut self) -> Option<HwBreakpointOps<'_, Self>> {
        Some(self)
    }

    fn support_hw_watchpoint(&mut self) -> Option<HwWatchpointOps<'_, Self>> {
        Some(self)
    }
}

impl Session {
    fn add(&mut self, addr: u64) -> bool {
        self.breakpoints.push(GuestAddr(addr));
        true
    }

    fn remove(&mut self, addr: u64) -> bool {
        let found = self.breakpoints.iter().position(|set| set.0 == addr);
        found.map(|at| self.breakpoints.swap_remove(at)).is_some()
    }
}

impl SwBreakpoint for Session {
    fn add_sw_breakpoint(&mut self, addr: u64, _kind: usize) -> TargetResult<bool, Self> {
        Ok(self.add(addr))
    }

    fn remove_sw_breakpoint(&mut self, addr: u64, _kind: usize) -> TargetResult<bool, Self> {
        Ok(self.remove(addr))
    }
}

impl HwBreakpoint for Session {
    fn add_hw_breakpoint(&mut self, addr: u64, _kind: usize) -> TargetResult<bool, Self> {
        Ok(self.add(addr))
    }

    fn remove_hw_breakpoint(&mut self, addr: u64, _kind: usize) -> TargetResult<bool, Self> {
        Ok(self.remove(addr))
    }
}

impl HwWatchpoint for Session {
    fn add_hw_watchpoint(&mut self, addr: u64, len: u64, kind: WatchKind) -> TargetResult<bool, Self> {
        Ok(self.watch(watchpoint(addr, len, kind)))
    }

    fn remove_hw_watchpoint(&mut self, addr: u64, len: u64, kind: WatchKind) -> TargetResult<bool, Self> {
        let wanted = watchpoint(addr, len, kind);
        let found = self.watchpoints.iter().position(|set| *set == wanted);
        Ok(found.map(|at| self.watchpoints.swap_remove(at)).is_some())
    }
}

/// The CPU cannot watch loads alone: a read watchpoint watches all accesses, and gdb drops those that changed the
/// value.
fn watchpoint(addr: u64, len: u64, kind: WatchKind) -> Watchpoint {
    let engine_kind = match kind {
        WatchKind::Write => timeline::WatchKind::Write,
        WatchKind::Read | WatchKind::ReadWrite => timeline::WatchKind::Access,
    };
    let range = GuestRange::new(GuestAddr(addr), len.max(1));
    Watchpoint { watch: Watch { range, kind: engine_kind }, kind }
}
