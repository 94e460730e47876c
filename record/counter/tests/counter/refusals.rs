//! Why a counter cannot be opened, by kind.
#![expect(unsafe_code, reason = "one thread gives its rights up")]

use backstory_counter::{Counter, Event, OpenError};
use guest::GuestAddr;
use ptrace::HostTid;

use crate::program::{Program, Stop};

const SIGNAL: i32 = libc::SIGSTKFLT;

#[test]
fn a_thread_that_is_gone() {
    let mut program = Program::start(2);
    let event = Event::Breakpoint(program.branch);
    let thread = &mut program.threads[1];
    let tid = thread.tid;
    thread.order(0);
    assert_eq!(thread.go_on(), Stop::Exited);
    program.threads.truncate(1);
    let error = Counter::open(event, tid, SIGNAL).unwrap_err();
    assert!(matches!(error, OpenError::NoThread { tid: named } if named == tid), "{error}");
}

#[test]
fn more_breakpoints_than_the_processor_has() {
    let program = Program::start(1);
    let tid = program.threads[0].tid;
    let open = |index: u64| Counter::open(Event::Breakpoint(program.branch.wrapping_add(index)), tid, SIGNAL);
    let four: Vec<Counter> = (0..4).map(|index| open(index).unwrap()).collect();
    let error = open(4).unwrap_err();
    assert!(matches!(error, OpenError::NoSlot { tid: named } if named == tid), "{error}");
    drop(four);
    assert!(open(4).is_ok(), "closing gives the slot back");
}

#[test]
fn an_address_that_no_breakpoint_may_have() {
    let program = Program::start(1);
    let kernel = Event::Breakpoint(GuestAddr(0xffff_ffff_8000_0000));
    let error = Counter::open(kernel, program.threads[0].tid, SIGNAL).unwrap_err();
    let expected = matches!(error, OpenError::Permission { .. } | OpenError::Failed(_));
    assert!(expected, "{error}");
}

#[test]
fn a_thread_of_somebody_else() {
    let refused = std::thread::spawn(|| {
        let nobody = 65_534;
        // SAFETY: the call takes three numbers; made directly it changes this thread only, which then ends.
        unsafe { libc::syscall(libc::SYS_setresuid, nobody, nobody, nobody) };
        Counter::open(Event::Breakpoint(GuestAddr(0x1000)), HostTid(1), SIGNAL)
    });
    let error = refused.join().unwrap().unwrap_err();
    assert!(matches!(error, OpenError::Permission { tid: HostTid(1), .. }), "{error}");
    let line = error.to_string();
    assert!(line.contains("kernel.perf_event_paranoid is"), "{line}");
}
