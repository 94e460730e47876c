//! The guest's memory: mapping, unmapping, reading and writing, each with what it means for code translated from there.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::rc::Rc;

use guest::{GuestAddr, GuestMemory, GuestRange, PAGE_SIZE, Prot, Unmapped};

use crate::areas::Area;
use crate::family::Object;
use crate::host::TASK_SIZE;
use crate::space::Space;
use crate::{HostError, MapError, MapRequest, MapSource, Mapping, WriteError};

/// How far below a stack the kernel's own writes may reach.
const STACK_REACH: u64 = 1 << 30;

fn check(range: GuestRange) -> Result<(), MapError> {
    let whole = range.start.page_offset() == 0 && range.end.page_offset() == 0 && !range.is_empty();
    if whole { Ok(()) } else { Err(MapError::Unaligned { range }) }
}

/// The host's protection for a guest's: nothing of the guest's is executable, and what only was is readable, as it was.
pub(crate) fn host_prot(prot: Prot) -> u64 {
    Prot { read: prot.read || prot.exec, exec: false, ..prot }.bits()
}

/// The range of a line of `/proc/PID/maps`.
fn host_mapping(line: &str) -> Option<GuestRange> {
    let (start, end) = line.split(' ').next()?.split_once('-')?;
    let hex = |text| u64::from_str_radix(text, 16).ok().map(GuestAddr);
    Some(GuestRange { start: hex(start)?, end: hex(end)? })
}

impl Space {
    /// Unmaps all of the guest's memory.
    ///
    /// # Errors
    ///
    /// The host refused.
    pub fn unmap_all(&mut self) -> Result<(), MapError> {
        self.unmap(GuestRange { start: GuestAddr(0), end: GuestAddr(TASK_SIZE) })
    }

    /// Maps, replacing what was there.
    ///
    /// # Errors
    ///
    /// The range is not whole pages, is the engine's, or the host refused.
    pub fn map(&mut self, request: &MapRequest) -> Result<(), MapError> {
        let range = request.range;
        self.ours_and_whole(range)?;
        let host = |source| MapError::Host { range, source };
        let object = match &request.source {
            _ if !request.shared => None,
            MapSource::Zero => Some((Object::zero(range.len()).map_err(host)?, 0)),
            MapSource::File { path, offset, object } => {
                Some((self.objects.get(*object, path).map_err(host)?, *offset))
            }
        };
        self.lost(range);
        match (&object, &request.source) {
            (Some((object, offset)), _) => {
                self.map_object(range, object, *offset, host_prot(request.prot)).map_err(host)?;
            }
            (None, MapSource::File { path, offset, .. }) => {
                let path = std::path::absolute(path)
                    .map_err(|source| host(HostError::Call { call: "getcwd", source }))?;
                let prot = host_prot(request.prot);
                self.map_path(range, prot, libc::MAP_PRIVATE, path.as_os_str(), *offset).map_err(host)?;
            }
            (None, MapSource::Zero) => {
                let grows = if request.grows_down { libc::MAP_GROWSDOWN } else { 0 };
                let flags =
                    libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED | libc::MAP_NORESERVE | grows;
                let prot = host_prot(request.prot);
                let args = [range.start.0, range.len(), prot, flags as u64, u64::MAX, 0];
                self.host_call(range, "mmap", libc::SYS_mmap, args)?;
            }
        }
        self.areas.insert(range, Area { prot: request.prot, object, grows_down: request.grows_down });
        Ok(())
    }

    /// Shows an object, replacing what was in `range`.
    pub(crate) fn map_object(
        &mut self,
        range: GuestRange,
        object: &Object,
        offset: u64,
        prot: u64,
    ) -> Result<(), HostError> {
        let path = object.path();
        self.map_path(range, prot, libc::MAP_SHARED, OsStr::new(&path), offset)
    }

    fn map_path(
        &mut self,
        range: GuestRange,
        prot: u64,
        sharing: i32,
        path: &OsStr,
        offset: u64,
    ) -> Result<(), HostError> {
        let scratch = u64::from(self.low.scratch());
        let mut name = path.as_bytes().to_vec();
        name.push(0);
        let long = || HostError::Call {
            call: "open",
            source: std::io::Error::from_raw_os_error(libc::ENAMETOOLONG),
        };
        if name.len() as u64 > PAGE_SIZE {
            return Err(long());
        }
        self.host.write(scratch, &name).map_err(|_| long())?;
        let how = if sharing == libc::MAP_SHARED { libc::O_RDWR } else { libc::O_RDONLY };
        let at = libc::AT_FDCWD as u64;
        let open = [at, scratch, (how | libc::O_CLOEXEC) as u64, 0, 0, 0];
        let fd = self.host.call("openat", libc::SYS_openat, open)?;
        let flags = (sharing | libc::MAP_FIXED | libc::MAP_NORESERVE) as u64;
        let mapped =
            self.host.call("mmap", libc::SYS_mmap, [range.start.0, range.len(), prot, flags, fd, offset]);
        self.host.call("close", libc::SYS_close, [fd, 0, 0, 0, 0, 0])?;
        mapped.map(drop)
    }

