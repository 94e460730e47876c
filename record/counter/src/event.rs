//! What a counter counts. Plain values.

use guest::GuestAddr;

/// An event of a performance monitoring unit, as `perf_event_open(2)` takes it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct EventCode {
    /// `perf_event_attr.type`: `PERF_TYPE_RAW` (4), or on hybrid processors the number of the unit of this kind of core.
    pub unit: u32,
    /// `perf_event_attr.config`: the event's number in bits 0 to 7, its unit mask in bits 8 to 15, the mask's extension in bits 40
    /// to 47.
    pub config: u64,
}

/// What a counter counts. All that is done with it is the same for both.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Event {
    /// Conditional branches that retire in user mode, taken or not.
    RetiredConditionalBranches(EventCode),
    /// Times that the instruction at this address is about to be executed, by a debug register: up to four per thread. A machine
    /// without a performance monitoring unit has it, too, at the cost of a trap each time. It counts *before* the instruction, so
    /// an overflow finds the thread at it.
    Breakpoint(GuestAddr),
}
