//! Points that a counter helps to locate: executions of a program's only conditional branch stand in for retired branches where there is
//! no counter of these, and counts come from single-stepping.

use std::path::Path;
use std::process::Command;

use backstory_oracle::stepper::{Visitor, walk};
use backstory_oracle::stub::Stub;
use guest::{GuestAddr, Registers, TaskId};
use iced_x86::{FlowControl, Instruction};
use recorder::CounterChoice;
use replayer::{Difference, Moments, Options, Replay, ReplayError, Silent, Stopped, learn};
use trace::{Event, Fact, Header, Located, PointInfo, Stop, Trace};

use crate::recorded::{altered_under, record_with, turn};

/// Three threads that go around the same loop, whose registers are the same each time; what counts is in memory. Nothing else branches
/// conditionally. Each makes a call after every so many rounds. The first one ends early.
const SOURCE: &str = r"
.globl _start, branch
_start:
    lea next(%rip), %r13
    lea 8+left(%rip), %r14
    lea stack(%rip), %rsi
    lea second(%rip), %r15
    jmp clone
second:
    lea 16+left(%rip), %r14
    lea stack-2048(%rip), %rsi
    lea first(%rip), %r15
clone:
    mov $56, %eax
    mov $0x50f00, %edi
    xor %edx, %edx
    xor %r10d, %r10d
    xor %r8d, %r8d
    syscall
    lea thread(%rip), %rdx
    test %eax, %eax
    cmovz %rdx, %r15
    jmp *%r15
first:
    lea left(%rip), %r14
    mov $1, %r12d
    jmp again
thread:
    mov $3, %r12d
again:
    movq $8000, (%r14)
loop:
    addq $3, common(%rip)
    decq (%r14)
branch:
    jnz loop
    mov $39, %eax
    syscall
    dec %r12
    jmp *(%r13,%r12,8)
done:
    mov $60, %eax
    xor %edi, %edi
    syscall
.data
next: .quad done, again, again
.bss
common: .skip 8
left: .skip 24
.skip 4096
stack:
";

fn assembled(dir: &Path, text: &str) -> String {
    let (source, program) = (dir.join("guest.s"), dir.join("guest"));
    std::fs::write(&source, text).unwrap();
    let flags = ["-static", "-nostdlib", "-no-pie", "-Wl,-z,noexecstack", "-o"];
    let status = Command::new("gcc").args(flags).arg(&program).arg(&source).status();
    assert!(status.unwrap().success());
    program.to_str().unwrap().to_owned()
}

/// The program of three threads, and where its branch is.
fn build(dir: &Path) -> (String, GuestAddr) {
    let program = assembled(dir, SOURCE);
    let symbols = Command::new("nm").arg(&program).output().unwrap();
    let symbols = String::from_utf8(symbols.stdout).unwrap();
    let line = symbols.lines().find(|line| line.ends_with(" branch")).unwrap();
    let branch = u64::from_str_radix(line.split(' ').next().unwrap(), 16).unwrap();
    (program, GuestAddr(branch))
}

fn points(trace: &Trace) -> Vec<(TaskId, PointInfo)> {
    let events = trace.events().map(|item| item.unwrap().1);
    let info = |event: Event| match event.fact {
        Fact::Point(info) => Some((event.task, *info)),
        _ => None,
    };
    events.filter_map(info).collect()
}

/// What a first replay finds, and how many instructions it searched.
fn found(trace: &Trace) -> (Moments, u64) {
    let mut replay = Replay::open(trace, &Options::default()).unwrap();
    let moments = replay.finish(&mut Silent).unwrap();
    (moments, replay.searched())
}

/// A header by which points are located so.
fn header(trace: &Trace, located: Located) -> Header {
    let mut header = trace.header().clone();
    header.machine.points = located.word().into();
    header
}

#[test]
fn a_count_ends_slices_and_leads_to_points() {
    let _turn = turn();
    let scratch = tempfile::tempdir().unwrap();
    let (program, branch) = build(scratch.path());
    let trace = record_with(scratch.path(), &[&program], CounterChoice::Executions(branch));
    assert_eq!(trace.header().machine.located(), Located::Branches);
    let points = points(&trace);
    // Also where the thread that its process is named by is gone.
    let last_of_first = points.iter().rposition(|(task, _)| *task == TaskId(0)).unwrap();
    assert!(points.len() - last_of_first > 20);
    assert!(points.iter().all(|(_, info)| !info.key.is_empty()));
    // Each turn of the loop writes before its branch; on a busy machine a slice may be over before the first.
    let written = |info: &PointInfo| !info.pages.is_empty() || info.branches == Some(0);
    assert!(points.iter().all(|(_, info)| written(info)));
    let late = points[last_of_first..].iter().filter(|(_, info)| !info.pages.is_empty()).count();
    assert!(late > 20, "{late} of {} points have pages", points.len());
    let counts: Vec<u64> = points.iter().map(|(_, info)| info.branches.unwrap()).collect();
    assert!(counts.len() > 20, "only {} points", counts.len());
    // A breakpoint counts before its instruction, and its signal comes before the next one.
    assert!(counts.iter().all(|count| *count <= 501), "{counts:?}");
    let ended = counts.iter().filter(|count| **count >= 500).count();
    assert!(ended * 2 > counts.len(), "{ended} of {} slices ended by an overflow", counts.len());
    let (moments, searched) = found(&trace);

    // The same without counts, from beginning to end.
    let plain =
        altered_under(&trace, &header(&trace, Located::State), &scratch.path().join("plain"), |_, event| {
            if let Fact::Point(info) = &mut event.fact {
                info.branches = None;
            }
        });
    let (by_state, searched_by_state) = found(&plain);
    assert_eq!(by_state, moments);
    assert!(
        searched * 2 < searched_by_state,
        "{searched} instructions searched, {searched_by_state} without counts"
    );
}

