//! Tasks and spaces as the recorder knows them. Holds state; makes no decision.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use guest::{GuestAddr, Registers, SpaceId, TaskId, Tid};
use kernel::{Call, Class};
use ptrace::{HostTid, Memory, Stopped};
use trace::MapOp;

use crate::answer::Guise;
use crate::follow::Follower;
use crate::shared::SharedMapping;

/// A recorded address space.
#[derive(Debug)]
pub(crate) struct Space {
    pub(crate) id: SpaceId,
    pub(crate) memory: Memory,
    /// End of the heap.
    pub(crate) brk: Cell<GuestAddr>,
    /// The space of the program this one descends from by forks alone.
    pub(crate) unit: SpaceId,
    /// Shared mappings of objects that stores change.
    pub(crate) shared: RefCell<Vec<SharedMapping>>,
    /// Mappings that follow a file which others may change.
    pub(crate) followers: RefCell<Vec<Follower>>,
    /// The task that brought it into being, by which `/proc` tells of it.
    pub(crate) owner: HostTid,
    /// Whether a task of it is inside a system call, and no user code of it runs before that returns.
    pub(crate) in_call: Cell<bool>,
    /// What another process did to its mappings meanwhile: belongs to that call's return.
    pub(crate) owed: RefCell<Vec<MapOp>>,
    /// Whether another space was forked from this one, or this from another, with such mappings.
    pub(crate) sharing: Cell<bool>,
}

impl Space {
    /// A space without shared mappings, in a unit of its own.
    pub(crate) fn new(id: SpaceId, owner: HostTid, memory: Memory, brk: GuestAddr) -> Self {
        Self {
            id,
            memory,
            brk: Cell::new(brk),
            unit: id,
            shared: RefCell::default(),
            followers: RefCell::default(),
            owner,
            in_call: Cell::new(false),
            owed: RefCell::default(),
            sharing: Cell::new(false),
        }
    }

    /// Its copy by `fork`.
    pub(crate) fn forked(&self, id: SpaceId, owner: HostTid, memory: Memory) -> Self {
        Self {
            unit: self.unit,
            shared: self.shared.clone(),
            followers: self.followers.clone(),
            sharing: self.sharing.clone(),
            ..Self::new(id, owner, memory, self.brk.get())
        }
    }
}

/// How a stopped task goes on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Resume {
    /// Until something happens; the signal (0 for none) is delivered.
    Cont(i32),
    /// To the end of the system call it is about to make.
    ToExit,
    /// Stays in its group stop.
    Listen,
}

/// Whether a task runs.
#[derive(Debug)]
pub(crate) enum Run {
    /// Stopped, and may go on when its turn comes.
    Ready(Stopped, Resume),
    /// Runs, or sleeps in the kernel.
    Running,
}

/// A system call between entry and return.
#[derive(Debug)]
pub(crate) struct Pending {
    /// The call; for `restart_syscall`, the one that is restarted.
    pub(crate) call: Call,
    /// Number and arguments as the guest made it.
    pub(crate) made: (u32, [u64; 6]),
    pub(crate) class: Class,
    /// `rt_sigaction(SIGSEGV)`: the action it sets.
    pub(crate) new_action: Option<[u8; 32]>,
    /// The result it gets without being made.
    pub(crate) emulated: Option<i64>,
    /// All writable memory at entry, where that is compared.
    pub(crate) snapshot: Option<crate::paranoid::Snapshot>,
}

/// A signal that waits for the task's next system call.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Held {
    pub(crate) signal: i32,
    pub(crate) siginfo: [u8; 128],
    /// The tick at which it came.
    pub(crate) since: u32,
}

/// What the kernel does on SIGSEGV, followed so that a trapped instruction can put it back.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct SegvShadow {
    pub(crate) blocked: bool,
    /// The kernel's `struct sigaction`: handler, flags, restorer, mask.
    pub(crate) action: [u8; 32],
}

impl SegvShadow {
    /// A new program has no handlers; what was ignored stays ignored.
    pub(crate) fn forget_handler(&mut self) {
        if !self.ignored() {
            self.action = [0; 32];
        }
    }

    /// Whether the action is `SIG_IGN`.
    pub(crate) fn ignored(&self) -> bool {
        self.action[..8] == 1u64.to_le_bytes()
    }
}

/// A recorded task.
#[derive(Debug)]
pub(crate) struct Task {
    pub(crate) id: TaskId,
    pub(crate) tid: Tid,
    pub(crate) host: HostTid,
    pub(crate) space: Rc<Space>,
    pub(crate) run: Run,
    pub(crate) pending: Option<Pending>,
    /// The registers with which it went on after its last event.
    pub(crate) after: Registers,
    /// The registers as the kernel showed them then: while a stop shows the same, no user code has run.
    pub(crate) raw: Registers,
    /// Signals to raise at its next system call.
    pub(crate) held: Vec<Held>,
    /// Signals raised again, whose information is to be put back on delivery.
    pub(crate) raised: Vec<Held>,
    /// What `restart_syscall` would restart.
    pub(crate) restart: Option<(u32, [u64; 6])>,
    pub(crate) segv: SegvShadow,
    /// What it believes of itself.
    pub(crate) guise: Guise,
    /// The signal it was told to die of, its event being written; 0 for none.
    pub(crate) dying: i32,
}

impl Task {
    /// Whether it can be resumed.
    pub(crate) fn is_ready(&self) -> bool {
        matches!(self.run, Run::Ready(..))
    }

    /// Whether it runs code that could change memory which another process sees.
    pub(crate) fn runs_on_shared_memory(&self) -> bool {
        self.pending.is_none() && self.space.sharing.get() && !self.is_ready()
    }

    /// Whether the system call it is in may sleep; `None` when it is in none.
    pub(crate) fn may_block(&self) -> Option<bool> {
        let pending = self.pending.as_ref()?;
        Some(kernel::may_block(pending.call.nr, &pending.call.args))
    }
}

/// Equal registers, but for the one that only the kernel uses.
pub(crate) fn same_place(a: &Registers, b: &Registers) -> bool {
    Registers { orig_rax: 0, ..*a } == Registers { orig_rax: 0, ..*b }
}
