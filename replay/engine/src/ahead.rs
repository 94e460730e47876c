//! Translating: the block that is missing and some of those that will be next, put into the cache, linked and listed
//! by one write.

use std::collections::VecDeque;
use std::num::NonZeroU32;
use std::rc::Rc;

use guest::{GuestAddr, GuestRange, PAGE_SIZE};
use translate::{CacheAddr, Mode, Refusal, Request, Terminator, Translated, translate};

use crate::arena::{ARENA_BYTES, Arena};
use crate::selfmod::pages_of;
use crate::source::Code;
use crate::space::Space;
use crate::{Block, HostError, RunError};

/// Blocks translated for one miss.
const AHEAD: usize = 24;

/// What to translate next, and whether indirect branches go there: first what is certain to run.
#[derive(Default)]
struct Queue {
    certain: VecDeque<(GuestAddr, bool)>,
    likely: VecDeque<(GuestAddr, bool)>,
}

impl Queue {
    fn follow(&mut self, translated: &Translated) {
        let end = translated.paths.iter().max_by_key(|path| path.instructions).map(|path| path.end);
        let next = match end {
            Some(Terminator::Fall { to } | Terminator::Jump { to } | Terminator::Call { to, .. }) => Some(to),
            _ => None,
        };
        self.certain.extend(next.map(|to| (to, false)));
        self.certain.extend(translated.return_sites.iter().map(|&site| (site, true)));
        let others = translated.links.iter().map(|link| link.target).filter(|&to| Some(to) != next);
        self.likely.extend(others.map(|to| (to, false)));
    }

    /// The next one, if `left` more may be translated; of the merely likely ones only while there is room for more.
    fn next(&mut self, left: usize) -> Option<(GuestAddr, bool)> {
        self.certain.pop_front().or_else(|| if left > AHEAD / 3 { self.likely.pop_front() } else { None })
    }
}

/// A translation, and where it goes.
struct Placed {
    arena: usize,
    translated: Translated,
    hot: CacheAddr,
    cold: CacheAddr,
}

/// Why there is no block.
#[derive(Debug)]
pub(crate) enum Missing {
    /// The guest cannot run there.
    Refused(Refusal),
    /// The engine failed.
    Failed(RunError),
}

impl From<HostError> for Missing {
    fn from(error: HostError) -> Self {
        Self::Failed(error.into())
    }
}

impl From<RunError> for Missing {
    fn from(error: RunError) -> Self {
        Self::Failed(error)
    }
}

impl Space {
    /// The block at `pc` in `mode`, translated now if need be; with `listed`, entered in the lookup table.
    pub(crate) fn block_for(
        &mut self,
        mode: Mode,
        pc: GuestAddr,
        listed: bool,
    ) -> Result<Rc<Block>, Missing> {
        let found = self.find(mode, pc)?;
        let block = match found {
            Some(block) => {
                self.counters.unlisted += u64::from(listed);
                block
            }
            None => {
                self.make_room(pc)?;
                self.translate_ahead(mode, pc)?
            }
        };
        if listed && !self.breakpoints.contains(&pc) {
            let table = self.tables.table[crate::place::mode_index(mode)];
            Rc::make_mut(&mut self.code).list(&block, table, &mut self.patches);
        }
        Ok(block)
    }

    /// The block at `pc`, if there is one or one may be used again.
    fn find(&mut self, mode: Mode, pc: GuestAddr) -> Result<Option<Rc<Block>>, HostError> {
        if self.code.find(mode, pc).is_none() && !self.snapshots.is_empty() {
            self.revalidate(pc.page())?;
            self.revalidate(pc.page().wrapping_add(PAGE_SIZE))?;
        }
        Ok(self.code.find(mode, pc).map(Rc::clone))
    }

