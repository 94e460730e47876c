//! The signal at an overflow: when it comes, to whom, again, and not.

use std::num::NonZeroU64;

use backstory_counter::{Counter, Event};

use crate::program::{Program, Stop, Thread};

const SIGNAL: i32 = libc::SIGSTKFLT;

/// A breakpoint's signal comes before the next branch does.
const LATEST: u64 = 1;

fn after(events: u64) -> NonZeroU64 {
    NonZeroU64::new(events).unwrap()
}

/// Goes on with `left` rounds to run: the counter's signal comes `due` rounds later. How many are then left.
#[track_caller]
fn stopped_after(counter: &Counter, thread: &mut Thread, event: Event, left: u64, due: u64) -> u64 {
    let Event::Breakpoint(branch) = event else { unreachable!("a test's counters count breakpoints") };
    let before = counter.read().unwrap();
    assert_eq!(thread.go_on(), Stop::Signal(SIGNAL));
    assert!(counter.sent(&thread.siginfo()));
    let counted = counter.read().unwrap() - before;
    assert!((due..=due + LATEST).contains(&counted), "{counted} counted, {due} asked for");
    // The thread is at a branch that is counted and not yet executed, or just past it.
    let executed = left - thread.left(branch);
    assert!((counted - 1..=counted).contains(&executed), "{executed} executed, {counted} counted");
    left - executed
}

#[test]
fn the_signal_comes_when_it_is_due_and_again() {
    let mut program = Program::start(1);
    let event = Event::Breakpoint(program.branch);
    let thread = program.only();
    let counter = Counter::open(event, thread.tid, SIGNAL).unwrap();
    counter.arm(after(100)).unwrap();
    counter.start().unwrap();
    thread.order(350);
    let mut left = 350;
    for _ in 0..3 {
        left = stopped_after(&counter, thread, event, left, 100);
    }
    assert_eq!(thread.go_on(), Stop::Done);
    assert_eq!(counter.read().unwrap(), 350);
}

#[test]
fn armed_again_it_comes_so_much_later_than_now() {
    let mut program = Program::start(1);
    let event = Event::Breakpoint(program.branch);
    let thread = program.only();
    let counter = Counter::open(event, thread.tid, SIGNAL).unwrap();
    counter.start().unwrap();
    let mut left = 5_000;
    thread.order(left);
    for due in [1, 200, 3, 1_000, 2, 1, 700] {
        counter.arm(after(due)).unwrap();
        left = stopped_after(&counter, thread, event, left, due);
    }
    // In the middle of a period, and while it does not count.
    counter.arm(after(90)).unwrap();
    assert_eq!(thread.go_on(), Stop::Signal(SIGNAL));
    let Event::Breakpoint(branch) = event else { unreachable!("as above") };
    left = thread.left(branch);
    counter.arm(after(1_000_000)).unwrap();
    counter.arm(after(40)).unwrap();
    left = stopped_after(&counter, thread, event, left, 40);
    counter.stop().unwrap();
    counter.arm(after(60)).unwrap();
    counter.reset().unwrap();
    counter.start().unwrap();
    stopped_after(&counter, thread, event, left, 60);
    counter.disarm().unwrap();
    assert_eq!(thread.go_on(), Stop::Done);
}

#[test]
fn while_stopped_it_comes_no_nearer() {
    let mut program = Program::start(1);
    let event = Event::Breakpoint(program.branch);
    let thread = program.only();
    let counter = Counter::open(event, thread.tid, SIGNAL).unwrap();
    counter.arm(after(100)).unwrap();
    counter.start().unwrap();
    thread.run(70);
    counter.stop().unwrap();
    thread.run(1_000);
    counter.start().unwrap();
    thread.run(20);
    thread.order(50);
    stopped_after(&counter, thread, event, 50, 10);
}

#[test]
fn unarmed_disarmed_or_blocked_it_does_not_stop_the_thread() {
    let mut program = Program::start(1);
    let event = Event::Breakpoint(program.branch);
    let thread = program.only();
    let counter = Counter::open(event, thread.tid, SIGNAL).unwrap();
    counter.start().unwrap();
    thread.run(1_000);
    counter.arm(after(10)).unwrap();
    counter.disarm().unwrap();
    thread.run(1_000);
    counter.arm(after(u64::MAX)).unwrap();
    thread.run(1_000);
    counter.arm(after(500)).unwrap();
    thread.stopped().set_signal_mask(1 << (SIGNAL - 1)).unwrap();
    thread.run(1_000);
    assert_eq!(counter.read().unwrap(), 4_000);
    // It was pending.
    thread.stopped().set_signal_mask(0).unwrap();
    thread.order(10);
    assert_eq!(thread.go_on(), Stop::Signal(SIGNAL));
    assert!(counter.sent(&thread.siginfo()));
}

#[test]
fn an_ignored_signal_stops_it_and_another_one_is_not_the_counters() {
    let mut program = Program::start(1);
    let event = Event::Breakpoint(program.branch);
    let thread = program.only();
    let tid = thread.tid;
    // SIGURG is ignored by default.
    let counter = Counter::open(event, tid, libc::SIGURG).unwrap();
    let other = Counter::open(event, tid, libc::SIGURG).unwrap();
    counter.arm(after(40)).unwrap();
    counter.start().unwrap();
    thread.order(60);
    assert_eq!(thread.go_on(), Stop::Signal(libc::SIGURG));
    assert!(counter.sent(&thread.siginfo()));
    assert!(!other.sent(&thread.siginfo()));
    counter.disarm().unwrap();
    send(tid.0, libc::SIGURG);
    assert_eq!(thread.go_on(), Stop::Signal(libc::SIGURG));
    assert!(!counter.sent(&thread.siginfo()));
    assert_eq!(thread.go_on(), Stop::Done);
}

/// Sends a signal as another process would.
fn send(pid: i32, signal: i32) {
    let status = std::process::Command::new("kill").args([format!("-{signal}"), pid.to_string()]).status();
    assert!(status.unwrap().success());
}
