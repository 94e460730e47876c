//! Running out of file descriptors, in a process of its own.
#![expect(unsafe_code, reason = "setrlimit(2) is called here")]

use backstory_counter::{Counter, Event, OpenError};
use guest::GuestAddr;
use ptrace::HostTid;

#[test]
fn too_many_open_files() {
    let limit = libc::rlimit { rlim_cur: 0, rlim_max: 64 };
    // SAFETY: the struct outlives the call. What is open stays open.
    assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &limit) }, 0);
    let error = Counter::open(Event::Breakpoint(GuestAddr(0x1000)), HostTid(0), libc::SIGSTKFLT).unwrap_err();
    assert!(matches!(error, OpenError::TooManyFiles), "{error}");
}
