//! Oracle: calls that are made without a stop, with signals from outside arriving wherever they are made.
#![expect(clippy::unwrap_used, reason = "a test says what failed")]
#![expect(unsafe_code, reason = "kill(2)")]

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use backstory_oracle::command::{buffers_calls, recorder_with};
use backstory_oracle::{programs, signalled};
use trace::{Fact, Status, Stop, SyscallInfo, Trace};

/// How many are killed.
const KILLED: u32 = 200;

#[test]
fn what_was_killed_while_it_made_a_call_is_told_to_the_end() {
    // How far each came is chance, and on a busy machine it is not far.
    let told = [1, 4, 16, 64].into_iter().map(killed_after).take_while(|far| !far);
    assert!(told.count() < 4, "few were killed while they made calls without a stop");
}

/// Checks a program whose children are killed, so many times later than usual. Whether they came far enough by then.
#[track_caller]
fn killed_after(patience: u64) -> bool {
    let scratch = tempfile::tempdir().unwrap();
    let (printed, trace) = recorded(scratch.path(), "killed_children", &[KILLED], |i, pid| {
        std::thread::sleep(Duration::from_micros(patience * (1500 + 377 * (i % 9))));
        send(pid, libc::SIGKILL);
    });
    let (mut killed, mut in_calls, mut buffered) = (0, 0, 0);
    let mut inside = BTreeSet::new();
    for item in trace.events() {
        let event = item.unwrap().1;
        buffered += u32::from(event.stop == Stop::Buffered);
        match &event.fact {
            Fact::SyscallEnter(_) => drop(inside.insert(event.task)),
            Fact::SyscallLeave(_) => drop(inside.remove(&event.task)),
            Fact::Exit(Status::Killed(how)) => {
                assert!(!how.unlocated, "{event:?}");
                killed += u32::from(how.signo == libc::SIGKILL);
                in_calls += u32::from(inside.contains(&event.task));
            }
            _ => {}
        }
    }
    assert!(killed >= KILLED, "{killed}");
    signalled::replays(trace.dir(), &printed);
    in_calls > 5 && (buffered > 1000 || !buffers_calls())
}

/// Nor does one tell less that is killed on its way into a handler.
#[test]
fn what_was_killed_while_it_was_sent_signals_ends_where_it_stood() {
    const RAISES: u32 = 5;
    let scratch = tempfile::tempdir().unwrap();
    let (printed, trace) = recorded(scratch.path(), "killed_children", &[3 * KILLED, RAISES], |i, pid| {
        std::thread::sleep(Duration::from_micros(1000 + 137 * (i % 15)));
        send(pid, libc::SIGKILL);
    });
    signalled::replays(trace.dir(), &printed);
}

/// Stops cannot be blocked: they come also where a new program gets what it needs.
#[test]
fn stops_arrive_wherever_the_recorder_makes_calls() {
    let scratch = tempfile::tempdir().unwrap();
    let (printed, trace) = recorded(scratch.path(), "stopped_execs", &[KILLED], |_, pid| {
        let pause = |micros| std::thread::sleep(Duration::from_micros(micros));
        for i in 0..1 << 20 {
            // SAFETY: kill takes numbers only; while one of the group is left none other gets its number.
            if unsafe { libc::kill(-pid, libc::SIGSTOP) } != 0 {
                break;
            }
            pause(50);
            // SAFETY: the same.
            let _ = unsafe { libc::kill(-pid, libc::SIGCONT) };
            pause(100 + i % 7 * 50);
        }
    });
    assert!(printed.ends_with("\n0 failed\nended\n"), "{printed}");
    signalled::replays(trace.dir(), &printed);
}

