//! Execution points: recorded by state, found by the first replay as the one instruction at which the running task has that state.

use engine::{Branches, Search, Space};
use guest::{EventId, GuestAddr, GuestMemory, IMAGE_HEADER, PAGE_SIZE, image_parts};
use trace::{Event, Fact, PointInfo, Stop, Trace};

use crate::compare::differences;
use crate::error::{Difference, Divergence, ReplayError};
use crate::observer::Silent;
use crate::options::{Options, Position, Until};
use crate::replay::Replay;

/// Instructions that no processor retires faster than, per nanosecond of CPU time.
const FASTEST: u64 = 16;
/// A count may be too high by one in so many (recorders use no counter that is much worse than half of that), and by so many more.
const OVERCOUNT: u64 = 500;
const FEW: u64 = 64;
/// Nanoseconds by which the CPU time told may be short.
const SLACK: u64 = 50_000_000;
/// Candidates after which it is too late: a loop that changes nothing has as many as are asked for.
const MOST_REFUTED: u64 = 1 << 20;

/// A search under way.
#[derive(Clone, Debug)]
pub(crate) struct Finder {
    event: EventId,
    /// Words of memory that told false candidates from the point.
    words: Vec<(GuestAddr, u64)>,
    /// Candidates that were not it.
    refuted: u64,
    /// The page that refuted the last one.
    page: usize,
    /// Instructions after the task's last event at which the search began.
    begun: u64,
    /// Instructions after which it is too late.
    limit: u64,
    /// Register images in memory, as they were recorded.
    images: Vec<(GuestAddr, Vec<u8>)>,
}

/// What a state that has the right registers comes to.
enum Verdict {
    Found,
    /// This word tells it from the point.
    Word(GuestAddr, u64),
    /// Something else does.
    Other,
}

impl Finder {
    fn new(
        trace: &Trace,
        (id, event): (EventId, &Event),
        info: &PointInfo,
        begun: u64,
    ) -> Result<Self, ReplayError> {
        let limit = (info.cpu_nanos.saturating_add(SLACK)).saturating_mul(FASTEST);
        let mut images = Vec::new();
        for write in &event.writes {
            images.push((write.addr, trace.data(&write.data)?.into_owned()));
        }
        Ok(Self { event: id, words: Vec::new(), refuted: 0, page: 0, begun, limit, images })
    }

    /// What of the recorded register images the processor may have left otherwise in a space: which components it found in use, and
    /// those of which one side has the initial values. What has come to lie over an image since is not excused, for it tells one
    /// instruction from another.
    fn excused(&self, space: &Space) -> Vec<(GuestAddr, &[u8])> {
        const IN_USE: std::ops::Range<usize> = IMAGE_HEADER..IMAGE_HEADER + 8;
        // Not stored either where the vector registers are not in use.
        const MXCSR: std::ops::Range<usize> = 24..32;
        const LAYOUT: usize = IMAGE_HEADER + 8;
        let mut excused = Vec::new();
        for (addr, image) in &self.images {
            let mut here = vec![0; image.len()];
            let Some((header, _)) = image.get(LAYOUT..).and_then(<[u8]>::split_first_chunk) else { continue };
            if space.read(*addr, &mut here).is_err() {
                continue;
            }
            let mut add = |part: std::ops::Range<usize>| {
                excused.extend(
                    image.get(part.clone()).map(|bytes| (addr.wrapping_add(part.start as u64), bytes)),
                );
            };
            add(IN_USE);
            add(MXCSR);
            let initial = |bytes: &[u8], part: &std::ops::Range<usize>| {
                bytes.get(part.clone()).is_some_and(|bytes| bytes.iter().all(|byte| *byte == 0))
            };
            for (number, part) in image_parts(u64::from_le_bytes(*header)) {
                // Initial x87 registers are not all 0.
                if number == 0 || initial(image, &part) || initial(&here, &part) {
                    add(part);
                }
            }
        }
        excused
    }

    /// Puts over `bytes`, which lie at `start`, what is excused there.
    fn overlay(excused: &[(GuestAddr, &[u8])], start: GuestAddr, bytes: &mut [u8]) {
        for (addr, image) in excused {
            let from = start.0.max(addr.0);
            let to = (start.0 + bytes.len() as u64).min(addr.0 + image.len() as u64);
            if from < to {
                let (into, out) = ((from - start.0) as usize, (from - addr.0) as usize);
                let len = (to - from) as usize;
                bytes[into..into + len].copy_from_slice(&image[out..out + len]);
            }
        }
    }

    /// Judges the present state of a space against the point.
    fn judge(&mut self, space: &Space, info: &PointInfo) -> Result<Verdict, engine::HostError> {
        let excused = self.excused(space);
        for piece in &info.key {
            let mut here = vec![0; piece.bytes.len()];
            if space.read(piece.addr, &mut here).is_err() {
                tracing::debug!(event = %self.event, addr = %piece.addr, "a candidate has no memory there");
                return Ok(Verdict::Other);
            }
            Self::overlay(&excused, piece.addr, &mut here);
            let words = piece.bytes.as_chunks::<8>().0.iter().zip(here.as_chunks::<8>().0);
            if let Some(at) = words.into_iter().position(|(want, have)| want != have) {
                let value = u64::from_le_bytes(piece.bytes.as_chunks::<8>().0[at]);
                return Ok(Verdict::Word(piece.addr.wrapping_add(8 * at as u64), value));
            }
        }
        if !info.xstate.same_values(&space.xstate()?) {
            tracing::debug!(event = %self.event, "a candidate has other extended state");
            return Ok(Verdict::Other);
        }
        let mut bytes = vec![0; PAGE_SIZE as usize];
        let count = info.pages.len();
        // What refuted the last one most likely refutes this one.
        for at in (0..count).map(|i| (i + self.page) % count) {
            let sum = info.pages[at];
            let start = GuestAddr(sum.page * PAGE_SIZE);
            let readable = space.read(start, &mut bytes).is_ok();
            Self::overlay(&excused, start, &mut bytes);
            if !readable || crc32fast::hash(&bytes) != sum.crc {
                tracing::debug!(
                    event = %self.event,
                    page = %start,
                    "a candidate has another page"
                );
                self.page = at;
                return Ok(Verdict::Other);
            }
        }
        Ok(Verdict::Found)
    }
}

