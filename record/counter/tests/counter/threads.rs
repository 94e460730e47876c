//! Several threads of one process, a counter on each.

use std::num::NonZeroU64;

use backstory_counter::{Counter, Event};

use crate::program::{Program, Stop};

const SIGNAL: i32 = libc::SIGSTKFLT;
const THREADS: u64 = 3;

fn counters(program: &Program) -> Vec<Counter> {
    let event = Event::Breakpoint(program.branch);
    let open = |thread: &crate::program::Thread| Counter::open(event, thread.tid, SIGNAL).unwrap();
    let counters: Vec<Counter> = program.threads.iter().map(open).collect();
    counters.iter().for_each(|counter| counter.start().unwrap());
    counters
}

fn arm(counter: &Counter, after: u64) {
    counter.arm(NonZeroU64::new(after).unwrap()).unwrap();
}

#[test]
fn one_at_a_time_each_is_stopped_by_its_own() {
    let mut program = Program::start(THREADS);
    let counters = counters(&program);
    for thread in &mut program.threads {
        thread.order(1_000);
    }
    for turn in 0..4 {
        for (index, (thread, counter)) in program.threads.iter_mut().zip(&counters).enumerate() {
            let due = 20 + 50 * index as u64 + turn;
            let before: Vec<u64> = counters.iter().map(|counter| counter.read().unwrap()).collect();
            arm(counter, due);
            assert_eq!(thread.go_on(), Stop::Signal(SIGNAL));
            assert!(counter.sent(&thread.siginfo()));
            for (other, (counter, before)) in counters.iter().zip(before).enumerate() {
                let counted = counter.read().unwrap() - before;
                if other == index {
                    assert!((due..=due + 1).contains(&counted), "{counted} counted, {due} asked for");
                } else {
                    assert_eq!(counted, 0, "thread {other} in the turn of {index}");
                }
            }
        }
    }
    for (thread, counter) in program.threads.iter_mut().zip(&counters) {
        counter.disarm().unwrap();
        assert_eq!(thread.go_on(), Stop::Done);
        assert_eq!(counter.read().unwrap(), 1_000);
    }
}

#[test]
fn all_at_once_each_is_stopped_by_its_own() {
    let mut program = Program::start(THREADS);
    let counters = counters(&program);
    for (index, (thread, counter)) in program.threads.iter_mut().zip(&counters).enumerate() {
        thread.order(2_000);
        arm(counter, 300 + 400 * index as u64);
    }
    program.threads.iter_mut().for_each(crate::program::Thread::let_go);
    for (index, (thread, counter)) in program.threads.iter_mut().zip(&counters).enumerate() {
        assert_eq!(thread.wait(), Stop::Signal(SIGNAL));
        assert!(counter.sent(&thread.siginfo()));
        let (due, counted) = (300 + 400 * index as u64, counter.read().unwrap());
        assert!((due..=due + 1).contains(&counted), "{counted} counted, {due} asked for");
    }
}