/// A stop that is seen to only when the process is asked to go on again has no effect.
#[test]
fn what_is_asked_to_go_on_goes_on_wherever_it_was_stopped() {
    const TIMES: u64 = 200;
    let scratch = tempfile::tempdir().unwrap();
    let (printed, trace) = recorded(scratch.path(), "endless_calls", &[], |_, pid| {
        for i in 0..TIMES {
            send(pid, libc::SIGSTOP);
            std::thread::sleep(Duration::from_micros(i % 10 * 20));
            send(pid, libc::SIGCONT);
            if !runs_on(pid) {
                send(pid, libc::SIGKILL);
                panic!("stop {i} of {TIMES} lasts");
            }
        }
        send(pid, libc::SIGTERM);
    });
    signalled::replays(trace.dir(), &printed);
}

/// Whether a process soon runs for another millisecond.
fn runs_on(pid: i32) -> bool {
    const PATIENCE: u32 = 30_000;
    let nanos = || -> u64 {
        let text = std::fs::read_to_string(format!("/proc/{pid}/schedstat")).unwrap();
        text.split(' ').next().unwrap().parse().unwrap()
    };
    let before = nanos();
    (0..PATIENCE).any(|_| {
        std::thread::sleep(Duration::from_millis(1));
        nanos() > before + 1_000_000
    })
}

/// Records a program of `tests/programs/points` in `dir`, with a call for each process that it prints the id of, by its line. What it printed,
/// and the recording, which has no violation.
#[track_caller]
fn recorded(dir: &Path, program: &str, args: &[u32], each: impl Fn(u64, i32)) -> (String, Trace) {
    let source = programs::folder().join("points").join(format!("{program}.c"));
    let guest = programs::build_file(&source, dir);
    let trace = dir.join("trace");
    let mut command: Command = recorder_with(&["-q"], &trace);
    let mut recorder =
        command.arg(&guest).args(args.iter().map(u32::to_string)).stdout(Stdio::piped()).spawn().unwrap();
    let mut printed = String::new();
    for (i, line) in BufReader::new(recorder.stdout.take().unwrap()).lines().map(Result::unwrap).enumerate() {
        printed += &format!("{line}\n");
        if let Ok(pid) = line.parse() {
            each(i as u64, pid);
        }
    }
    assert!(recorder.wait().unwrap().success() && printed.ends_with("\nended\n"), "{printed}");
    let trace = Trace::open(&trace).unwrap();
    assert_eq!(trace::check(&trace), []);
    (printed, trace)
}

#[track_caller]
fn send(pid: i32, signal: i32) {
    // SAFETY: kill takes numbers only; the process is alive until it is killed.
    assert_eq!(unsafe { libc::kill(pid, signal) }, 0);
}

#[test]
fn signals_arrive_wherever_calls_are_made() {
    // Where they arrive is chance, and less of it on a busy machine.
    let most =
        [25, 50, 100, 200, 400].into_iter().map(signals_arrive).take_while(|after_call| *after_call == 0);
    assert!(most.count() < 5, "none arrived while a call was made");
}

/// Checks a program that is stopped by signals from outside so many times. At how many of its execution points it stands behind a call.
#[track_caller]
fn signals_arrive(times: u64) -> u32 {
    let scratch = tempfile::tempdir().unwrap();
    let (printed, trace) = signalled::record("endless_calls", scratch.path(), times);
    let (mut buffered, mut after_call) = (0, 0);
    let mut site = 0;
    for item in trace.events() {
        let event = item.unwrap().1;
        match &event.fact {
            Fact::Syscall(_) if event.stop == Stop::Buffered => {
                buffered += 1;
                site = event.after.rip;
            }
            // A task that was interrupted while it made a call stands behind it.
            Fact::Point(_) if event.before.rip == site => after_call += 1,
            _ => {}
        }
    }
    assert!(buffered > 1000, "{buffered}");
    signalled::replays(trace.dir(), &printed);
    after_call
}

#[test]
fn calls_of_processes_that_wait_for_each_other_are_mostly_not_stopped_at() {
    check_most("put_off_calls.c");
}

#[test]
fn nor_are_those_of_one_that_shares_memory_with_a_third() {
    check_most("put_off_beside.c");
}

