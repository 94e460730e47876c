//! Tasks and spaces as the recorder knows them. Holds state; makes no decision.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use guest::{GuestAddr, GuestRange, Registers, SpaceId, TaskId, Tid};
use kernel::{Call, Class, Narrow};
use ptrace::{HostTid, Memory, Report, Stopped};
use trace::MapOp;

use crate::answer::Guise;
use crate::buffer::Buffer;
use crate::count::Count;
use crate::follow::Follower;
use crate::ignored::Ignored;
use crate::pages::Tracker;
use crate::ptracing::Traced;
use crate::scratch::{Plan, Pool};
use crate::seccomp::{self, Sandbox};
use crate::shared::SharedMapping;
use crate::standing::Awaited;
use crate::unrepeatable::Sites;
use crate::waking::{Allowance, Woke};

/// A recorded address space.
#[derive(Debug)]
pub(crate) struct Space {
    pub(crate) id: SpaceId,
    pub(crate) memory: Memory,
    /// End of the heap.
    pub(crate) brk: Cell<GuestAddr>,
    /// Shared mappings of objects that stores change.
    pub(crate) shared: RefCell<Vec<SharedMapping>>,
    /// Mappings that follow a file which others may change.
    pub(crate) followers: RefCell<Vec<Follower>>,
    /// The task that brought it into being, by which `/proc` tells of it.
    pub(crate) owner: HostTid,
    /// Tasks that live in it.
    pub(crate) tasks: Cell<u32>,
    /// Tasks of it that are inside a system call.
    pub(crate) calls: Cell<u32>,
    /// Tasks of it that are held for their tracers or stand for another's call, in no system call.
    pub(crate) held: Cell<u32>,
    /// Its tasks do not go on from where they stand, for another's call.
    pub(crate) stands: Cell<bool>,
    /// Tasks of it that wait for a child by `vfork`, which uses it meanwhile.
    pub(crate) lent: Cell<u32>,
    /// What another process did to its mappings meanwhile: belongs to that call's return.
    pub(crate) owed: RefCell<Vec<MapOp>>,
    /// Memory of it that another process changed meanwhile: likewise.
    pub(crate) changed: RefCell<Vec<GuestRange>>,
    /// Whether another space was forked from this one, or this from another, with such mappings.
    pub(crate) sharing: Cell<bool>,
    /// Memory of ours in it.
    pub(crate) scratch: Rc<RefCell<Pool>>,
    /// Which of its pages were written, once that was asked for.
    pub(crate) tracker: RefCell<Option<Tracker>>,
    /// Whether mappings changed since the tracker took them in.
    pub(crate) remapped: Cell<bool>,
    /// Calls that are made in it without a stop.
    pub(crate) buffer: RefCell<Buffer>,
    /// How often threads of it may give way to those that they wake.
    pub(crate) gives_way: Cell<Allowance>,
    /// Instructions in it that are rewritten to be trapped.
    pub(crate) unrepeatable: RefCell<Sites>,
}

impl Space {
    /// A space without shared mappings.
    pub(crate) fn new(id: SpaceId, owner: HostTid, memory: Memory, brk: GuestAddr) -> Self {
        Self {
            id,
            memory,
            brk: Cell::new(brk),
            shared: RefCell::default(),
            followers: RefCell::default(),
            owner,
            tasks: Cell::new(0),
            calls: Cell::new(0),
            held: Cell::new(0),
            stands: Cell::new(false),
            lent: Cell::new(0),
            owed: RefCell::default(),
            changed: RefCell::default(),
            sharing: Cell::new(false),
            scratch: Rc::default(),
            tracker: RefCell::default(),
            remapped: Cell::new(true),
            buffer: RefCell::default(),
            gives_way: Cell::default(),
            unrepeatable: RefCell::default(),
        }
    }

    /// Whether no user code of it runs before a system call returns.
    pub(crate) fn in_call(&self) -> bool {
        self.calls.get() == self.tasks.get()
    }

    /// Whether no user code of it runs before a system call returns, or what holds a task lets it go on.
    pub(crate) fn is_calm(&self) -> bool {
        self.calls.get() + self.held.get() >= self.tasks.get()
    }

    /// Whether calls were made in it without a stop.
    pub(crate) fn has_buffer(&self) -> bool {
        self.buffer.borrow().is_inside()
    }

