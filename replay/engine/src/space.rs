//! `Space`: a guest address space in a live host process. Making, copying, registers, modes; the rest of it is in
//! `memory`, `run`, `fault`, `debug` and `logging`.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::marker::PhantomData;
use std::rc::Rc;

use guest::{GuestAddr, GuestRange, PAGE_SIZE, Registers, XState};
use translate::{Branches, CacheAddr, EnginePage, MayFault, Mode, build_runtime};

use crate::areas::{Area, Areas};
use crate::calls::{CALLS_BYTES, Calls};
use crate::debug::Watched;
use crate::family::{Family, Object, Objects, Slot};
use crate::host::{Host, SHARED_FD};
use crate::memory::host_prot;
use crate::patch::Patches;
use crate::place::{Low, MODES, Places};
use crate::rewritten::Rewritten;
use crate::run::Counters;
use crate::search::Searching;
use crate::selfmod::{Disturbed, Snapshots};
use crate::source::CodeReader;
use crate::table::{Code, Tables};
use crate::{Block, Config, ForkError, HostError, NewError, RunError};

/// What a fork does with shared mappings.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Sharing {
    /// They stay shared between the two spaces, as the guest's own `fork` has it.
    Kept,
    /// The copy gets its own, as a checkpoint needs.
    Copied,
}

/// Smallest log: what a few thousand instructions may write.
const LEAST_LOG: usize = 1 << 20;

/// A guest address space in a live host process.
///
/// Must be used and dropped on the thread that made it (as `ptrace` requires), hence not `Send`. That thread is pinned to a
/// CPU.
#[derive(Debug)]
pub struct Space {
    pub(crate) host: Host,
    pub(crate) slot: Slot,
    pub(crate) low: Low,
    pub(crate) places: Places,
    pub(crate) areas: Areas,
    pub(crate) objects: Rc<Objects>,
    pub(crate) tables: Tables,
    pub(crate) code: Rc<Code>,
    pub(crate) reader: CodeReader,
    pub(crate) rewritten: Rewritten,
    pub(crate) patches: Patches,
    /// Pages that the guest may write and the host may not, because code was translated from them.
    pub(crate) watched: HashSet<GuestAddr>,
    /// Pages whose blocks check themselves.
    pub(crate) mixed: HashSet<GuestAddr>,
    pub(crate) disturbed: HashMap<GuestAddr, Disturbed>,
    pub(crate) snapshots: Snapshots,
    pub(crate) breakpoints: BTreeSet<GuestAddr>,
    pub(crate) no_breakpoints: BTreeSet<GuestAddr>,
    pub(crate) watchpoints: Watched,
    pub(crate) searching: Option<Searching>,
    pub(crate) may_fault: [MayFault; 3],
    pub(crate) calls: Calls,
    pub(crate) mode: Mode,
    /// The guest's registers while nothing runs.
    pub(crate) regs: Registers,
    /// Whether the arithmetic flags in `regs` are the guest's.
    pub(crate) flags_known: bool,
    pub(crate) retired: u64,
    /// What the engine page's counter was when `retired` was last brought up to date.
    pub(crate) granted: i64,
    /// Where the log lies in the process; 0 for none.
    pub(crate) log_at: u64,
    /// Where the next log record goes.
    pub(crate) log_next: u64,
    /// Where what was not drained yet begins.
    pub(crate) log_from: u64,
    /// Where what is drained ends, if not with what was logged last.
    pub(crate) log_until: Option<u64>,
    /// Log records that did not fit.
    pub(crate) log_overflow: Vec<u8>,
    pub(crate) xsave_size: u32,
    pub(crate) rtm: bool,
    pub(crate) counted: Branches,
    pub(crate) counters: Counters,
    thread_bound: PhantomData<*const ()>,
}

/// Spaces copied together: what their shared mappings show is copied once. See [`Space::fork_with`].
#[derive(Default, Debug)]
pub struct Group {
    /// Originals and their copies.
    objects: Vec<(Rc<Object>, Rc<Object>)>,
    tables: Vec<(Rc<Objects>, Rc<Objects>)>,
}

impl Group {
    fn object(&mut self, original: &Rc<Object>) -> Result<Rc<Object>, HostError> {
        if let Some((_, copy)) = self.objects.iter().find(|(known, _)| Rc::ptr_eq(known, original)) {
            return Ok(Rc::clone(copy));
        }
        let copy = original.copy()?;
        self.objects.push((Rc::clone(original), Rc::clone(&copy)));
        Ok(copy)
    }

