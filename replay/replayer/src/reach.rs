//! Running a task towards its next event, and whether what it reaches is what the recording has.

use engine::Exit;
use guest::{GuestAddr, GuestMemory, Moment, TaskId};
use trace::{Stop, Trapped};

use crate::error::{Difference, Divergence, ReplayError};
use crate::guard;
use crate::observer::Observer;
use crate::options::{Position, Stopped, Until};
use crate::replay::{Replay, watched};

/// The `cpuid` instruction.
const CPUID: [u8; 2] = [0x0f, 0xa2];
/// Prefixes, which mean nothing, that may stand before it.
const MOST_PREFIXES: u64 = 14;

/// What running towards an event's stop led to.
pub(crate) enum Reach {
    Stop,
    Budget,
    Stopped(Stopped),
}

impl Replay {
    /// Runs the next event's task towards its stop.
    pub(crate) fn reach(&mut self, until: Until, observer: &mut dyn Observer) -> Result<Reach, ReplayError> {
        let Some((id, event)) = &self.cursor.next else { return Ok(Reach::Stop) };
        let (mut id, task, mut stop) = (*id, event.task, event.stop);
        match stop {
            Stop::None => return Ok(Reach::Stop),
            Stop::Point
            | Stop::Syscall
            | Stop::Buffered
            | Stop::Narrow
            | Stop::Instruction(_)
            | Stop::BufferedInstruction(_)
            | Stop::Fault => {}
        }
        let searching = stop == Stop::Point && self.moments.is_none();
        if searching {
            self.begin_lead()?;
        }
        let begins = searching && self.lead() == 0;
        if self.is_at_point() || begins && self.is_point()? {
            return Ok(Reach::Stop);
        }
        if stop == Stop::Fault && self.cursor.ran == 0 && self.cursor.guard.is_none() {
            self.put_guard()?;
        }
        if let Some(pc) = self.arrived_at_breakpoint(task) {
            return Ok(Reach::Stopped(Stopped::Breakpoint { task, pc }));
        }
        let mut left = self.budget(until);
        let together = self.together(until).filter(|_| left.is_none());
        loop {
            let prepared = together.map_or(Ok(0), |by| self.prepare(by, observer))?;
            let lead = if searching { self.lead() } else { 0 };
            let to_point = match searching {
                true if lead > 0 => Some(lead),
                true => self.search_limit(),
                false => self.to_known_point(),
            };
            let allowed = match (left, to_point) {
                (Some(left), Some(point)) => Some(left.min(point)),
                (left, point) => left.or(point),
            };
            let (_, space) = self.live.enter(task).ok_or(ReplayError::NotAlive { event: id })??;
            let before = space.retired();
            let moment = self.cursor.moment;
            let exit =
                space.run(allowed).map_err(|source| ReplayError::Run { task, moment, event: id, source })?;
            let retired = space.retired();
            let mut before = before;
            if prepared > 0 {
                before = self.settle(task, (prepared, before), observer)?;
                let Some((next, event)) = &self.cursor.next else { return Ok(Reach::Stop) };
                (id, stop) = (*next, event.stop);
            }
            let ran = retired - before;
            let (space_id, space) = self.live.enter(task).ok_or(ReplayError::NotAlive { event: id })??;
            self.cursor.moment.0 += ran;
            self.cursor.ran += ran;
            left = left.map(|left| left.saturating_sub(ran));
            // A point may lie at an instruction at which a run ends anyway.
            if !searching && to_point == Some(ran) && is_at_instruction(&exit) {
                return Ok(Reach::Stop);
            }
            match exit {
                Exit::Budget if left == Some(0) => return Ok(Reach::Budget),
                Exit::Budget if !searching => return Ok(Reach::Stop),
                Exit::Budget | Exit::Candidate if searching => {
                    if self.lead() == 0 && self.is_point()? {
                        return Ok(Reach::Stop);
                    }
                }
                // The instruction does not run yet: another task does.
                Exit::Breakpoint if !searching && to_point == Some(ran) => return Ok(Reach::Stop),
                Exit::Breakpoint => {
                    let pc = space.registers().pc();
                    return Ok(Reach::Stopped(Stopped::Breakpoint { task, pc }));
                }
                Exit::Watchpoint { addr, pc } => {
                    let moment = Moment(self.cursor.moment.0.saturating_sub(1));
                    return Ok(Reach::Stopped(Stopped::Watchpoint { task, addr, pc, moment }));
                }
                Exit::LogFull => {
                    let at = Position { moment: self.cursor.moment, event: id };
                    watched(observer.log_full(space_id, space, task, at))?;
                }
                Exit::Instruction(engine::Trapped::Cpuid) if !self.trace.header().machine.cpuid_trapped => {
                    // It lies at the place asked for: it does not run yet.
                    if left == Some(0) {
                        return Ok(Reach::Budget);
                    }
                    self.answer_cpuid(task)?;
                    left = left.map(|left| left.saturating_sub(1));
                    if left == Some(0) {
                        return Ok(Reach::Budget);
                    }
                    // A run that begins at a candidate passes it.
                    let here = self.live.registers(task).map(|regs| regs.pc());
                    if searching && self.lead() == 0 && here == self.expected_pc() && self.is_point()? {
                        return Ok(Reach::Stop);
                    }
                    if let Some(pc) = self.arrived_at_breakpoint(task) {
                        return Ok(Reach::Stopped(Stopped::Breakpoint { task, pc }));
                    }
                }
                _ => {
                    self.cursor.flags_exact = match &exit {
                        Exit::Fault(fault) => fault.flags_exact,
                        Exit::Unsupported { .. } => false,
                        _ => true,
                    };
                    self.judge(task, stop, exit)?;
                    return Ok(Reach::Stop);
                }
            }
        }
    }

