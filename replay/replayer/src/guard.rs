//! Where a stack ended. A stack grows by itself down to a limit that the recording does not know; the fault that it met
//! shows it. While the replay runs towards such a fault, an inaccessible page stands where memory was missing.

use engine::{MapError, MapRequest, MapSource, Space};
use guest::{GuestAddr, GuestRange, PAGE_SIZE, Prot};
use trace::{Event, Fact, Stop};

const SIGSEGV: i32 = 11;
const SEGV_MAPERR: i32 = 1;
/// No stack grows further than this.
const FURTHEST: u64 = 1 << 36;

/// The page that the event shows to be missing below a stack, if it is that kind of fault.
pub(crate) fn needed(space: &Space, event: &Event) -> Option<GuestRange> {
    let Fact::Signal(info) = &event.fact else { return None };
    let code = i32::from_le_bytes(info.siginfo.get(8..12)?.try_into().ok()?);
    if event.stop != Stop::Fault || info.signo != SIGSEGV || code != SEGV_MAPERR {
        return None;
    }
    let addr = GuestAddr(u64::from_le_bytes(info.siginfo.get(16..24)?.try_into().ok()?));
    let range = GuestRange::new(addr.page(), PAGE_SIZE);
    let mappings = space.mappings();
    let below = |end: GuestAddr| addr < end && end.0 - addr.0 < FURTHEST;
    let is_stack = mappings.iter().any(|mapping| mapping.grows_down && below(mapping.range.end));
    let is_free = mappings.iter().all(|mapping| !mapping.range.overlaps(range));
    (is_stack && is_free).then_some(range)
}

/// Makes the page inaccessible.
pub(crate) fn put(space: &mut Space, range: GuestRange) -> Result<(), MapError> {
    space.map(&MapRequest {
        range,
        prot: Prot::default(),
        shared: false,
        grows_down: false,
        no_reserve: true,
        source: MapSource::Zero,
    })
}