    fn numbered(&mut self, original: &Rc<Objects>) -> Rc<Objects> {
        if let Some((_, copy)) = self.tables.iter().find(|(known, _)| Rc::ptr_eq(known, original)) {
            return Rc::clone(copy);
        }
        let copy = Rc::default();
        self.tables.push((Rc::clone(original), Rc::clone(&copy)));
        copy
    }
}

impl Space {
    /// Starts a process with nothing mapped but the engine's own.
    ///
    /// # Errors
    ///
    /// The host refused, or there is no room.
    pub fn new(config: &Config) -> Result<Self, NewError> {
        let cpu = config.cpu.unwrap_or_else(ptrace::current_cpu);
        ptrace::pin_to_cpu(cpu).map_err(|source| HostError::Call { call: "sched_setaffinity", source })?;
        let mut places = Places::new(&config.footprint);
        let low = places.take_low().ok_or(NewError::NoRoom { bytes: Low::SIZE })?;
        let log_len = match config.log_bytes {
            0 => 0,
            bytes => bytes.max(LEAST_LOG).next_multiple_of(PAGE_SIZE as usize),
        };
        let log_at = if log_len == 0 { 0 } else { places.take_any(log_len as u64).unwrap_or(0) };
        let runtime = build_runtime(&low.layout(Mode::Plain))?;
        let family = Family::new(runtime.miss.0, log_len)?;
        let slot = Slot::new(&family)?;
        let mut host = Host::spawn(low.stub(), family.fd())?;
        map_low(&mut host, low, &runtime.code)?;
        let modes = [Mode::Plain, Mode::Exact, Mode::Indexed, Mode::IndexedExact];
        let tables = Tables { miss: runtime.miss, table: modes.map(|mode| low.layout(mode).table) };
        let regs = Registers { rip: 0, rsp: 0, ..*host.initial_registers() };
        let mut space = Self {
            host,
            slot,
            low,
            places,
            areas: Areas::default(),
            objects: Rc::default(),
            tables,
            code: Rc::default(),
            reader: CodeReader::default(),
            rewritten: Rewritten::default(),
            patches: Patches::default(),
            watched: HashSet::new(),
            mixed: HashSet::new(),
            disturbed: HashMap::new(),
            snapshots: Snapshots::new(),
            breakpoints: BTreeSet::new(),
            no_breakpoints: BTreeSet::new(),
            watchpoints: Watched::default(),
            searching: None,
            may_fault: runtime.may_fault,
            calls: Calls::default(),
            mode: config.mode,
            regs,
            flags_known: true,
            retired: 0,
            granted: 0,
            log_at,
            log_next: log_at,
            log_from: log_at,
            log_until: None,
            log_overflow: Vec::new(),
            rtm: config.rtm,
            counted: config.branches,
            xsave_size: std::arch::x86_64::__cpuid_count(0xd, 0).ebx,
            counters: Counters::default(),
            thread_bound: PhantomData,
        };
        space.map_slot()?;
        Ok(space)
    }

    /// A new space (as [`Space::new`]) in which a shared mapping of an object that `peer` shows too shows the same memory.
    ///
    /// # Errors
    ///
    /// As [`Space::new`].
    pub fn new_beside(config: &Config, peer: &Self) -> Result<Self, NewError> {
        let mut space = Self::new(config)?;
        space.objects = Rc::clone(&peer.objects);
        Ok(space)
    }

    /// Maps this space's slot into its process.
    fn map_slot(&mut self) -> Result<(), HostError> {
        let prot = (libc::PROT_READ | libc::PROT_WRITE) as u64;
        let flags = (libc::MAP_SHARED | libc::MAP_FIXED) as u64;
        let at = self.slot.offset();
        let page = [u64::from(self.low.page()), PAGE_SIZE + CALLS_BYTES, prot, flags, SHARED_FD, at];
        self.host.call("mmap", libc::SYS_mmap, page)?;
        if self.log_at != 0 {
            let len = self.slot.log_len() as u64;
            let log = [self.log_at, len, prot, flags, SHARED_FD, at + PAGE_SIZE + CALLS_BYTES];
            self.host.call("mmap", libc::SYS_mmap, log)?;
        }
        Ok(())
    }

