//! A small recording with every kind of event, written by hand.

use std::io::Write;
use std::path::Path;

use guest::{FileId, GuestAddr, GuestRange, Prot, Registers, SpaceId, TaskId, Tid, XState};
use trace::{
    Backing, CpuidLeaf, Data, Event, ExecInfo, Fact, Header, InheritedFd, Killed, Machine, MapOp, MemWrite,
    OutputStream, SignalAction, SignalInfo, SpawnInfo, Status, Stop, Summary, SyscallInfo, Trace,
    TraceWriter, Trapped, Version,
};

/// What the kept file holds.
pub(crate) const KEPT: &[u8] = b"contents of a mapped file";

pub(crate) fn header() -> Header {
    Header {
        version: Version::CURRENT,
        uuid: *b"0123456789abcdef",
        started: 1_700_000_000,
        argv: vec![b"prog".to_vec(), b"\xff arg".to_vec()],
        envp: vec![b"A=b".to_vec()],
        cwd: "/tmp".into(),
        machine: Machine {
            kernel: "6.18".into(),
            cpu: "cpu".into(),
            xcr0: 7,
            cpuid_trapped: true,
            tsc_trapped: true,
            cpuid: vec![CpuidLeaf { leaf: 7, subleaf: Some(0), result: [1, 2, 3, 4] }],
            points: "none".into(),
        },
        fds: vec![InheritedFd { fd: 1, path: "/dev/null".into(), offset: 0 }],
    }
}

pub(crate) fn summary(writer: &TraceWriter) -> Summary {
    let (tasks, spaces) = writer.counts();
    Summary { exit_code: 139, nanos: 5, events: writer.next_id().0, tasks, spaces, refused: None }
}

fn range(start: u64, len: u64) -> GuestRange {
    GuestRange::new(GuestAddr(start), len)
}

fn map(range: GuestRange, backing: Backing) -> MapOp {
    let prot = Prot { read: true, write: true, exec: false };
    MapOp::Map {
        range,
        prot,
        shared: false,
        grows_down: false,
        no_reserve: false,
        backing,
        name: "[heap]".into(),
    }
}

fn call(nr: u32, result: Option<i64>) -> SyscallInfo {
    SyscallInfo { nr, args: [1, 0x1000, 3, 0, 0, 0], result, output: None, output_crc: 0 }
}

/// An event of `task` that starts from `regs` with everything else empty.
fn event(task: u32, space: u32, stop: Stop, regs: Registers, fact: Fact) -> Event {
    Event {
        task: TaskId(task),
        space: SpaceId(space),
        stop,
        before: regs,
        after: regs,
        xstate: None,
        maps: vec![],
        writes: vec![],
        fact,
    }
}

