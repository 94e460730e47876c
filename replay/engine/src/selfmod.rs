//! Code that is written: pages from which code was translated are protected, so that a store there faults, and the code is
//! suspended until it is wanted again.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use guest::{GuestAddr, GuestRange, PAGE_SIZE, Prot};

use crate::HostError;
use crate::memory::host_prot;
use crate::space::Space;

/// A store to a watched page within so many instructions of the one before it counts as frequent: an interruption costs about as
/// much time.
const FREQUENT: u64 = 30_000;

/// After so many frequent stores in a row, the page's blocks check themselves instead.
const PATIENCE: u32 = 8;

/// Stores to a watched page.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Disturbed {
    last: u64,
    in_a_row: u32,
}

/// What was in pages that may have changed since, from which suspended blocks came. A page that has one has no live block.
pub(crate) type Snapshots = BTreeMap<GuestAddr, Rc<[u8]>>;

impl Space {
    /// Suspends all code that came from `range`, which may be about to change, whole pages: what then turns out not to have changed
    /// is used again.
    pub(crate) fn suspend_code(&mut self, range: GuestRange) {
        self.reader.forget(range);
        for page in self.code.pages_with_code(range) {
            let mut bytes = vec![0; PAGE_SIZE as usize];
            if self.host.read(page.0, &mut bytes).is_ok() {
                self.snapshots.entry(page).or_insert_with(|| bytes.into());
            } else {
                self.forget_code(GuestRange::new(page, PAGE_SIZE));
            }
        }
        let code = Rc::make_mut(&mut self.code);
        code.suspend_range(range, &self.tables, &mut self.patches);
    }

    /// Code from a page is about to run: the suspended blocks that came from there are used again or forgotten.
    pub(crate) fn revalidate(&mut self, page: GuestAddr) -> Result<(), HostError> {
        if !self.snapshots.contains_key(&page) || !self.areas.at(page).is_some_and(|(_, area)| area.prot.exec)
        {
            return Ok(());
        }
        let Some(then) = self.snapshots.remove(&page) else { return Ok(()) };
        let whole = GuestRange::new(page, PAGE_SIZE);
        let mut now = vec![0; then.len()];
        if self.host.read(page.0, &mut now).is_err() {
            self.forget_code(whole);
            return Ok(());
        }
        let same = |sources: &[GuestRange]| {
            sources.iter().map(|source| source.intersect(whole)).filter(|part| !part.is_empty()).all(|part| {
                let part = (part.start.0 - page.0) as usize..(part.end.0 - page.0) as usize;
                then[part.clone()] == now[part]
            })
        };
        let pending = |page: GuestAddr| self.snapshots.contains_key(&page);
        let code = Rc::make_mut(&mut self.code);
        let revived = code.revive(page, same, pending, &self.tables, &mut self.patches);
        let sources = revived.iter().flat_map(|block| block.translated.sources.iter().copied());
        let pages: BTreeSet<GuestAddr> = sources.flat_map(pages_of).collect();
        for page in pages {
            self.watch_code(GuestRange::new(page, PAGE_SIZE))?;
        }
        Ok(())
    }

    /// Sees to it that stores to the pages of `range`, from which code was translated, are noticed.
    pub(crate) fn watch_code(&mut self, range: GuestRange) -> Result<(), HostError> {
        for page in pages_of(range) {
            let private = match self.areas.at(page) {
                Some((_, area)) if area.object.is_some() => false,
                Some((_, area)) if area.prot.write => true,
                _ => continue,
            };
            if self.mixed.contains(&page) || (private && self.watched.contains(&page)) {
                continue;
            }
            for alias in self.aliases(page) {
                let prot = self.areas.at(alias).map(|(_, area)| area.prot);
                if let Some(prot) = prot.filter(|prot| prot.write)
                    && self.watched.insert(alias)
                {
                    self.protect_page(alias, Prot { write: false, read: true, ..prot })?;
                }
            }
        }
        Ok(())
    }

    fn protect_page(&mut self, page: GuestAddr, prot: Prot) -> Result<(), HostError> {
        let args = [page.0, PAGE_SIZE, host_prot(prot), 0, 0, 0];
        self.host.call("mprotect", libc::SYS_mprotect, args).map(drop)
    }

    /// Every address at which the memory of a page is mapped.
    fn aliases(&self, page: GuestAddr) -> Vec<GuestAddr> {
        let Some((range, area)) = self.areas.at(page) else { return Vec::new() };
        match &area.object {
            None => vec![page],
            Some((object, offset)) => {
                let object = Rc::clone(object);
                self.areas.aliases(&object, offset + (page.0 - range.start.0))
            }
        }
    }

    /// A store to `addr` faulted. If that is because the page is watched: forgets its code, lets the store happen, and
    /// says so.
    pub(crate) fn written(&mut self, addr: GuestAddr) -> Result<bool, HostError> {
        let page = addr.page();
        if !self.watched.contains(&page) {
            return Ok(false);
        }
        let retired = self.retired;
        let seen = self.disturbed.entry(page).or_default();
        seen.in_a_row = if retired - seen.last < FREQUENT { seen.in_a_row + 1 } else { 0 };
        seen.last = retired;
        let mixed = seen.in_a_row >= PATIENCE;
        for alias in self.aliases(page) {
            let range = GuestRange::new(alias, PAGE_SIZE);
            if mixed {
                self.forget_code(range);
                self.mixed.insert(alias);
            } else {
                self.suspend_code(range);
            }
            self.unwatch(alias)?;
        }
        Ok(true)
    }

    /// The guest can write no more in `range`: blocks from there need not check themselves. (What memory shows may then differ from
    /// what runs.)
    pub(crate) fn settle(&mut self, range: GuestRange) {
        let is_private = |page| self.areas.at(page).is_some_and(|(_, area)| area.object.is_none());
        let settled = self.mixed.iter().copied().filter(|page| range.contains(*page) && is_private(*page));
        let settled: Vec<GuestAddr> = settled.collect();
        for page in settled {
            self.mixed.remove(&page);
            self.forget_code(GuestRange::new(page, PAGE_SIZE));
        }
    }

    fn unwatch(&mut self, page: GuestAddr) -> Result<(), HostError> {
        if self.watched.remove(&page)
            && let Some((_, area)) = self.areas.at(page)
        {
            let prot = area.prot;
            self.protect_page(page, prot)?;
        }
        Ok(())
    }

    /// Lets stores to `range` happen unnoticed.
    pub(crate) fn unwatch_range(&mut self, range: GuestRange) -> Result<(), HostError> {
        let mut pages: Vec<GuestAddr> =
            self.watched.iter().copied().filter(|page| range.contains(*page)).collect();
        pages.sort_unstable();
        for page in pages {
            self.unwatch(page)?;
        }
        Ok(())
    }
}

pub(crate) fn pages_of(range: GuestRange) -> impl Iterator<Item = GuestAddr> {
    (range.start.page().0..range.end.0).step_by(PAGE_SIZE as usize).map(GuestAddr)
}
