//! Starting, stopping, reading, resetting; the thread's end.

use backstory_counter::{Counter, Event};

use crate::program::{Program, Stop};

const SIGNAL: i32 = libc::SIGSTKFLT;

#[test]
fn counts_exactly_what_runs_between_start_and_stop() {
    let mut program = Program::start(1);
    let event = Event::Breakpoint(program.branch);
    let thread = program.only();
    let counter = Counter::open(event, thread.tid, SIGNAL).unwrap();
    assert_eq!(counter.tid(), thread.tid);
    thread.run(10);
    assert_eq!(counter.read().unwrap(), 0, "it does not count before it is started");
    counter.start().unwrap();
    for (rounds, sum) in [(1, 1), (500, 501), (77, 578)] {
        thread.run(rounds);
        assert_eq!(counter.read().unwrap(), sum);
    }
    counter.stop().unwrap();
    thread.run(30);
    assert_eq!(counter.read().unwrap(), 578);
    counter.reset().unwrap();
    assert_eq!(counter.read().unwrap(), 0);
    counter.start().unwrap();
    thread.run(4);
    assert_eq!(counter.read().unwrap(), 4);
}

#[test]
fn the_count_outlives_the_thread() {
    let mut program = Program::start(2);
    let event = Event::Breakpoint(program.branch);
    let thread = &mut program.threads[1];
    let counter = Counter::open(event, thread.tid, SIGNAL).unwrap();
    counter.start().unwrap();
    thread.run(123);
    thread.order(0);
    assert_eq!(thread.go_on(), Stop::Exited);
    assert_eq!(counter.read().unwrap(), 123);
    counter.stop().unwrap();
    counter.arm(std::num::NonZeroU64::MIN).unwrap();
    counter.start().unwrap();
    assert_eq!(counter.read().unwrap(), 123);
    program.threads.truncate(1);
}

#[test]
fn several_counters_of_one_thread_do_not_disturb_each_other() {
    let mut program = Program::start(1);
    let event = Event::Breakpoint(program.branch);
    let thread = program.only();
    let counters: Vec<Counter> = (0..3).map(|_| Counter::open(event, thread.tid, SIGNAL).unwrap()).collect();
    for (index, counter) in counters.iter().enumerate() {
        thread.run(10 * (index as u64 + 1));
        counter.start().unwrap();
    }
    thread.run(5);
    assert_eq!(counters.iter().map(|counter| counter.read().unwrap()).collect::<Vec<_>>(), [55, 35, 5]);
}
