//! Calls about features that the recorder uses itself: answered from what is kept for the guest, not made.

use guest::{GuestAddr, GuestMemory, Unmapped};
use kernel::{Answer, Errno};

use crate::session::Core;
use crate::task::Task;
use crate::{affinity, programs};

/// `PR_TSC_ENABLE` and `PR_TSC_SIGSEGV` (`linux/prctl.h`).
const TSC_ENABLE: i64 = 1;
const TSC_SIGSEGV: i64 = 2;

/// What a task believes of itself.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Guise {
    dumpable: i64,
    tsc: i64,
    /// Whether `cpuid` runs, rather than raise a SIGSEGV that the guest sees.
    cpuid: bool,
    /// The processors it believes it may run on, as a bit mask.
    pub(crate) affinity: Vec<u8>,
}

impl Guise {
    /// Of a command that this process starts.
    pub(crate) fn of_command(affinity: Vec<u8>) -> Self {
        Self { dumpable: 1, tsc: TSC_ENABLE, cpuid: true, affinity }
    }

    /// A new program starts afresh in what exec resets.
    pub(crate) fn exec(&mut self) {
        self.dumpable = 1;
        self.cpuid = true;
    }

    /// Strict mode takes the time stamp counter away.
    pub(crate) fn forbid_tsc(&mut self) {
        self.tsc = TSC_SIGSEGV;
    }

    /// Whether others than root may trace it.
    pub(crate) fn is_dumpable(&self) -> bool {
        self.dumpable == 1
    }

    /// Whether `rdtsc` is to raise a SIGSEGV that the guest sees.
    pub(crate) fn tsc_faults(&self) -> bool {
        self.tsc == TSC_SIGSEGV
    }

    /// The same of `cpuid`.
    pub(crate) fn cpuid_faults(&self) -> bool {
        !self.cpuid
    }
}

/// The result the guest gets; what it writes is promised ([`keep`]). `None` where the call is to be made.
pub(crate) fn give(core: &Core, task: &mut Task, answer: Answer, args: &[u64; 6]) -> Option<i64> {
    let invalid = Errno::EINVAL.as_result();
    let host = task.host;
    let fine = match answer {
        Answer::OpenCounter => only_counts(task, args[0]),
        Answer::LoadProgram => programs::may_load(task, args[1]),
        Answer::DescribeProgram => programs::may_describe(task, args[1]),
        _ => true,
    };
    let guise = &mut task.guise;
    Some(match answer {
        Answer::GetDumpable => guise.dumpable,
        Answer::SetDumpable if args[1] <= 1 => {
            guise.dumpable = args[1] as i64;
            0
        }
        Answer::GetTsc => {
            let state = (guise.tsc as i32).to_le_bytes();
            promise(task, args[1], &state, 0)
        }
        Answer::SetTsc if matches!(args[1] as i64, TSC_ENABLE | TSC_SIGSEGV) => {
            guise.tsc = args[1] as i64;
            0
        }
        Answer::GetSeccomp => task.sandbox.mode(),
        Answer::GetNoNewPrivs => i64::from(task.sandbox.no_new_privs()),
        Answer::SetNoNewPrivs if args[1..5] == [1, 0, 0, 0] => {
            task.sandbox.forbid_new_privs();
            // Filters need it after privileges were dropped.
            return None;
        }
        Answer::SetDumpable | Answer::SetTsc | Answer::SetNoNewPrivs => invalid,
        Answer::SetMm if !moves_heap(args[1]) => return None,
        Answer::SetMm => Errno::EPERM.as_result(),
        Answer::OpenCounter | Answer::LoadProgram | Answer::DescribeProgram if fine => return None,
        Answer::LoadProgram | Answer::DescribeProgram => Errno::EPERM.as_result(),
        Answer::OpenCounter => Errno::EACCES.as_result(),
        Answer::GetAffinity if affinity::concerns_guest(core, host, args[0]) => get_affinity(task, args),
        Answer::SetAffinity if affinity::concerns_guest(core, host, args[0]) => {
            set_affinity(core, task, args)
        }
        Answer::GetCpuid if core.cpuid.is_some() => i64::from(guise.cpuid),
        Answer::SetCpuid if core.cpuid.is_some() => {
            guise.cpuid = args[1] != 0;
            0
        }
        // Of tasks that are not recorded, and of traps that the processor does not have, the kernel tells.
        Answer::GetAffinity | Answer::SetAffinity | Answer::GetCpuid | Answer::SetCpuid => return None,
    })
}