    /// A copy of everything: memory, registers, translated code, the retired count. Breakpoints, watchpoints, the
    /// search and what is in the log are not copied.
    ///
    /// # Errors
    ///
    /// The host refused.
    pub fn fork(&mut self, sharing: Sharing) -> Result<Self, ForkError> {
        match sharing {
            Sharing::Kept => {
                // From now on it checks itself.
                self.forget_shared_code();
                self.copy()
            }
            Sharing::Copied => self.fork_with(&mut Group::default()),
        }
    }

    /// As [`Space::fork`] with [`Sharing::Copied`], but the copies that one group's forks make share among themselves what their
    /// originals share. The originals must not run between these forks.
    ///
    /// # Errors
    ///
    /// The host refused.
    pub fn fork_with(&mut self, group: &mut Group) -> Result<Self, ForkError> {
        let mut copy = self.copy()?;
        copy.own_objects(group)?;
        Ok(copy)
    }

    fn copy(&mut self) -> Result<Self, ForkError> {
        self.flush()?;
        let mut slot = Slot::new(self.slot.family())?;
        *slot.page_mut() = EnginePage { calls: 0, ..self.slot.page() };
        let host = self.host.fork()?;
        let mut copy = Self {
            host,
            slot,
            low: self.low,
            places: self.places.clone(),
            areas: self.areas.clone(),
            objects: Rc::clone(&self.objects),
            tables: self.tables,
            code: Rc::clone(&self.code),
            reader: self.reader.clone(),
            rewritten: self.rewritten.clone(),
            patches: Patches::default(),
            watched: self.watched.clone(),
            mixed: self.mixed.clone(),
            disturbed: self.disturbed.clone(),
            snapshots: self.snapshots.clone(),
            breakpoints: BTreeSet::new(),
            no_breakpoints: BTreeSet::new(),
            watchpoints: Watched::default(),
            searching: None,
            may_fault: self.may_fault,
            calls: Calls::default(),
            mode: self.mode,
            regs: self.regs,
            flags_known: self.flags_known,
            retired: self.retired,
            granted: self.granted,
            log_at: self.log_at,
            log_next: self.log_at,
            log_from: self.log_at,
            log_until: None,
            log_overflow: Vec::new(),
            rtm: self.rtm,
            counted: self.counted,
            xsave_size: self.xsave_size,
            counters: Counters::default(),
            thread_bound: PhantomData,
        };
        copy.map_slot()?;
        copy.drop_breakpoint_blocks(&self.breakpoints);
        copy.drop_search_blocks(self.searched().map(|search| search.pc));
        Ok(copy)
    }

    /// Gives this space a copy, its group's own, of everything that its shared mappings show.
    fn own_objects(&mut self, group: &mut Group) -> Result<(), HostError> {
        let shown: Vec<(GuestRange, Area)> = self
            .areas
            .iter()
            .filter(|(_, area)| area.object.is_some())
            .map(|(range, area)| (range, area.clone()))
            .collect();
        self.objects = group.numbered(&self.objects);
        for (range, area) in shown {
            let Some((object, offset)) = &area.object else { continue };
            let own = group.object(object)?;
            self.objects.insert(&own);
            self.map_object(range, &own, *offset, host_prot(area.prot))?;
            self.areas.insert(range, Area { object: Some((own, *offset)), ..area });
        }
        // Protections of watched pages went with the old mappings.
        let mut watched: Vec<GuestAddr> = self.watched.iter().copied().collect();
        watched.sort_unstable();
        watched.retain(|page| self.areas.at(*page).is_some_and(|(_, area)| area.object.is_some()));
        for page in watched {
            self.watched.remove(&page);
            self.watch_code(GuestRange::new(page, PAGE_SIZE))?;
        }
        Ok(())
    }

    /// All blocks ever translated here, by [`BlockId`](translate::BlockId), for reading logs.
    pub fn blocks(&self) -> &[Rc<Block>] {
        &self.code.blocks
    }

    /// The guest's registers. `orig_rax` is as it was set.
    pub fn registers(&self) -> Registers {
        self.regs
    }

    /// Replaces the guest's registers.
    pub fn set_registers(&mut self, registers: &Registers) {
        self.regs = *registers;
        self.flags_known = true;
    }

