//! Islands: unreachable bytes that hold a jump.
//!
//! An island in reach of the site's short jump holds the jump to the stub. Where there is only room for a jump with a 32-bit
//! displacement, it holds a relay: a jump to an island elsewhere in the text.

use std::ops::Range;

use crate::addr::CodeAddr;
use crate::decode::{MIN_WEIGHT, Surroundings, Sweep, surroundings, weight};
use crate::padding;
use crate::plan::{Examined, JUMP, Method, Plan};
use crate::refusal::Obstacle;
use crate::stub::Builder;

/// The length of a short jump.
const SHORT: u64 = 2;
/// The length of a jump with a 32-bit displacement.
const RELAY: u64 = 5;
/// How far from the site an island may be that is reached through a relay.
const FAR: u64 = 0x1_0000;

impl Examined<'_> {
    /// The patch by a short jump to an island.
    pub(crate) fn island(&self) -> Result<Plan, Obstacle> {
        let (site, after) = (self.site.at.0, self.after());
        self.check_window(site, after, after)?;
        let direct = self.near(JUMP);
        let relayed = || {
            let relay = self.near(RELAY)?;
            Some((self.far(&relay)?, Some(relay)))
        };
        let (island, relay) = direct.map(|hole| (hole, None)).or_else(relayed).ok_or(Obstacle::NoPadding)?;
        let mut builder = Builder::new(self.site.stub);
        let mut writes = vec![self.write(island.start, self.jump())];
        let mut target = island.start;
        if let Some(relay) = relay {
            let distance = target.wrapping_sub(relay.start + RELAY) as u32;
            writes.push(self.write(relay.start, [&[0xE9][..], &distance.to_le_bytes()].concat()));
            target = relay.start;
        }
        for write in &writes {
            builder.place_at(write.at, self.site.at);
        }
        self.put_call(&mut builder);
        writes.push(self.write(site, vec![0xEB, target.wrapping_sub(site + SHORT) as u8]));
        self.finish(Method::Island, writes, builder, after, site..after)
    }

    /// Unreachable bytes, `len` of them, within a short jump of the site: what follows it first.
    fn near(&self, len: u64) -> Option<Range<u64>> {
        let from = self.site.at.0 + SHORT;
        let reach = from.saturating_sub(128)..from + 128;
        let mut runs = padding::runs(&mut Sweep::new(self.code), &self.around);
        runs.sort_by_key(|run| (run.start < self.site.at.0, run.start.abs_diff(self.site.at.0)));
        runs.into_iter().find_map(|run| self.hole(&self.around, run, &reach, len))
    }

    /// Unreachable bytes for the jump to the stub, anywhere but in the relay: the nearest.
    fn far(&self, relay: &Range<u64>) -> Option<Range<u64>> {
        let text = self.code.range();
        let site = self.site.at.0 & !15;
        let both = (1..FAR / 16).flat_map(|step| [site.checked_add(16 * step), site.checked_sub(16 * step)]);
        let starts = both.flatten().filter(|start| text.contains(start));
        let is_start = |start: &u64| weight(self.code, *start, self.facts.entries) >= MIN_WEIGHT;
        starts.filter(is_start).find_map(|start| {
            let around = surroundings(self.code, start, self.facts.entries)?;
            let runs = padding::runs(&mut Sweep::new(self.code), &around);
            let run = runs.into_iter().find(|run| run.end == start)?;
            let hole = self.hole(&around, run, &text, JUMP)?;
            (hole.end <= relay.start || relay.end <= hole.start).then_some(hole)
        })
    }

    /// `len` bytes of a run of padding, starting within `reach`.
    fn hole(
        &self,
        around: &Surroundings,
        run: Range<u64>,
        reach: &Range<u64>,
        len: u64,
    ) -> Option<Range<u64>> {
        // Where it is entered or named, it is no longer padding.
        let named = run.clone().find(|&at| self.code.is_referred(at)).map(CodeAddr);
        let entered = self.first_entry(around, run.clone());
        let end = named.into_iter().chain(entered).min().map_or(run.end, |at| at.0);
        let mut at = run.start.max(reach.start);
        loop {
            let hole = at..at + len;
            if hole.end > end || at >= reach.end {
                return None;
            }
            match self.taken(&hole) {
                Some(taken) => at = taken.end.0,
                None => return Some(hole),
            }
        }
    }
}