    fn translate_ahead(&mut self, mode: Mode, pc: GuestAddr) -> Result<Rc<Block>, Missing> {
        let mut queue = Queue::default();
        let first = self.translate_listed(mode, pc, &mut queue)?;
        let table = self.tables.table[crate::place::mode_index(mode)];
        let mut left = AHEAD - 1;
        while let Some((pc, listed)) = queue.next(left) {
            if self.breakpoints.contains(&pc) && mode.exact() {
                continue;
            }
            let known = self.find(mode, pc)?;
            let block = match known {
                Some(block) => block,
                None if left == 0 => continue,
                None => match self.translate_listed(mode, pc, &mut queue) {
                    Ok(block) => {
                        left -= 1;
                        block
                    }
                    // Whether the guest gets there is not known yet.
                    Err(Missing::Refused(_)) => continue,
                    Err(failed) => return Err(failed),
                },
            };
            if listed {
                Rc::make_mut(&mut self.code).list(&block, table, &mut self.patches);
            }
        }
        Ok(first)
    }

    /// Translates the block at `pc` and puts it where others find it; `queue` learns what comes after it.
    fn translate_listed(
        &mut self,
        mode: Mode,
        pc: GuestAddr,
        queue: &mut Queue,
    ) -> Result<Rc<Block>, Missing> {
        let self_check = self.is_mixed(pc) || self.is_shared(pc);
        let Placed { arena, translated, hot, cold } =
            self.translate_one(mode, pc, None, self_check, false)?;
        self.patches.put_code(hot.0, &translated.code);
        self.patches.put_code(cold.0, &translated.cold);
        queue.follow(&translated);
        let arena = &mut Rc::make_mut(&mut self.code).arenas[arena];
        arena.take(translated.id, translated.code.len(), translated.cold.len());
        if !self.snapshots.is_empty() {
            for page in translated.sources.iter().copied().flat_map(pages_of) {
                self.revalidate(page)?;
            }
        }
        let code = Rc::make_mut(&mut self.code);
        let block = code.add(Block::new(translated, hot, cold, mode), &mut self.patches);
        if !self_check {
            for &range in &block.translated.sources {
                self.watch_code(range)?;
            }
        }
        Ok(block)
    }

    /// Translates `limit` instructions at `pc` as a block that nothing else goes to, replacing the last such block.
    pub(crate) fn translate_once(
        &mut self,
        mode: Mode,
        pc: GuestAddr,
        limit: NonZeroU32,
    ) -> Result<Rc<Block>, Missing> {
        // The code of the last one must not be pending any more.
        self.flush()?;
        Rc::make_mut(&mut self.code).drop_once();
        let Placed { arena, translated, hot, cold } =
            self.translate_one(mode, pc, Some(limit), false, true)?;
        self.patches.put_code(hot.0, &translated.code);
        self.patches.put_code(cold.0, &translated.cold);
        let code = Rc::make_mut(&mut self.code);
        code.arenas[arena].set_once(translated.id);
        Ok(code.add_unlisted(Block::new(translated, hot, cold, mode)))
    }

    fn translate_one(
        &mut self,
        mode: Mode,
        pc: GuestAddr,
        limit: Option<NonZeroU32>,
        self_check: bool,
        once: bool,
    ) -> Result<Placed, Missing> {
        if self.areas.at(pc).is_none() {
            // Perhaps there is no room for an arena near it, either.
            return Err(Missing::Refused(Refusal::Unreadable { pc, addr: pc }));
        }
        if mode.logs() && self.code.next_id().0 >= translate::log::MAX_BLOCKS {
            return Err(Missing::Failed(RunError::TooManyBlocks));
        }
        let code = Code { host: &self.host, areas: &self.areas, rewritten: &self.rewritten };
        self.reader.load(code, pc, false);
        let mut across = false;
        let mut arena = self.arena_for(pc)?;
        let mut retried = false;
        loop {
            let places = self.code.arenas[arena].next();
            let Some((hot, cold)) = (if once { Some(self.code.arenas[arena].once()) } else { places }) else {
                arena = self.new_arena(pc)?;
                continue;
            };
            let request = Request {
                pc,
                code: &self.reader,
                hot,
                cold,
                mode,
                id: self.code.next_id(),
                limit,
                breakpoints: if mode.exact() { &self.breakpoints } else { &self.no_breakpoints },
                search: self.searched(),
                self_check,
                layout: &self.low.layout(mode),
                branches: self.counted,
                rtm: self.rtm,
                xsave_size: self.xsave_size,
            };
            match translate(&request) {
                Ok(translated) => return Ok(Placed { arena, translated, hot, cold }),
                // What the code addresses lies farther from it than most does: try as near as can be.
                Err(Refusal::OutOfReach { .. }) if !retried => {
                    retried = true;
                    arena = self.new_arena(pc)?;
                }
                // Its first instruction may reach into the next page.
                Err(Refusal::Unreadable { .. }) if !across => {
                    across = true;
                    let code = Code { host: &self.host, areas: &self.areas, rewritten: &self.rewritten };
                    self.reader.load(code, pc, true);
                }
                Err(refusal) => return Err(Missing::Refused(refusal)),
            }
        }
    }