    /// Whether what a task does in it concerns other tasks, which then must not run at the same time.
    pub(crate) fn is_shared(&self) -> bool {
        self.sharing.get() || self.has_threads()
    }

    /// Whether more than one task lives in it, but for those that it is lent to.
    pub(crate) fn has_threads(&self) -> bool {
        self.tasks.get() > self.lent.get() + 1
    }

    /// A task begins to live in it.
    pub(crate) fn join(&self, by_vfork: bool) {
        add(&self.tasks, 1);
        add(&self.lent, i32::from(by_vfork));
    }

    /// A task is gone from it. `by_vfork`: it came so, and its parent goes on.
    pub(crate) fn leave(&self, by_vfork: bool) {
        add(&self.tasks, -1);
        add(&self.lent, -i32::from(by_vfork));
    }

    /// A task of it enters (1) or leaves (-1) a system call.
    pub(crate) fn count_call(&self, by: i32) {
        add(&self.calls, by);
    }

    /// Its copy by `fork`.
    pub(crate) fn forked(&self, id: SpaceId, owner: HostTid, memory: Memory) -> Self {
        Self {
            shared: self.shared.clone(),
            followers: self.followers.clone(),
            sharing: self.sharing.clone(),
            buffer: self.buffer.clone(),
            unrepeatable: self.unrepeatable.clone(),
            scratch: Rc::new(RefCell::new(self.scratch.borrow().forked())),
            ..Self::new(id, owner, memory, self.brk.get())
        }
    }
}

fn add(to: &Cell<u32>, by: i32) {
    to.set(to.get().saturating_add_signed(by));
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
    /// With the signal that its tracer lets through.
    Inject(i32),
}

/// Where a task stops with its process, having been stopped in its own code.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) enum Halt {
    /// Nowhere yet.
    #[default]
    No,
    /// Once it is past an instruction that repeats itself.
    AfterRepeat,
    /// At the execution point that it stands at.
    AtPoint,
}

/// Whether a task runs.
#[derive(Debug)]
pub(crate) enum Run {
    /// Stopped, and may go on when its turn comes.
    Ready(Stopped, Resume),
    /// Stopped while another ran on memory that it shares; what that comes to is seen to when its turn comes.
    Waits(Report),
    /// Runs, or sleeps in the kernel.
    Running,
    /// In a group stop.
    Halted,
    /// Stopped for its tracer, another task.
    Traced(Stopped),
}

/// A system call between entry and return.
#[derive(Debug)]
pub(crate) struct Pending {
    /// The call; for `restart_syscall`, the one that is restarted.
    pub(crate) call: Call,
    /// Number and arguments as the guest made it.
    pub(crate) made: (u32, [u64; 6]),
    /// What it was by `int 0x80`; the rest is its twin's.
    pub(crate) narrow: Option<&'static Narrow>,
    pub(crate) class: Class,
    /// Where it writes.
    pub(crate) writes: Plan,
    /// Whether no other task may change or look at the space meanwhile.
    pub(crate) alone: bool,
    /// `rt_sigaction(SIGSEGV)`: the action it sets.
    pub(crate) new_action: Option<[u8; 32]>,
    /// The result it gets without being made.
    pub(crate) emulated: Option<i64>,
    pub(crate) filters: seccomp::Part,
    /// Whether it leaves the file that it is about as that is.
    pub(crate) idle: bool,
    /// Whether it was tried in a form that does not wait, in vain: it waits now.
    pub(crate) waits: bool,
    /// Whether the task that it makes was announced.
    pub(crate) announced: bool,
    /// What it had blocked, if more is blocked for the time of the call.
    pub(crate) mask: Option<u64>,
    /// All writable memory at entry, where that is compared.
    pub(crate) snapshot: Option<crate::paranoid::Snapshot>,
}

/// A call that was interrupted, and that the kernel goes on with.
#[derive(Debug)]
pub(crate) struct Restart {
    /// Number and arguments.
    pub(crate) call: (u32, [u64; 6]),
    /// Where it writes.
    pub(crate) writes: Plan,
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
#[derive(Clone, Debug, Default)]
pub(crate) struct SegvShadow {
    pub(crate) blocked: bool,
    /// The kernel's `struct sigaction`: handler, flags, restorer, mask. Threads have one between them.
    pub(crate) action: Rc<Cell<[u8; 32]>>,
}

impl SegvShadow {
    /// A new program has no handlers; what was ignored stays ignored.
    pub(crate) fn forget_handler(&mut self) {
        let action = if self.ignored() { self.action.get() } else { [0; 32] };
        self.action = Rc::new(Cell::new(action));
    }