    /// Unmaps; holes are fine, and so is what the engine has there, which stays.
    ///
    /// # Errors
    ///
    /// The range is not whole pages, or the host refused.
    pub fn unmap(&mut self, range: GuestRange) -> Result<(), MapError> {
        check(range)?;
        let mut at = range.start;
        let ours = self.places.ours().to_vec();
        let end = GuestRange { start: range.end, end: range.end };
        for keep in ours.into_iter().filter(|ours| ours.overlaps(range)).chain([end]) {
            let part = GuestRange { start: at, end: keep.start };
            if part.start < part.end {
                self.host_call(part, "munmap", libc::SYS_munmap, [part.start.0, part.len(), 0, 0, 0, 0])?;
                self.lost(part);
            }
            at = keep.end;
        }
        Ok(())
    }

    /// Changes protection.
    ///
    /// # Errors
    ///
    /// The range is not whole pages, is the engine's, or the host refused.
    pub fn protect(&mut self, range: GuestRange, prot: Prot) -> Result<(), MapError> {
        self.ours_and_whole(range)?;
        self.host_call(
            range,
            "mprotect",
            libc::SYS_mprotect,
            [range.start.0, range.len(), host_prot(prot), 0, 0, 0],
        )?;
        self.areas.protect(range, prot);
        self.watched.retain(|page| !range.contains(*page));
        if !prot.write {
            // What cannot be written need not check itself: nor could it where memory shows otherwise than runs.
            let areas = &self.areas;
            let is_private = |page| areas.at(page).is_some_and(|(_, area)| area.object.is_none());
            self.mixed.retain(|page| !range.contains(*page) || !is_private(*page));
        }
        self.reader.forget(range);
        if !prot.exec {
            self.suspend_code(range);
        }
        for page in self.code.pages_with_code(range) {
            if self.snapshots.contains_key(&page) {
                continue;
            }
            self.watch_code(GuestRange::new(page, PAGE_SIZE))
                .map_err(|source| MapError::Host { range, source })?;
        }
        Ok(())
    }

    /// Moves pages: the contents of `from` appear at `to`, which may be longer or shorter and replaces what was there.
    /// `from` is unmapped unless `keep` (`MREMAP_DONTUNMAP`). An empty `from` shows a shared mapping a second time.
    ///
    /// # Errors
    ///
    /// A range is not whole pages, is the engine's, or the host refused.
    pub fn remap(&mut self, from: GuestRange, to: GuestRange, keep: bool) -> Result<(), MapError> {
        self.ours_and_whole(to)?;
        let Some((_, area)) = self.areas.within(GuestRange::new(from.start, 1)).pop() else {
            let source = std::io::Error::from_raw_os_error(libc::EFAULT);
            return Err(MapError::Host { range: from, source: HostError::Call { call: "mremap", source } });
        };
        if !from.is_empty() {
            self.ours_and_whole(from)?;
            // One mapping again, where single pages were watched.
            let args = [from.start.0, from.len(), host_prot(area.prot), 0, 0, 0];
            self.host_call(from, "mprotect", libc::SYS_mprotect, args)?;
        }
        let moves = from.start != to.start;
        let flags = match (moves, keep) {
            (false, _) => 0,
            (true, false) => libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED,
            (true, true) => libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED | libc::MREMAP_DONTUNMAP,
        };
        let args = [from.start.0, from.len(), to.len(), flags as u64, to.start.0, 0];
        match self.host_call(to, "mremap", libc::SYS_mremap, args) {
            Err(MapError::Host { source: HostError::Call { source, .. }, .. })
                if source.raw_os_error() == Some(libc::EFAULT) && !from.is_empty() =>
            {
                self.remap_pieces(from, to, flags)?;
            }
            result => drop(result?),
        }
        self.lost(to);
        if from.is_empty() {
            self.areas.insert(to, area);
            return Ok(());
        }
        let gone = if keep { area.clone() } else { Area { object: None, ..area.clone() } };
        self.lost(from);
        if keep {
            self.areas.insert(from, gone);
        }
        self.areas.insert(to, area);
        Ok(())
    }