/// The events. Data are all inline, as a recorder hands them in.
pub(crate) fn events() -> Vec<Event> {
    let start = Registers { rip: 0x1000, rsp: 0x7000_0000, cs: 0x33, eflags: 0x200, ..Registers::default() };
    let mut xstate = vec![0; 832];
    xstate[24] = 0x7f;
    let signal =
        |action| Fact::Signal(Box::new(SignalInfo { signo: 11, siginfo: (0..128).collect(), action }));

    let exec = ExecInfo {
        tid: 100,
        ppid: 1,
        exe: "/bin/prog".into(),
        argv: vec![b"prog".to_vec()],
        ..ExecInfo::default()
    };
    let mut first = event(0, 0, Stop::None, Registers::default(), Fact::Exec(Box::new(exec.clone())));
    first.after = start;
    first.xstate = Some(XState(xstate));
    first.maps = vec![
        MapOp::UnmapAll,
        map(range(0x1000, 0x1000), Backing::File { file: FileId(0), offset: 0x1000 }),
        map(range(0x6fff_f000, 0x2000), Backing::Zero),
    ];
    first.writes = vec![MemWrite { addr: GuestAddr(0x1000), data: Data::Inline((0..=255).collect()) }];

    let at = Registers { rip: 0x1010, rax: 1, ..start };
    let mut write = event(
        0,
        0,
        Stop::Syscall,
        at,
        Fact::Syscall(SyscallInfo { output: Some(OutputStream::Stdout), output_crc: 7, ..call(1, Some(3)) }),
    );
    write.after = Registers { rip: 0x1012, rax: 3, rcx: 0x1012, r11: 0x202, ..at };
    write.maps = vec![
        MapOp::Protect { range: range(0x1000, 0x1000), prot: Prot::from_bits(5) },
        MapOp::Remap { from: range(0x1000, 0x1000), to: range(0x3000, 0x2000), keep: true },
        MapOp::Discard { range: range(0x3000, 0x1000) },
        MapOp::Unmap { range: range(0x4000, 0x1000) },
    ];

    let mut tsc = event(0, 0, Stop::Instruction(Trapped::Rdtsc), at, Fact::Instruction);
    tsc.after.rdx = 9;
    let forking = Registers { rax: 57, rip: 0x1020, ..at };
    let enter = event(0, 0, Stop::Syscall, forking, Fact::SyscallEnter(call(57, None)));
    let mut spawn = event(
        0,
        0,
        Stop::None,
        forking,
        Fact::Spawn(Box::new(SpawnInfo {
            child: TaskId(1),
            tid: Tid(101),
            pid: Tid(101),
            space: SpaceId(1),
            shares: false,
            flags: 17,
            regs: Registers { rax: 0, rip: 0x1022, ..forking },
            writes: vec![MemWrite { addr: GuestAddr(0x2000), data: Data::Inline(vec![3; 100]) }],
        })),
    );
    spawn.maps = vec![];
    let child = Registers { rax: 231, rip: 0x1030, ..forking };
    let leaving = event(1, 1, Stop::Syscall, child, Fact::SyscallEnter(call(231, None)));
    let exit = event(1, 1, Stop::None, child, Fact::Exit(Status::Exited(3)));
    let mut leave = event(0, 0, Stop::None, forking, Fact::SyscallLeave(call(57, Some(101))));
    leave.after = Registers { rax: 101, rip: 0x1022, ..forking };

    let execing = Registers { rax: 59, rip: 0x1024, ..forking };
    let enter_exec = event(0, 0, Stop::Syscall, execing, Fact::SyscallEnter(call(59, None)));
    let mut again = event(0, 2, Stop::None, execing, Fact::Exec(Box::new(exec)));
    again.after = start;
    again.maps = vec![MapOp::UnmapAll, map(range(0x1000, 0x1000), Backing::Zero)];

    let mut handled =
        event(0, 2, Stop::Fault, at, signal(SignalAction::Handler { handler: GuestAddr(0x1100) }));
    handled.after = Registers { rip: 0x1100, rsp: 0x6fff_f000, ..at };
    handled.writes = vec![MemWrite { addr: GuestAddr(0x6fff_f000), data: Data::Inline(vec![1; 65]) }];
    let fatal = event(0, 2, Stop::Fault, at, signal(SignalAction::Fatal));
    let dead = Killed { signo: 11, core: true, unlocated: false };
    let died = event(0, 2, Stop::None, at, Fact::Exit(Status::Killed(dead)));
    vec![first, write, tsc, enter, spawn, leaving, exit, leave, enter_exec, again, handled, fatal, died]
}

/// Writes the sample to `dir`, with `flush` after every `every` events, up to `count` events; finished if that is all.
pub(crate) fn write(dir: &Path, every: usize, count: usize) {
    let mut writer = begin(dir);
    let all = events();
    for (i, event) in all.iter().take(count).enumerate() {
        writer.event(event).unwrap();
        if (i + 1) % every == 0 {
            writer.flush().unwrap();
        }
    }
    if count >= all.len() {
        let summary = summary(&writer);
        writer.finish(&summary).unwrap();
    } else {
        writer.flush().unwrap();
    }
}

/// A writer with the one kept file that the sample names.
pub(crate) fn begin(dir: &Path) -> TraceWriter {
    begin_in(dir, None)
}

/// The same, sharing with others.
pub(crate) fn begin_in(dir: &Path, store: Option<&Path>) -> TraceWriter {
    let mut writer = TraceWriter::create_with_store(dir, &header(), store.map(Path::to_owned)).unwrap();
    let mut file = tempfile::tempfile().unwrap();
    file.write_all(KEPT).unwrap();
    writer.keep_file(&file, "/bin/prog").unwrap();
    writer
}

/// An event with all its data inline again.
pub(crate) fn inlined(trace: &Trace, mut event: Event) -> Event {
    let inline =
        |write: &mut MemWrite| write.data = Data::Inline(trace.data(&write.data).unwrap().into_owned());
    event.writes.iter_mut().for_each(inline);
    if let Fact::Spawn(info) = &mut event.fact {
        info.writes.iter_mut().for_each(inline);
    }
    event
}
