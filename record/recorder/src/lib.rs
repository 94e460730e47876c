//! The recorder: runs a command natively under ptrace and a seccomp filter, and writes down what the kernel did to it.
//!
//! Knows nothing of replaying. No instruction of the guest is translated; processes run at full speed between system
//! calls, one at a time on one processor.
//!
//! - `api`: [`record`], its options, outcome and errors
//! - `command`: from the words typed to a program that can be executed
//! - `launch`, `filter`: the first process and its seccomp filter
//! - `seccomp`, `bpf`: filters of the guest's own
//! - `header`, `machine`: what the header says about the command and this machine
//! - `inherited`: descriptors that the command inherits
//! - `cpuid`: what it answers, and trapping it
//! - `tsc`: the recording thread traps what is trapped in tracees
//! - `session`: the main loop: what was reported, by whom, and what follows
//! - `borrowed`: descriptors of other processes
//! - `turn`: who runs, who waits
//! - `waking`: threads give way to those that they wake
//! - `task`: tasks and spaces
//! - `stop`: what handling a stop comes to
//! - `narrow`: system calls by `int 0x80`, up to where they are like others
//! - `syscall`, `memmap`, `spawn`, `exec`, `signal`, `trap`: one kind of stop each
//! - `reading`: which file a call read from
//! - `buffer`: calls made without a stop
//! - `unrepeatable`: instructions whose results nothing tells
//! - `again`: calls that would wait, put off
//! - `resolver`: what the dynamic linker leaves on the stack
//! - `scratch`: where calls that may wait write meanwhile
//! - `shared`: memory that more than one process can change
//! - `foreign`: memory changed as a file, or from another process
//! - `follow`: files that private mappings show, and calls change
//! - `programs`: programs and maps in the kernel
//! - `image`, `procfs`: what `/proc` tells of a tracee; a new program's memory
//! - `ptracing`: tracers of the guest's own
//! - `output`: writes to the recorded run's standard streams
//! - `affinity`: one processor for all that is recorded
//! - `answer`: calls answered from what is kept for the guest
//! - `ending`: requests to end, passed on to the command first
//! - `sink`: events on their way to the trace
//! - `timer`: the clock tick that ends slices
//! - `count`: how far a task has come, by a hardware counter, and slices ended by it
//! - `paranoid`: compares all memory around every system call

mod affinity;
mod again;
mod answer;
mod api;
mod borrowed;
mod bpf;
mod buffer;
mod chaos;
mod command;
mod count;
mod cpuid;
mod ending;
mod exec;
mod exit;
mod filter;
mod follow;
mod foreign;
mod header;
mod ignored;
mod image;
mod inherited;
mod launch;
mod machine;
mod memmap;
mod narrow;
mod order;
mod output;
mod pages;
mod paranoid;
mod point;
mod procfs;
mod programs;
mod ptracing;
mod reading;
mod resolver;
mod saved_state;
mod scratch;
mod seccomp;
mod session;
mod shared;
mod signal;
mod sink;
mod spawn;
mod standing;
mod status;
mod stop;
mod syscall;
mod sysv;
mod task;
mod timer;
mod trap;
mod tsc;
mod turn;
mod unrepeatable;
mod waking;

pub use api::{Buffer, CounterChoice, ErrorClass, Options, Outcome, RecordError, record};