    /// Before anything is translated at `pc`, and while the cache is left: if the arenas within reach are full, one that holds
    /// mostly code that will not be run again begins anew, or, when there is no place for another, any.
    fn make_room(&mut self, pc: GuestAddr) -> Result<(), RunError> {
        let arenas = &self.code.arenas;
        let near: Vec<usize> = (0..arenas.len()).filter(|&arena| arenas[arena].reaches(pc)).collect();
        let Some(&first) = near.first().filter(|_| !near.iter().any(|&arena| arenas[arena].is_roomy()))
        else {
            return Ok(());
        };
        let arena = match near.into_iter().find(|&arena| arenas[arena].is_mostly_dead()) {
            Some(arena) => arena,
            None => match self.new_arena(pc) {
                Err(RunError::NoRoom { .. }) => first,
                made => return made.map(drop),
            },
        };
        // Where the last x87 instruction was is known by its place in the arena.
        let state = self.xstate()?;
        self.set_xstate(&state)?;
        self.flush()?;
        Rc::make_mut(&mut self.code).clear_arena(arena, &self.tables, &mut self.patches);
        Ok(self.flush()?)
    }

    /// An arena within reach of `pc`, made if need be.
    fn arena_for(&mut self, pc: GuestAddr) -> Result<usize, RunError> {
        let known = self.code.arenas.iter().rposition(|arena| arena.reaches(pc) && arena.next().is_some());
        match known {
            Some(arena) => Ok(arena),
            None => self.new_arena(pc),
        }
    }

    fn new_arena(&mut self, pc: GuestAddr) -> Result<usize, RunError> {
        let (start, size) = self.places.take_near(pc, &ARENA_BYTES).ok_or(RunError::NoRoom { pc })?;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED | libc::MAP_NORESERVE;
        let prot = libc::PROT_READ | libc::PROT_WRITE | libc::PROT_EXEC;
        let args = [start, size, prot as u64, flags as u64, u64::MAX, 0];
        self.host.call("mmap", libc::SYS_mmap, args)?;
        let code = Rc::make_mut(&mut self.code);
        code.arenas.push(Arena::new(start, size));
        Ok(code.arenas.len() - 1)
    }

    /// Forgets all code that came from `range`.
    pub(crate) fn forget_code(&mut self, range: GuestRange) {
        self.reader.forget(range);
        self.snapshots.retain(|page, _| page.0 < range.start.0 || page.0 + PAGE_SIZE > range.end.0);
        let code = Rc::make_mut(&mut self.code);
        code.remove_range(range, &self.tables, &mut self.patches);
    }

    /// Whether the page of `pc` is both run and written so often that its blocks check themselves.
    fn is_mixed(&self, pc: GuestAddr) -> bool {
        if self.mixed.is_empty() {
            return false;
        }
        let page = pc.page();
        let next = page.wrapping_add(PAGE_SIZE);
        self.mixed.contains(&page) || (pc.page_offset() > PAGE_SIZE - 256 && self.mixed.contains(&next))
    }

    /// Whether another space may write the code at `pc`, which then is not noticed here.
    fn is_shared(&self, pc: GuestAddr) -> bool {
        Rc::strong_count(&self.objects) > 1
            && self.areas.at(pc).is_some_and(|(_, area)| area.object.is_some())
    }

    /// Forgets all code from shared mappings.
    pub(crate) fn forget_shared_code(&mut self) {
        let shared = self.areas.iter().filter(|(_, area)| area.object.is_some() && area.prot.exec);
        let ranges: Vec<GuestRange> = shared.map(|(range, _)| range).collect();
        for range in ranges {
            self.forget_code(range);
        }
    }
}