#[test]
fn counts_that_are_too_high_or_absurd_cost_only_time() {
    let _turn = turn();
    let scratch = tempfile::tempdir().unwrap();
    let (program, branch) = build(scratch.path());
    let trace = record_with(scratch.path(), &[&program], CounterChoice::Executions(branch));
    let (moments, _) = found(&trace);
    type Change = fn(u64) -> u64;
    for (name, change) in [
        ("a few more", (|count| count + 40) as Change),
        ("far more", |count| count + 400),
        ("too few", |count| count / 2),
        ("absurd", |_| u64::MAX),
    ] {
        let dir = scratch.path().join(name);
        let bad = altered_under(&trace, trace.header(), &dir, |_, event| {
            if let Fact::Point(info) = &mut event.fact {
                info.branches = info.branches.map(change);
            }
        });
        let mut replay = Replay::open(&bad, &Options::default()).unwrap();
        assert_eq!(replay.finish(&mut Silent).unwrap(), moments, "{name}");
        assert_eq!(Moments::load(&bad).unwrap().as_ref(), Some(&moments), "{name}");
        assert_eq!(replay.run(replayer::Until::End, &mut Silent).unwrap(), Stopped::End);
    }
    // A point that is nowhere stays a divergence.
    let dir = scratch.path().join("nowhere");
    let bad = altered_under(&trace, trace.header(), &dir, |_, event| {
        if let Fact::Point(info) = &mut event.fact {
            info.pages.iter_mut().for_each(|page| page.crc ^= 1);
        }
    });
    match Replay::open(&bad, &Options::default()).unwrap().finish(&mut Silent) {
        Err(ReplayError::Divergence(found)) => {
            assert!(matches!(found.what, Difference::NoPoint { .. }), "{found}");
        }
        other => panic!("no divergence: {other:?}"),
    }
}

/// Counts, by single-stepping, the conditional branches of each stretch between events.
#[derive(Default)]
struct Branches {
    since: u64,
    at_points: Vec<u64>,
}

impl Visitor for Branches {
    fn after(&mut self, _count: u64, _regs: &Registers, instruction: &Instruction, _stub: &mut Stub) {
        self.since += u64::from(instruction.flow_control() == FlowControl::ConditionalBranch);
    }

    fn event(&mut self, _count: u64, event: &Event, _stub: &mut Stub) {
        if event.stop == Stop::Point {
            self.at_points.push(self.since);
        }
        self.since = 0;
    }
}

/// A timer ends the program in a loop of branches of three kinds, each round of which faults a page in, which takes long: so it can be
/// single-stepped.
const KILLED: &str = r"
.globl _start
_start:
    mov $9, %eax
    xor %edi, %edi
    mov $0x40000000, %esi
    mov $1, %edx
    mov $0x4022, %r10d
    mov $-1, %r8
    xor %r9d, %r9d
    syscall
    mov %rax, %rbx
    mov $38, %eax
    xor %edi, %edi
    lea timer(%rip), %rsi
    xor %edx, %edx
    syscall
    mov $0x40000, %r12d
again:
    mov $2, %ecx
1:  loop 1b
    jrcxz 2f
    nop
2:  addb (%rbx), %al
    lea 4096(%rbx), %rbx
    dec %r12
    jnz again
    mov $60, %eax
    xor %edi, %edi
    syscall
.data
timer: .quad 0, 0, 0, MICROS
";

#[test]
fn counts_of_single_steps_lead_to_points() {
    let _turn = turn();
    for micros in [700, 1900] {
        let scratch = tempfile::tempdir().unwrap();
        let program = assembled(scratch.path(), &KILLED.replace("MICROS", &micros.to_string()));
        let trace = record_with(scratch.path(), &[&program], CounterChoice::State);
        assert_eq!(trace.header().machine.located(), Located::State);
        let moments = learn(&trace, &Options::default()).unwrap();
        let mut counted = Branches::default();
        let walked = walk(&trace, scratch.path(), &mut counted).unwrap();
        assert_eq!(walked.count, moments.total().0);
        let [count] = counted.at_points[..] else { panic!("{:?}", counted.at_points) };
        assert!(count > 400, "{count}");
        let dir = scratch.path().join("counted");
        let with = altered_under(&trace, &header(&trace, Located::Branches), &dir, |_, event| {
            if let Fact::Point(info) = &mut event.fact {
                info.branches = Some(count);
            }
        });
        let (by_count, searched) = found(&with);
        assert_eq!(by_count, moments);
        let most = 8 * (count / 500 + 64);
        assert!(searched <= most, "{searched} instructions searched of {}", moments.total());
    }
}