impl Replay {
    /// Notes where the branches that lead to the point are counted from.
    pub(crate) fn begin_lead(&mut self) -> Result<(), ReplayError> {
        if self.cursor.ran > 0 || self.config.branches == Branches::Uncounted {
            return Ok(());
        }
        let Some((id, event)) = &self.cursor.next else { return Ok(()) };
        let (_, space) = self.live.enter(event.task).ok_or(ReplayError::NotAlive { event: *id })??;
        self.cursor.branches = space.branches();
        Ok(())
    }

    /// Branches, and thus at least so many instructions, before the search begins: where a counter told how many there are, all but
    /// those that it may have counted too many.
    pub(crate) fn lead(&self) -> u64 {
        let Some((_, event)) = &self.cursor.next else { return 0 };
        let Fact::Point(info) = &event.fact else { return 0 };
        let (Some(count), true) = (info.branches, self.config.branches != Branches::Uncounted) else {
            return 0;
        };
        let Some(space) = self.live.space(event.space) else { return 0 };
        let passed = space.branches().saturating_sub(self.cursor.branches);
        count.saturating_sub(count / OVERCOUNT + FEW).saturating_sub(passed)
    }

    /// Whether a search that began where a count said has failed: the count may be wrong, as only the state is never.
    pub(crate) fn was_led_astray(&self, error: &ReplayError) -> bool {
        let counts = self.moments.is_none() && self.config.branches != Branches::Uncounted;
        let not_found = |divergence: &Divergence| matches!(divergence.what, Difference::NoPoint { .. });
        counts && matches!(error, ReplayError::Divergence(divergence) if not_found(divergence))
    }

    /// Finds all points by state alone, by a replay beside this one, which then stands where this one did before the search.
    pub(crate) fn disregard_counts(&mut self) -> Result<(), ReplayError> {
        let event = self.next_id();
        tracing::warn!(%event, "a hardware counter's count is wrong: points are searched for by state alone");
        let options = Options {
            mode: self.config.mode,
            log_bytes: self.config.log_bytes,
            cpu: self.config.cpu,
            one_by_one: self.one_by_one,
        };
        let moments = Self::open_uncounted(&self.trace, &options)?.finish(&mut Silent)?;
        let position = Position { moment: moments.start(event), event };
        let mut again = Self::open_known(&self.trace, &moments, &options)?;
        again.run(Until::Position(position), &mut Silent)?;
        again.set_stops(&self.stops)?;
        again.searched += self.searched;
        *self = again;
        Ok(())
    }

    /// Whether the task stands at the execution point that is its next event. Otherwise the search goes on: the space
    /// stops at the next candidate.
    pub(crate) fn is_point(&mut self) -> Result<bool, ReplayError> {
        let Some((id, event)) = &self.cursor.next else { return Ok(false) };
        let Fact::Point(info) = &event.fact else { return Ok(false) };
        let (id, task) = (*id, event.task);
        let finder = match &mut self.finder {
            Some(finder) if finder.event == id => finder,
            other => other.insert(Finder::new(&self.trace, (id, event), info, self.cursor.ran)?),
        };
        let (space_id, space) = self.live.enter(task).ok_or(ReplayError::NotAlive { event: id })??;
        let host = |source| ReplayError::Host { space: space_id, source };
        if has_registers(event, space) {
            match finder.judge(space, info).map_err(host)? {
                Verdict::Found => {
                    self.searched += self.cursor.ran - finder.begun;
                    self.finder = None;
                    return self.search(task, None).map(|()| true);
                }
                Verdict::Word(addr, value) if !finder.words.iter().any(|(known, _)| *known == addr) => {
                    // The newest tells apart what is near by.
                    finder.words.insert(0, (addr, value));
                    finder.words.truncate(Search::MAX_WORDS);
                }
                Verdict::Word(..) | Verdict::Other => {}
            }
            finder.refuted += 1;
        }
        let refuted = finder.refuted;
        if self.cursor.ran > finder.limit || refuted > MOST_REFUTED {
            return Err(self.diverged(Difference::NoPoint { refuted }));
        }
        let search = Search { registers: event.before, words: finder.words.clone() };
        self.search(task, Some(&search)).map(|()| false)
    }

    /// How many instructions the search may still take.
    pub(crate) fn search_limit(&self) -> Option<u64> {
        let finder = self.finder.as_ref()?;
        Some(finder.limit.saturating_sub(self.cursor.ran) + 1)
    }

    /// How many candidates were refuted in the search under way.
    pub(crate) fn refuted(&self) -> Option<u64> {
        self.finder.as_ref().map(|finder| finder.refuted)
    }

    fn search(&mut self, task: guest::TaskId, search: Option<&Search>) -> Result<(), ReplayError> {
        let event = self.next_id();
        let moment = self.cursor.moment;
        let (_, space) = self.live.enter(task).ok_or(ReplayError::NotAlive { event })??;
        space.set_search(search).map_err(|source| ReplayError::Run { task, moment, event, source })
    }
}

/// Whether the space's registers are those of the point. Its flags are exact at a candidate.
fn has_registers(event: &Event, space: &Space) -> bool {
    differences(&event.before, &space.registers(), Stop::Point, true).is_empty()
}