    /// Where the recorded kernel had one mapping and the host has several: each goes by itself, and the last one gets what `to` is
    /// longer than `from`.
    fn remap_pieces(&mut self, from: GuestRange, to: GuestRange, flags: i32) -> Result<(), MapError> {
        let pieces = self.host_pieces(from);
        let moves = from.start != to.start;
        let cut = from.start.wrapping_add(to.len());
        if cut < from.end && flags & libc::MREMAP_DONTUNMAP == 0 {
            let rest = from.end.0 - cut.0;
            self.host_call(from, "munmap", libc::SYS_munmap, [cut.0, rest, 0, 0, 0, 0])?;
        }
        for (at, piece) in pieces.iter().enumerate().filter(|(_, piece)| piece.start < cut) {
            let last = at + 1 == pieces.len();
            let old = piece.end.min(cut).0 - piece.start.0;
            let new = if last && cut > from.end { cut.0 - piece.start.0 } else { old };
            let target = to.start.wrapping_add(piece.start.0 - from.start.0);
            if moves || new != old {
                let args = [piece.start.0, old, new, flags as u64, target.0, 0];
                self.host_call(to, "mremap", libc::SYS_mremap, args)?;
            }
        }
        Ok(())
    }

    /// The host's mappings in a range, ascending.
    fn host_pieces(&self, range: GuestRange) -> Vec<GuestRange> {
        let maps = std::fs::read_to_string(format!("/proc/{}/maps", self.host.tid())).unwrap_or_default();
        let all = maps.lines().filter_map(host_mapping);
        all.filter(|piece| piece.overlaps(range)).map(|piece| piece.intersect(range)).collect()
    }

    /// Drops contents (`MADV_DONTNEED`): private pages read as at first again; shared ones keep theirs.
    ///
    /// # Errors
    ///
    /// The range is not whole pages, is the engine's, or the host refused.
    pub fn discard(&mut self, range: GuestRange) -> Result<(), MapError> {
        self.ours_and_whole(range)?;
        for (piece, area) in self.areas.within(range) {
            if area.object.is_none() {
                let args = [piece.start.0, piece.len(), libc::MADV_DONTNEED as u64, 0, 0, 0];
                self.host_call(piece, "madvise", libc::SYS_madvise, args)?;
                self.rewritten.forget(piece);
                self.unwatch_range(piece).map_err(|source| MapError::Host { range, source })?;
                self.forget_code(piece);
            }
        }
        Ok(())
    }

    fn ours_and_whole(&self, range: GuestRange) -> Result<(), MapError> {
        check(range)?;
        if self.places.is_ours(range) { Err(MapError::Reserved { range }) } else { Ok(()) }
    }

    fn host_call(
        &mut self,
        range: GuestRange,
        name: &'static str,
        nr: i64,
        args: [u64; 6],
    ) -> Result<u64, MapError> {
        self.host.call(name, nr, args).map_err(|source| MapError::Host { range, source })
    }

    /// What was mapped in `range` is gone, or about to be.
    fn lost(&mut self, range: GuestRange) {
        self.areas.remove(range);
        self.rewritten.forget(range);
        self.watched.retain(|page| !range.contains(*page));
        self.mixed.retain(|page| !range.contains(*page));
        self.forget_code(range);
    }

    /// The guest's mappings in ascending order.
    pub fn mappings(&self) -> Vec<Mapping> {
        let grown = self.grown_stacks();
        let areas = self.areas.iter().map(|(range, area)| {
            let start =
                grown.iter().find(|(end, _)| *end == range.end).map_or(range.start, |&(_, start)| start);
            let range = GuestRange { start: start.min(range.start), end: range.end };
            Mapping { range, prot: area.prot, shared: area.object.is_some(), grows_down: area.grows_down }
        });
        areas.collect()
    }

    /// End and present start of each mapping that grows down.
    fn grown_stacks(&self) -> Vec<(GuestAddr, GuestAddr)> {
        if !self.areas.iter().any(|(_, area)| area.grows_down) {
            return Vec::new();
        }
        let maps = std::fs::read_to_string(format!("/proc/{}/maps", self.host.tid())).unwrap_or_default();
        let grows = |end: GuestAddr| {
            self.areas
                .at(end.wrapping_sub(1))
                .is_some_and(|(range, area)| area.grows_down && range.end == end)
        };
        let all = maps.lines().filter_map(host_mapping);
        all.filter(|range| grows(range.end)).map(|range| (range.end, range.start)).collect()
    }

    /// Writes as the kernel does: protections do not matter, translations of bytes that change are dropped.
    ///
    /// # Errors
    ///
    /// Something is not mapped; the bytes before it have been written.
    pub fn write(&mut self, addr: GuestAddr, bytes: &[u8]) -> Result<(), WriteError> {
        let mut done = 0;
        while done < bytes.len() {
            let at = addr.wrapping_add(done as u64);
            let room =
                self.areas.at(at).map_or(PAGE_SIZE - at.page_offset(), |(range, _)| range.end.0 - at.0);
            let len = room.min((bytes.len() - done) as u64) as usize;
            self.write_piece(at, &bytes[done..done + len])?;
            done += len;
        }
        Ok(())
    }