    /// Whether the task was stopped here by another one, or by a signal: its next instruction does not run yet.
    pub fn is_at_point(&self) -> bool {
        self.to_known_point() == Some(0)
    }

    /// Instructions up to the execution point that is the next event, where an earlier replay found it.
    fn to_known_point(&self) -> Option<u64> {
        let (id, event) = self.cursor.next.as_ref()?;
        let moments = self.moments.as_ref().filter(|_| event.stop == Stop::Point)?;
        Some(moments.count(*id).0.saturating_sub(self.cursor.ran))
    }

    /// The pc of a task that an event put onto a breakpoint, unless the run began there.
    fn arrived_at_breakpoint(&mut self, task: TaskId) -> Option<GuestAddr> {
        let pc = self.live.registers(task)?.pc();
        let live = self.live.task_mut(task)?;
        let arrived = std::mem::take(&mut live.arrived);
        let met = arrived && !self.cursor.resume && self.stops.apply_to(live.space);
        (met && self.stops.breakpoints.contains(&pc)).then_some(pc)
    }

    /// Whether an exit is the stop that the recording has.
    fn judge(&self, task: TaskId, stop: Stop, exit: Exit) -> Result<(), ReplayError> {
        let actual_pc = self.live.registers(task).map_or(GuestAddr(0), |regs| regs.pc());
        let what = match (stop, exit) {
            (Stop::Syscall | Stop::Buffered | Stop::Narrow, Exit::Syscall)
            | (Stop::Fault, Exit::Fault(_)) => return Ok(()),
            // A call of the vsyscall page with a bad pointer, or of a kernel that has no such page.
            (Stop::Fault, Exit::Syscall) if actual_pc.is_vsyscall_entry() => return Ok(()),
            // An `int 0x80` where the kernel makes no such calls.
            (Stop::Fault, Exit::Syscall) if Some(actual_pc) == self.expected_pc() => return Ok(()),
            (Stop::Instruction(want) | Stop::BufferedInstruction(want), Exit::Instruction(kind))
                if trapped(kind) == want =>
            {
                return Ok(());
            }
            // An instruction that the translator refuses, but that only ever faulted: the fault is recorded.
            (Stop::Fault, Exit::Unsupported { pc, .. }) if Some(pc) == self.expected_pc() => return Ok(()),
            // One whose trap the guest had asked for.
            (Stop::Fault, Exit::Instruction(_)) if Some(actual_pc) == self.expected_pc() => return Ok(()),
            (_, Exit::Instruction(kind)) if runs_untrapped(kind) => {
                let (moment, name) = (self.cursor.moment, name(kind));
                return Err(ReplayError::Unrecorded { task, moment, pc: actual_pc, name });
            }
            (_, Exit::Unsupported { pc, name }) => {
                return Err(ReplayError::Unsupported { task, moment: self.cursor.moment, pc, name });
            }
            (Stop::Point, _) if let Some(refuted) = self.refuted() => Difference::NoPoint { refuted },
            (Stop::Point, _) if self.lead() > 0 => Difference::NoPoint { refuted: 0 },
            (_, Exit::Instruction(kind)) => Difference::NotRecorded { name: name(kind), pc: actual_pc },
            (expected, actual) => {
                let expected_pc = self.expected_pc().unwrap_or_default();
                Difference::Stop { expected, expected_pc, actual, actual_pc }
            }
        };
        Err(self.diverged(what))
    }

