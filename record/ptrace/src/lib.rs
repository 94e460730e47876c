//! Tracees: stopped and running, their registers and memory, system calls made on their behalf.
//!
//! The one place that calls `ptrace(2)` and `wait4(2)`. Knows nothing of recording or replaying. A stopped tracee is a
//! value ([`Stopped`]) that owns register access; resuming consumes it and yields a [`Running`].
//!
//! All of it must be called on the thread that traces: the kernel ties a tracee to the tracing *thread*.
//!
//! - `tracee`: stopped and running
//! - `wait`: what a wait reports
//! - `memory`: remote memory
//! - `passed`: requests made for somebody else
//! - `inject`: system calls made in a stopped tracee
//! - `cpu`: pinning to a processor, CPUID and TSC faulting

mod cpu;
mod inject;
mod memory;
mod passed;
mod tracee;
mod wait;

pub use cpu::{current_cpu, pin_to_cpu, set_affinity};
pub use inject::{InjectError, inject_with_stops, inject_with_trap};
pub use memory::Memory;
pub use passed::Data;
pub use tracee::{Gone, HostTid, Options, Running, Stopped};
pub use wait::{PtraceEvent, Report, Waited, wait_any, wait_any_or_signal, wait_for, wait_for_or_signal};