    /// Writes into one area.
    fn write_piece(&mut self, addr: GuestAddr, bytes: &[u8]) -> Result<(), WriteError> {
        let range = GuestRange::new(addr, bytes.len() as u64);
        let object = self.areas.at(addr).and_then(|(range, area)| {
            let (object, offset) = area.object.as_ref()?;
            Some((Rc::clone(object), offset + (addr.0 - range.start.0)))
        });
        let places = match &object {
            None => vec![addr],
            Some((object, offset)) => {
                let aliases = self.areas.aliases(object, *offset);
                aliases.into_iter().map(|page| page.wrapping_add(addr.page_offset())).collect()
            }
        };
        for place in places {
            self.forget_changed(place, bytes);
        }
        if self.rewritten.overlaps(range) {
            self.rewritten.forget(range);
            self.forget_code(range);
        }
        if let Some((object, offset)) = object {
            let written = std::os::unix::fs::FileExt::write_all_at(&object.file, bytes, offset);
            let host = |source| HostError::Call { call: "write", source };
            return written.map_err(|source| WriteError::Host { addr, source: host(source) });
        }
        match self.host.write(addr.0, bytes) {
            Ok(()) => Ok(()),
            Err(unmapped) if self.extend_stack(range)? => {
                self.host.write(addr.0, bytes).map_err(|_| WriteError::Unmapped { addr: unmapped.addr })
            }
            Err(unmapped) => Err(WriteError::Unmapped { addr: unmapped.addr }),
        }
    }

    /// Forgets the code from those pages at `addr` that differ from `bytes`.
    fn forget_changed(&mut self, addr: GuestAddr, bytes: &[u8]) {
        let range = GuestRange::new(addr, bytes.len() as u64);
        // What has a snapshot is compared before it runs.
        let mut pages = self.code.pages_with_code(range).into_iter();
        let known = self.reader.knows(range) || pages.any(|page| !self.snapshots.contains_key(&page));
        if !known {
            return;
        }
        let mut old = vec![0; bytes.len()];
        if self.host.read(addr.0, &mut old).is_err() {
            self.forget_code(range);
            return;
        }
        // Whole pages: blocks depend on code beyond their own bytes, too, but only on their pages.
        for page in (range.start.page().0..range.end.0).step_by(PAGE_SIZE as usize) {
            let page = GuestRange::new(GuestAddr(page), PAGE_SIZE);
            let part = page.intersect(range);
            let part = (part.start.0 - addr.0) as usize..(part.end.0 - addr.0) as usize;
            if old[part.clone()] != bytes[part] {
                self.forget_code(page);
            }
        }
    }

    /// Makes the stack above `range` reach down to it, as the kernel does when it writes there.
    fn extend_stack(&mut self, range: GuestRange) -> Result<bool, WriteError> {
        let Some((stack, area)) = self.areas.at_or_after(range.start) else { return Ok(false) };
        if !area.grows_down || stack.start.0 - range.start.page().0.min(stack.start.0) > STACK_REACH {
            return Ok(false);
        }
        let (area, end) = (area.clone(), stack.end);
        let grown = self.grown_stacks();
        let start = grown.iter().find(|(other, _)| *other == end).map_or(stack.start, |&(_, start)| start);
        let fresh = GuestRange { start: range.start.page(), end: start };
        if fresh.is_empty() {
            return Ok(false);
        }
        let flags = libc::MAP_PRIVATE
            | libc::MAP_ANONYMOUS
            | libc::MAP_FIXED
            | libc::MAP_NORESERVE
            | libc::MAP_GROWSDOWN;
        let args = [fresh.start.0, fresh.len(), host_prot(area.prot), flags as u64, u64::MAX, 0];
        let host = |source| WriteError::Host { addr: range.start, source };
        self.host.call("mmap", libc::SYS_mmap, args).map_err(host)?;
        self.areas.insert(GuestRange { start: fresh.start, end }, area);
        Ok(true)
    }
}

impl GuestMemory for Space {
    fn read(&self, addr: GuestAddr, into: &mut [u8]) -> Result<(), Unmapped> {
        let range = GuestRange::new(addr, into.len() as u64);
        if let Some(ours) = self.places.ours().iter().find(|ours| ours.overlaps(range)) {
            return Err(Unmapped { addr: ours.start.max(addr) });
        }
        self.host.read(addr.0, into)
    }
}