    /// A child's, which follows its parent's from now on only if they share their handlers.
    pub(crate) fn inherited(&self, shares: bool) -> Self {
        let action = if shares { Rc::clone(&self.action) } else { Rc::new(Cell::new(self.action.get())) };
        Self { blocked: self.blocked, action }
    }

    /// Whether the action is `SIG_IGN`.
    pub(crate) fn ignored(&self) -> bool {
        self.action.get()[..8] == 1u64.to_le_bytes()
    }
}

/// A recorded task.
#[derive(Debug)]
pub(crate) struct Task {
    pub(crate) id: TaskId,
    pub(crate) tid: Tid,
    pub(crate) host: HostTid,
    /// Its process, named by its leader.
    pub(crate) process: HostTid,
    /// The thread that made it.
    pub(crate) creator: HostTid,
    /// That another task traces it.
    pub(crate) tracing: Option<Box<Traced>>,
    pub(crate) space: Rc<Space>,
    /// It uses its parent's space, and its parent waits meanwhile.
    pub(crate) by_vfork: bool,
    /// What the answer to its call writes when that returns.
    pub(crate) promised: Vec<(GuestAddr, Vec<u8>)>,
    pub(crate) run: Run,
    pub(crate) pending: Option<Pending>,
    /// Whose tasks must stand still before it makes its call.
    pub(crate) awaits: Option<Awaited>,
    /// What a fault came with whose handler could not be entered.
    pub(crate) unframed: Option<[u8; 128]>,
    /// The registers with which it went on after its last event.
    pub(crate) after: Registers,
    /// The registers as the kernel showed them then.
    pub(crate) raw: Registers,
    /// Whether it surely has run no code of its own since: it was not resumed, or with a signal waiting for it.
    pub(crate) unmoved: bool,
    /// Signals to raise at its next system call.
    pub(crate) held: Vec<Held>,
    /// Signals raised again, whose information is to be put back on delivery.
    pub(crate) raised: Vec<Held>,
    /// What `restart_syscall` would restart.
    pub(crate) restart: Option<Restart>,
    pub(crate) segv: SegvShadow,
    /// What its process wants to hear of signals.
    pub(crate) ignored: Rc<Ignored>,
    /// What its last call blocked more than it had wanted, if that was interrupted.
    pub(crate) deafened: u64,
    /// What it believes of itself.
    pub(crate) guise: Guise,
    /// What it has forbidden itself.
    pub(crate) sandbox: Rc<Sandbox>,
    /// The signal it was told to die of, its event being written; 0 for none.
    pub(crate) dying: i32,
    /// Where the kernel clears its thread id when it ends (`set_tid_address`); 0 for nowhere.
    pub(crate) clear_tid: GuestAddr,
    /// It is on its way out of the kernel's `exit`, with what that may still write.
    pub(crate) exiting: Option<Exiting>,
    /// Its last event is an execution point: the registers alone do not tell whether it ran since.
    pub(crate) at_point: bool,
    /// It was killed before its first stop, or while the entry to its call, or the return from it, was seen to, which no event tells of.
    pub(crate) cut_short: bool,
    /// It was told to stop (`PTRACE_INTERRUPT`).
    pub(crate) interrupted: bool,
    /// It was stopped after it had run code of its own, and no event tells where: it goes on before others run.
    pub(crate) adrift: bool,
    /// It stands at a call that was tried in vain, and is tried again when it goes on.
    pub(crate) put_off: bool,
    /// It stops with its process.
    pub(crate) halt: Halt,
    /// The signal that is to stop its process, which met it in its own code, and what came with it.
    pub(crate) stopping: Option<(i32, [u8; 128])>,
    /// It asked for others to run (`sched_yield`).
    pub(crate) yields: bool,
    pub(crate) woke: Woke,
    /// Its place among those that could run, the lowest first.
    pub(crate) rank: i32,
    /// It changed its or another's priority.
    pub(crate) ranks_anew: bool,
    /// The tick at which it was last resumed.
    pub(crate) resumed: u32,
    /// Where a breakpoint of ours lies, past an instruction that repeats itself: it is not interrupted before it gets there.
    pub(crate) runs_to: Option<u64>,
    /// Its CPU time at its last execution point, in nanoseconds.
    pub(crate) cpu_nanos: u64,
    /// How far it has come since its last event, by a counter.
    pub(crate) count: Count,
}

/// A task that will never run code again.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Exiting {
    /// Its status, as `wait` encodes it.
    pub(crate) status: i32,
    /// 32-bit words of memory that the kernel may change.
    pub(crate) words: Vec<GuestAddr>,
    /// Whether a replay can tell where it ended.
    pub(crate) located: bool,
}