/// Whether a request of `PR_SET_MM` changes the bounds of the heap, by itself or among others.
fn moves_heap(what: u64) -> bool {
    const START_BRK: u32 = 6;
    const BRK: u32 = 7;
    const MAP: u32 = 14;
    matches!(what as u32, START_BRK | BRK | MAP)
}

/// Whether a `struct perf_event_attr` asks for counts of the kernel's own events, without samples. One that cannot be read is the
/// kernel's to refuse.
fn only_counts(task: &Task, attr: u64) -> bool {
    const SOFTWARE: u32 = 1;
    const PERIOD: u64 = 16;
    let at = GuestAddr(attr);
    let memory = &task.space.memory;
    match (memory.read_u32(at), memory.read_u64(at.wrapping_add(PERIOD))) {
        (Ok(kind), Ok(period)) => kind == SOFTWARE && period == 0,
        _ => true,
    }
}

/// Promises what an answer writes, at the call's return: until then others must not see it. `result`, or `EFAULT` where the guest itself could
/// not store.
pub(crate) fn promise(task: &mut Task, addr: u64, bytes: &[u8], result: i64) -> i64 {
    // What is there, once more.
    let mut there = vec![0; bytes.len()];
    task.space.memory.read_some(GuestAddr(addr), &mut there);
    let answer = store(task, addr, &there, result);
    if answer == result {
        task.promised.push((GuestAddr(addr), bytes.to_vec()));
    }
    answer
}

/// Stores what was promised.
pub(crate) fn keep(task: &mut Task) -> Result<(), Unmapped> {
    let memory = &task.space.memory;
    task.promised.drain(..).try_for_each(|(addr, bytes)| memory.write(addr, &bytes))
}

/// Stores what an answer writes; `result`, or `EFAULT`. Only where the guest itself could store.
pub(crate) fn store(task: &Task, addr: u64, bytes: &[u8], result: i64) -> i64 {
    let memory = &task.space.memory;
    let addr = GuestAddr(addr);
    let mut probe = vec![0; bytes.len()];
    let there = memory.read_some(addr, &mut probe) == bytes.len();
    if there && memory.write(addr, bytes).is_ok() { result } else { Errno::EFAULT.as_result() }
}

fn get_affinity(task: &mut Task, args: &[u64; 6]) -> i64 {
    const WORD: u64 = 8;
    let mask = &task.guise.affinity;
    let len = mask.len().min(args[1] as usize);
    // The kernel wants room for every processor there may be.
    if !args[1].is_multiple_of(WORD) || mask[len..].iter().any(|byte| *byte != 0) {
        return Errno::EINVAL.as_result();
    }
    let mask = mask[..len].to_vec();
    promise(task, args[2], &mask, len as i64)
}

fn set_affinity(core: &Core, task: &mut Task, args: &[u64; 6]) -> i64 {
    let len = (args[1] as usize).min(task.guise.affinity.len());
    let Ok(asked) = task.space.memory.read_vec(GuestAddr(args[2]), len) else {
        return Errno::EFAULT.as_result();
    };
    let online = affinity::online(task.guise.affinity.len());
    let padded = asked.iter().chain(std::iter::repeat(&0));
    let mask: Vec<u8> = online.iter().zip(padded).map(|(online, asked)| online & asked).collect();
    if mask.iter().all(|byte| *byte == 0) {
        return Errno::EINVAL.as_result();
    }
    if args[0] == 0 || core.named(task.host, args[0] as i32) == Some(task.host) {
        task.guise.affinity = mask;
    }
    0
}
