//! Instructions around a site, as far as several starts agree on them.
//!
//! The site runs, so it is an instruction, and what follows it is decoded from there. What lies before it is not known: it
//! is decoded from addresses that are probably instructions (the targets of calls, the ends of padding, what the caller
//! knows), and only believed as far as all of these decodings have the same instructions and come to the site.

use iced_x86::{Decoder, DecoderOptions, FlowControl, Instruction};

use crate::addr::CodeAddr;
use crate::padding;
use crate::text::Mapped;

/// How far before a site starts are looked for.
const REACH: u64 = 4096;
/// As far from a site as anything that matters: a window, and the reach of the short branches that lead into it.
const NEAR: u64 = 160;
/// What the starts that agree have to weigh, at least. An address that the caller knows weighs 2; the target of a long
/// branch and the end of padding 1 each.
pub(crate) const MIN_WEIGHT: u32 = 2;

/// The instructions around a site.
#[derive(Debug)]
pub(crate) struct Surroundings {
    /// In a row without gaps.
    steps: Vec<Instruction>,
    /// The index of the site.
    site: usize,
    targets: Vec<u64>,
}

impl Surroundings {
    /// The site's instruction and what follows, as far as it is believed.
    pub(crate) fn onward(&self) -> &[Instruction] {
        &self.steps[self.site..]
    }

    /// What precedes the site, as far as it is believed.
    pub(crate) fn before(&self) -> &[Instruction] {
        &self.steps[..self.site]
    }

    pub(crate) fn all(&self) -> &[Instruction] {
        &self.steps
    }

    /// Where the direct branches among the believed instructions lead.
    pub(crate) fn targets(&self) -> &[u64] {
        &self.targets
    }

    /// Where the believed instructions begin and end.
    pub(crate) fn start(&self) -> u64 {
        self.steps[0].ip()
    }

    pub(crate) fn end(&self) -> u64 {
        self.steps.last().expect("holds the site").next_ip()
    }
}

/// Decodes around the instruction at `site`. `known` are addresses of instructions, in order.
pub(crate) fn surroundings(code: Mapped<'_>, site: u64, known: &[CodeAddr]) -> Option<Surroundings> {
    let mut sweep = Sweep::new(code);
    let first = known.partition_point(|at| at.0 < site.saturating_sub(REACH));
    let last = known.partition_point(|at| at.0 < site + NEAR + 16);
    let known = &known[first..last];
    let mut after = onward(&mut sweep, site, known)?;
    let believed = before(&mut sweep, site, known);
    let mut steps: Vec<Instruction> = believed.into_iter().filter_map(|at| sweep.decode(at)).collect();
    let mut index = steps.len();
    steps.append(&mut after);
    // A branch into the middle of an instruction: one of the two is none.
    for target in targets(&steps) {
        let hit = steps.partition_point(|step| step.next_ip() <= target);
        let Some(step) = steps.get(hit).filter(|step| step.ip() < target) else { continue };
        if is_past_prefix(code, step.ip(), target) {
            continue;
        }
        if hit < index {
            steps.drain(..index);
            index = 0;
        } else if hit > index {
            steps.truncate(hit);
        }
    }
    let targets = targets(&steps);
    Some(Surroundings { steps, site: index, targets })
}

/// Where the direct branches among instructions lead.
fn targets(steps: &[Instruction]) -> Vec<u64> {
    steps.iter().filter_map(branch_target).collect()
}

/// A branch over a `lock` is one that means it.
fn is_past_prefix(code: Mapped<'_>, at: u64, target: u64) -> bool {
    target == at + 1 && matches!(code.byte(at), Some(0xF0 | 0xF2 | 0xF3))
}

/// The instructions from the site on, up to the first start that is not among them.
fn onward(sweep: &mut Sweep<'_>, site: u64, known: &[CodeAddr]) -> Option<Vec<Instruction>> {
    let mut steps = vec![sweep.decode(site)?];
    let mut at = steps[0].next_ip();
    while at < site + NEAR {
        let Some(step) = sweep.decode(at) else { break };
        if (at + 1..step.next_ip()).any(|inside| weight(sweep.code, inside, known) > 0) {
            break;
        }
        at = step.next_ip();
        steps.push(step);
    }
    Some(steps)
}

