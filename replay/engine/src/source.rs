//! Guest code as the translator reads it: executable bytes, kept while they cannot change unnoticed.

use std::rc::Rc;

use guest::{GuestAddr, GuestRange, PAGE_SIZE};
use translate::Source;

use crate::areas::{Area, Areas};
use crate::host::Host;
use crate::rewritten::{For, Rewritten};
use crate::table::AddressMap;

/// Bytes read at once where code cannot be written by the guest.
const CHUNK: u64 = 64 << 10;

/// Bytes of the next chunk read along, so that instructions across the seam are whole.
const OVERLAP: u64 = 32;

/// A run of executable bytes.
#[derive(Clone, Debug)]
struct Run {
    start: u64,
    bytes: Vec<u8>,
}

impl Run {
    fn from(&self, at: u64) -> &[u8] {
        let skip = at.checked_sub(self.start).and_then(|skip| usize::try_from(skip).ok());
        skip.and_then(|skip| self.bytes.get(skip..)).unwrap_or(&[])
    }
}

/// Where code is read.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Code<'a> {
    pub(crate) host: &'a Host,
    pub(crate) areas: &'a Areas,
    pub(crate) rewritten: &'a Rewritten,
}

/// What has been read of the guest's code.
///
/// The translator looks at code beyond a block, to see which flags matter. A block from code that cannot change unnoticed must not
/// depend on code that can, nor one from a page on another page: a change there would not be noticed to concern it.
#[derive(Clone, Default, Debug)]
pub(crate) struct CodeReader {
    /// By chunk: runs of code that the guest cannot write.
    kept: AddressMap<Rc<Vec<Run>>>,
    /// Code that the guest may write: that of the page for which a block is being translated.
    fresh: Vec<Run>,
    /// The same as memory shows it, where that may be something else.
    shown: Vec<Run>,
}

impl CodeReader {
    /// Forgets what was read of `range`.
    pub(crate) fn forget(&mut self, range: GuestRange) {
        self.fresh.clear();
        self.shown.clear();
        self.kept.retain(|&chunk, _| !GuestRange::new(GuestAddr(chunk), CHUNK + OVERLAP).overlaps(range));
    }

    /// Whether anything was read of `range` that is kept.
    pub(crate) fn knows(&self, range: GuestRange) -> bool {
        let (first, last) = (range.start.0 / CHUNK, range.end.0.div_ceil(CHUNK));
        if last - first > self.kept.len() as u64 {
            return self.kept.keys().any(|&chunk| (first..last).contains(&(chunk / CHUNK)));
        }
        (first.saturating_sub(1)..last).any(|chunk| self.kept.contains_key(&(chunk * CHUNK)))
    }

    /// Makes the code at `pc` available, and none that the guest may write but that of its page, or of its page and the next one
    /// with `across`.
    pub(crate) fn load(&mut self, code: Code<'_>, pc: GuestAddr, across: bool) {
        let areas = code.areas;
        self.fresh.clear();
        self.shown.clear();
        let Some((_, area)) = areas.at(pc).filter(|(_, area)| area.prot.exec) else { return };
        if across || area.prot.write || area.object.is_some() {
            let pages = if across { 2 } else { 1 };
            let end = GuestAddr(pc.page().0.saturating_add(pages * PAGE_SIZE));
            let wanted = GuestRange { start: pc.page(), end };
            self.fresh = read_runs(code, wanted, true, true);
            if code.rewritten.overlaps(wanted) {
                self.shown = read_runs(code, wanted, true, false);
            }
            return;
        }
        for at in [pc, pc.wrapping_add(2 * OVERLAP)] {
            let chunk = at.0 / CHUNK * CHUNK;
            self.kept.entry(chunk).or_insert_with(|| {
                let wanted = GuestRange::new(GuestAddr(chunk), CHUNK + OVERLAP);
                Rc::new(read_runs(code, wanted, false, true))
            });
        }
    }
}

/// The executable bytes in a range, one run for each stretch without a gap; with `writable`, those that the guest may write,
/// too; with `own`, as the program has them, else as memory shows them.
fn read_runs(code: Code<'_>, wanted: GuestRange, writable: bool, own: bool) -> Vec<Run> {
    let mut runs: Vec<Run> = Vec::new();
    let included = |area: &Area| area.prot.exec && (writable || (!area.prot.write && area.object.is_none()));
    for (piece, _) in code.areas.within(wanted).into_iter().filter(|(_, area)| included(area)) {
        let mut bytes = vec![0; piece.len() as usize];
        // Pages past the end of a mapped file cannot be read.
        if let Err(unmapped) = code.host.read(piece.start.0, &mut bytes) {
            bytes.truncate(unmapped.addr.0.saturating_sub(piece.start.0) as usize);
        }
        if own {
            let shown = |at, into: &mut [u8]| code.host.read(at, into).is_ok();
            code.rewritten.put(piece.start, &mut bytes, For::Translation, &shown);
        }
        match runs.last_mut() {
            Some(last) if last.start + last.bytes.len() as u64 == piece.start.0 => last.bytes.extend(bytes),
            _ => runs.push(Run { start: piece.start.0, bytes }),
        }
    }
    runs
}

impl Source for CodeReader {
    fn bytes(&self, at: GuestAddr) -> &[u8] {
        if let Some(run) = self.fresh.iter().find(|run| !run.from(at.0).is_empty()) {
            return run.from(at.0);
        }
        let runs = self.kept.get(&(at.0 / CHUNK * CHUNK));
        let run = runs.and_then(|runs| runs.iter().find(|run| !run.from(at.0).is_empty()));
        run.map_or(&[], |run| run.from(at.0))
    }

    fn shown(&self, at: GuestAddr) -> &[u8] {
        let run = self.shown.iter().find(|run| !run.from(at.0).is_empty());
        run.map_or_else(|| self.bytes(at), |run| run.from(at.0))
    }
}