    /// Where the next event's stop lies.
    fn expected_pc(&self) -> Option<GuestAddr> {
        self.cursor.next.as_ref().map(|(_, event)| event.before.pc())
    }

    pub(crate) fn diverged(&self, what: Difference) -> ReplayError {
        let (fact, task) = self
            .cursor
            .next
            .as_ref()
            .map_or(("end", TaskId(0)), |(_, event)| (event.fact.name(), event.task));
        ReplayError::Divergence(Box::new(Divergence {
            event: self.next_id(),
            fact,
            task,
            moment: self.cursor.moment,
            last_good: self.cursor.last_good,
            what,
        }))
    }

    /// Answers a `cpuid` that was not trapped while recording from the recorded table.
    fn answer_cpuid(&mut self, task: TaskId) -> Result<(), ReplayError> {
        let event = self.next_id();
        let (_, space) = self.live.enter(task).ok_or(ReplayError::NotAlive { event })??;
        let mut regs = space.registers();
        let (leaf, subleaf) = (regs.rax as u32, regs.rcx as u32);
        let Some(answer) = self.trace.header().machine.cpuid(leaf, subleaf) else {
            let pc = regs.pc();
            return Err(self.diverged(Difference::NotRecorded { name: "cpuid", pc }));
        };
        [regs.rax, regs.rbx, regs.rcx, regs.rdx] = answer.map(u64::from);
        let is_opcode = |at: &u64| {
            let mut bytes = [0; CPUID.len()];
            space.read(regs.pc().wrapping_add(*at), &mut bytes).is_ok() && bytes == CPUID
        };
        let prefixes = (0..MOST_PREFIXES).find(is_opcode).unwrap_or(0);
        regs.rip = regs.rip.wrapping_add(prefixes + CPUID.len() as u64);
        space.set_registers(&regs);
        self.cursor.moment.0 += 1;
        self.cursor.ran += 1;
        self.cursor.resume = false;
        if let Some(live) = self.live.task_mut(task) {
            live.arrived = true;
        }
        Ok(())
    }

    /// Puts an inaccessible page where the fault to come shows that a stack ended.
    fn put_guard(&mut self) -> Result<(), ReplayError> {
        let Some((id, event)) = &self.cursor.next else { return Ok(()) };
        let space = self.live.space_mut(event.space).ok_or(ReplayError::NotAlive { event: *id })?;
        if let Some(range) = guard::needed(space, event) {
            let failed = |source| ReplayError::Map { space: event.space, event: *id, source };
            guard::put(space, range).map_err(failed)?;
            self.cursor.guard = Some(range);
        }
        Ok(())
    }
}

/// Whether a run ended because of the instruction that is next.
fn is_at_instruction(exit: &Exit) -> bool {
    matches!(exit, Exit::Syscall | Exit::Instruction(_) | Exit::Fault(_) | Exit::Unsupported { .. })
}

fn trapped(kind: engine::Trapped) -> Trapped {
    match kind {
        engine::Trapped::Rdtsc => Trapped::Rdtsc,
        engine::Trapped::Rdtscp => Trapped::Rdtscp,
        engine::Trapped::Cpuid => Trapped::Cpuid,
        engine::Trapped::Rdrand => Trapped::Rdrand,
        engine::Trapped::Rdseed => Trapped::Rdseed,
        engine::Trapped::Rdpid => Trapped::Rdpid,
    }
}

/// Whether an instruction runs in a recording without a stop where the recorder does not find it.
fn runs_untrapped(kind: engine::Trapped) -> bool {
    matches!(kind, engine::Trapped::Rdrand | engine::Trapped::Rdseed | engine::Trapped::Rdpid)
}

fn name(kind: engine::Trapped) -> &'static str {
    match kind {
        engine::Trapped::Rdtsc => "rdtsc",
        engine::Trapped::Rdtscp => "rdtscp",
        engine::Trapped::Cpuid => "cpuid",
        engine::Trapped::Rdrand => "rdrand",
        engine::Trapped::Rdseed => "rdseed",
        engine::Trapped::Rdpid => "rdpid",
    }
}