impl Task {
    /// Whether it can be resumed.
    pub(crate) fn is_ready(&self) -> bool {
        matches!(self.run, Run::Ready(..))
    }

    /// Whether it may be changing memory which another task sees.
    pub(crate) fn runs_on_shared_memory(&self) -> bool {
        let uses = self.pending.as_ref().is_none_or(|pending| pending.alone);
        uses && self.space.is_shared() && matches!(self.run, Run::Running)
    }

    /// Whether it runs code of its own, for all that was reported.
    pub(crate) fn runs_own_code(&self) -> bool {
        self.pending.is_none() && matches!(self.run, Run::Running)
    }

    /// Whether a few of its instructions may be run one by one: it shares memory, and nothing waits to be delivered.
    pub(crate) fn can_be_stepped(&self) -> bool {
        let free = self.pending.is_none() && self.exiting.is_none() && self.runs_to.is_none();
        free && self.tracing.is_none() && self.space.is_shared() && self.raised.is_empty()
    }

    /// Whether it has run without a stop since before `tick`, on memory that others wait for.
    pub(crate) fn holds_up(&self, tick: u32, now: u32) -> bool {
        let long = now.wrapping_sub(self.resumed) >= tick;
        let in_own_code = self.pending.is_none() && self.exiting.is_none() && self.runs_to.is_none();
        long && in_own_code && self.runs_on_shared_memory()
    }

    /// A task at its first instruction, with nothing behind it.
    pub(crate) fn new(
        id: TaskId,
        (host, process): (HostTid, HostTid),
        space: Rc<Space>,
        guise: Guise,
    ) -> Self {
        Self {
            id,
            tid: Tid(host.0),
            host,
            process,
            creator: HostTid(0),
            tracing: None,
            space,
            by_vfork: false,
            promised: Vec::new(),
            run: Run::Running,
            pending: None,
            awaits: None,
            unframed: None,
            after: Registers::default(),
            raw: Registers::default(),
            held: Vec::new(),
            raised: Vec::new(),
            restart: None,
            segv: SegvShadow::default(),
            ignored: Rc::default(),
            deafened: 0,
            guise,
            sandbox: Rc::default(),
            dying: 0,
            clear_tid: GuestAddr(0),
            exiting: None,
            at_point: false,
            unmoved: true,
            cut_short: false,
            interrupted: false,
            adrift: false,
            put_off: false,
            halt: Halt::No,
            stopping: None,
            yields: false,
            woke: Woke::Nobody,
            rank: 0,
            ranks_anew: false,
            resumed: 0,
            runs_to: None,
            cpu_nanos: 0,
            count: Count::default(),
        }
    }

    /// An event was written and it goes on from there: `after` as events have it, `raw` as the kernel shows it.
    pub(crate) fn goes_on(&mut self, after: Registers, raw: Registers) {
        (self.after, self.raw, self.at_point, self.unmoved) = (after, raw, false, true);
        self.put_off = false;
        self.count.begin_anew();
    }

    /// Whether it is in a call that is known to wait, and in which it concerns nobody else.
    pub(crate) fn surely_waits(&self) -> bool {
        self.pending.as_ref().is_some_and(|pending| pending.waits && !pending.alone)
    }

    /// Whether the system call it is in may sleep, as its end may, which waits for others of its namespace; `None` when it is in
    /// neither.
    pub(crate) fn may_sleep(&self) -> Option<bool> {
        match &self.pending {
            Some(pending) => Some(kernel::may_block(pending.call.nr, &pending.call.args)),
            None => self.exiting.as_ref().map(|_| true),
        }
    }
}

/// Equal registers, but for the one that only the kernel uses.
pub(crate) fn same_place(a: &Registers, b: &Registers) -> bool {
    Registers { orig_rax: 0, ..*a } == Registers { orig_rax: 0, ..*b }
}