/// On a busy machine others come between, now and then more often.
#[track_caller]
fn check_most(program: &str) {
    let seen: Vec<_> =
        (0..4).map(|_| reads_without_a_stop(program)).take_while(|(mostly, _)| !mostly).collect();
    assert!(seen.len() < 4, "{seen:?}");
}

/// Checks a program. Whether its reads are mostly not stopped at; how many are not, and are, and how many signals came.
#[track_caller]
fn reads_without_a_stop(program: &str) -> (bool, [u32; 3]) {
    let scratch = tempfile::tempdir().unwrap();
    let guest = programs::build_file(&programs::folder().join(program), scratch.path());
    let dir = scratch.path().join("trace");
    let output = recorder_with(&["-q"], &dir).arg(&guest).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let trace = Trace::open(&dir).unwrap();
    assert_eq!(trace::check(&trace), []);
    let (mut buffered, mut stopped_at, mut signals) = (0, 0, 0);
    for item in trace.events() {
        let event = item.unwrap().1;
        match &event.fact {
            Fact::Syscall(info) | Fact::SyscallLeave(info) if info.nr == READ => {
                *(if event.stop == Stop::Buffered { &mut buffered } else { &mut stopped_at }) += 1;
            }
            // A call that one ends is stopped at; on a busy machine a timer sends more of them.
            Fact::Signal(_) => signals += 1,
            _ => {}
        }
    }
    signalled::replays(&dir, &String::from_utf8_lossy(&output.stdout));
    let few = buffered / 4 + signals / 8;
    (buffered > 4500 && stopped_at < few, [buffered, stopped_at, signals])
}

const READ: u32 = libc::SYS_read as u32;
const WRITE: u32 = libc::SYS_write as u32;
const FUTEX: u32 = libc::SYS_futex as u32;

/// How many bytes a pipe was given and gave, and how many tasks were woken and woke up, so far.
#[derive(Default, Debug)]
struct Seen {
    given: u64,
    taken: u64,
    wakes: u64,
    woken: u64,
    without_a_stop: u64,
}

impl Seen {
    /// A call begins, and what it may bring about from then on.
    fn begins(&mut self, info: &SyscallInfo) {
        let waits = info.args[1] & 1 == 0;
        match info.nr {
            WRITE if info.args[0] != 1 => self.given += 1,
            FUTEX if !waits => self.wakes += 1,
            _ => {}
        }
    }

    /// A call ends.
    fn ends(&mut self, info: &SyscallInfo) {
        let waits = info.args[1] & 1 == 0;
        match (info.nr, info.result) {
            (READ, Some(1)) => self.taken += 1,
            (FUTEX, Some(0)) if waits => self.woken += 1,
            _ => {}
        }
    }
}

#[test]
fn what_calls_bring_about_comes_after_them() {
    let scratch = tempfile::tempdir().unwrap();
    let guest = programs::build("cause_and_effect", scratch.path());
    let dir = scratch.path().join("trace");
    let output = recorder_with(&["-q"], &dir).arg(&guest).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let trace = Trace::open(&dir).unwrap();
    assert_eq!(trace::check(&trace), []);
    let mut seen = Seen::default();
    for item in trace.events() {
        let (id, event) = item.unwrap();
        match &event.fact {
            Fact::Syscall(info) => {
                seen.begins(info);
                seen.ends(info);
                let counts = matches!(info.nr, WRITE | FUTEX) && event.stop == Stop::Buffered;
                seen.without_a_stop += u64::from(counts);
            }
            Fact::SyscallEnter(info) => seen.begins(info),
            Fact::SyscallLeave(info) => seen.ends(info),
            _ => {}
        }
        assert!(seen.taken <= seen.given && seen.woken <= seen.wakes, "{seen:?} at {id:?}");
    }
    assert!(seen.taken >= 800 && seen.woken > 20 && seen.without_a_stop > 800, "{seen:?}");
    signalled::replays(&dir, "ok\n");
}