    /// The guest's extended state.
    ///
    /// # Errors
    ///
    /// The process is gone.
    pub fn xstate(&self) -> Result<XState, HostError> {
        let mut state = self.host.xstate()?;
        // The x87 instruction pointer is that of the translated code.
        if let Some(field) = state.0.get_mut(8..16).and_then(|bytes| <&mut [u8; 8]>::try_from(bytes).ok())
            && let Some(pc) = self.guest_pc(CacheAddr(u64::from_le_bytes(*field)))
        {
            *field = pc.0.to_le_bytes();
        }
        Ok(state)
    }

    /// Replaces the guest's extended state.
    ///
    /// # Errors
    ///
    /// The process is gone, or the state is none that this CPU knows.
    pub fn set_xstate(&mut self, state: &XState) -> Result<(), HostError> {
        self.host.set_xstate(state)
    }

    /// Guest instructions retired by translated code since the first ancestor was made: exact at every exit.
    /// Instructions that the caller performs (syscalls, trapped ones) are not in it, nor are calls that were prepared.
    pub fn retired(&self) -> u64 {
        self.retired
    }

    /// Conditional branches retired by translated code since the first ancestor was made, of those that
    /// [`Config::branches`](crate::Config::branches) has counted (0 if none): exact wherever [`Space::retired`] is.
    ///
    /// To come to where so many more are retired: `n` branches are at least `n` instructions, so a [`run`](Space::run) of as many
    /// instructions as branches are missing never goes too far, and few such runs come there.
    pub fn branches(&self) -> u64 {
        self.slot.page().branches
    }

    /// Which conditional branches are counted.
    pub fn counted_branches(&self) -> Branches {
        self.counted
    }

    /// The mode in force.
    pub fn mode(&self) -> Mode {
        self.mode
    }

    /// How often the cache was left, for diagnostics.
    pub fn counters(&self) -> Counters {
        self.counters
    }

    /// The replaying process, for diagnostics.
    pub fn process(&self) -> ptrace::HostTid {
        self.host.tid()
    }

    /// Changes the mode; each has its own code cache, which stays.
    ///
    /// # Errors
    ///
    /// A mode that logs, in a space without a log.
    pub fn set_mode(&mut self, mode: Mode) -> Result<(), RunError> {
        if mode.logs() && self.log_at == 0 {
            return Err(RunError::NoLog);
        }
        self.mode = mode;
        Ok(())
    }

    /// The guest instruction that a cache address stands for: debuggers never see cache addresses.
    pub(crate) fn guest_pc(&self, at: CacheAddr) -> Option<GuestAddr> {
        let block = self.code.block_at(at)?;
        block.mark_at(at).map(|mark| mark.pc)
    }

    /// Writes what waits to be written into the code cache.
    pub(crate) fn flush(&mut self) -> Result<(), HostError> {
        self.patches.flush(&self.host).map_err(|unmapped| HostError::Call {
            call: "process_vm_writev",
            source: std::io::Error::other(unmapped),
        })
    }
}

/// Maps the fixed memory of the engine, all but the slot.
fn map_low(host: &mut Host, low: Low, runtime: &[u8]) -> Result<(), HostError> {
    let (read, write, exec) = (libc::PROT_READ, libc::PROT_WRITE, libc::PROT_EXEC);
    let fixed = (libc::MAP_PRIVATE | libc::MAP_FIXED) as u64;
    let anonymous = fixed | libc::MAP_ANONYMOUS as u64;
    for (at, prot) in [(low.runtime(), read | exec), (low.scratch(), read | write)] {
        let args = [u64::from(at), PAGE_SIZE, prot as u64, anonymous, u64::MAX, 0];
        host.call("mmap", libc::SYS_mmap, args)?;
    }
    let gone = |unmapped: guest::Unmapped| HostError::Call {
        call: "write",
        source: std::io::Error::other(unmapped),
    };
    host.write(u64::from(low.runtime()), runtime).map_err(gone)?;
    let table = translate::LOOKUP_TABLE_BYTES as u64;
    for index in 0..MODES as u64 {
        let at = u64::from(low.tables()) + index * table;
        host.call("mmap", libc::SYS_mmap, [at, table, (read | write) as u64, fixed, SHARED_FD, 0])?;
    }
    Ok(())
}