/// The believed instructions before the site: their addresses, in order.
fn before(sweep: &mut Sweep<'_>, site: u64, known: &[CodeAddr]) -> Vec<u64> {
    let lowest = site.saturating_sub(REACH).max(sweep.code.range().start);
    let near = site.saturating_sub(NEAR);
    // Addresses of instructions that lead to the site, descending; those of them at which decoding started.
    let mut seen = vec![site];
    let mut starts = Vec::new();
    let mut agreed_from = near;
    let mut beyond = 0;
    for start in (lowest..site).rev() {
        if beyond >= MIN_WEIGHT {
            break;
        }
        let weight = weight(sweep.code, start, known);
        if weight == 0 {
            continue;
        }
        match sweep.walk(start, &seen) {
            Walk::Joined { path, at } => {
                // Another start had led to instructions that this one runs over.
                if seen.iter().any(|&other| start < other && other < at) {
                    agreed_from = agreed_from.max(at);
                }
                seen.extend(path);
                seen.sort_unstable_by(|a, b| b.cmp(a));
                starts.push((start, weight));
                beyond += if start <= near { weight } else { 0 };
            }
            Walk::Missed => return Vec::new(),
            Walk::Ended => {}
        }
    }
    // An instruction is believed if enough starts lead to it.
    let mut weight = 0;
    let enough = starts.iter().rev().find(|start| {
        weight += start.1;
        weight >= MIN_WEIGHT
    });
    let Some(&(enough, _)) = enough else { return Vec::new() };
    seen.into_iter().rev().filter(|&at| agreed_from.max(enough) <= at && at < site).collect()
}

/// How likely an instruction begins there.
pub(crate) fn weight(code: Mapped<'_>, at: u64, known: &[CodeAddr]) -> u32 {
    let is_known = known.binary_search(&CodeAddr(at)).is_ok();
    let ends_padding = at.is_multiple_of(16) && padding::ends_at(code, at);
    2 * u32::from(is_known) + u32::from(code.is_entered(at)) + u32::from(ends_padding)
}

/// Where a near branch (or the fallback of a transaction) leads, if that is known.
fn branch_target(step: &Instruction) -> Option<u64> {
    match step.flow_control() {
        FlowControl::UnconditionalBranch
        | FlowControl::ConditionalBranch
        | FlowControl::Call
        | FlowControl::XbeginXabortXend
            if step.near_branch_target() != 0 =>
        {
            Some(step.near_branch_target())
        }
        _ => None,
    }
}

/// How following a decoding ended.
enum Walk {
    /// At an instruction known before. The addresses passed, ascending.
    Joined { path: Vec<u64>, at: u64 },
    /// It ran over the site.
    Missed,
    /// At what is no instruction.
    Ended,
}

/// A decoder that can be put anywhere.
pub(crate) struct Sweep<'a> {
    code: Mapped<'a>,
    decoder: Decoder<'a>,
}

impl<'a> Sweep<'a> {
    pub(crate) fn new(code: Mapped<'a>) -> Self {
        Self { code, decoder: Decoder::new(64, code.all(), DecoderOptions::NONE) }
    }

    /// The instruction at an address, if there is one.
    pub(crate) fn decode(&mut self, at: u64) -> Option<Instruction> {
        let offset = at.checked_sub(self.code.range().start)?;
        self.decoder.set_position(usize::try_from(offset).ok()?).ok()?;
        self.decoder.set_ip(at);
        let step = self.decoder.decode();
        (!step.is_invalid()).then_some(step)
    }

    /// Follows instructions in a row to the first that is in `seen` (which is descending and begins with the site).
    fn walk(&mut self, start: u64, seen: &[u64]) -> Walk {
        let mut path = Vec::new();
        let mut at = start;
        loop {
            if seen.binary_search_by(|probe| at.cmp(probe)).is_ok() {
                return Walk::Joined { path, at };
            }
            if at > seen[0] {
                return Walk::Missed;
            }
            path.push(at);
            let Some(step) = self.decode(at) else { return Walk::Ended };
            at = step.next_ip();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::fs;

    use super::*;
    use crate::text::Text;

    /// The code of the C library that this test has mapped.
    fn c_library() -> Vec<u8> {
        let maps = fs::read_to_string("/proc/self/maps").unwrap();
        let line = maps.lines().find(|line| line.contains("/libc.so") && line.contains("r-xp")).unwrap();
        let fields: Vec<&str> = line.split_whitespace().collect();
        let (from, to) = fields[0].split_once('-').unwrap();
        let number = |text| usize::from_str_radix(text, 16).unwrap();
        let offset = number(fields[2]);
        fs::read(fields[5]).unwrap()[offset..offset + number(to) - number(from)].to_vec()
    }

    #[test]
    fn believed_instructions_are_instructions() {
        let text = Text::new(c_library());
        let code = Mapped::new(&text, CodeAddr(0));
        // A compiler puts no data between the C library's functions, so decoding it in a row finds its instructions.
        let mut truth = BTreeSet::new();
        let mut decoder = Decoder::new(64, code.all(), DecoderOptions::NONE);
        while decoder.can_decode() {
            truth.insert(decoder.decode().ip());
        }
        let (mut asked, mut known) = (0, 0);
        for &at in truth.iter().step_by(29) {
            let Some(around) = surroundings(code, at, &[]) else { continue };
            asked += 1;
            known += u32::from(around.before().len() > 2);
            for step in around.all() {
                assert!(truth.contains(&step.ip()), "{:#x} is no instruction (from {at:#x})", step.ip());
            }
        }
        assert!(asked > 5000 && known * 100 > asked * 95, "{known} of {asked}");
    }
}
