//! A recorded syscall or signal as people read it: `read(3, 0x7ffc01, 400) = 400 </tmp/storyAb12cd> offset 0`.

use store::{SignalRow, SyscallRow};

/// The call with its arguments and result, what its descriptor was open on, and the file offset it worked at.
pub fn describe_syscall(row: &SyscallRow) -> String {
    let mut text = kernel::format_call(row.nr, &row.args, row.result, None);
    if let Some(path) = &row.path {
        text.push_str(&format!(" <{path}>"));
    }
    if let Some(offset) = row.offset {
        text.push_str(&format!(" offset {offset}"));
    }
    text
}

/// The signal and what was done about it.
pub fn describe_signal(row: &SignalRow) -> String {
    let mut text = format!("{} ({})", signal_name(row.signo), row.action);
    if let Some(addr) = row.addr {
        text.push_str(&format!(" at {addr}"));
    }
    text
}

/// `SIGSEGV`; a number where there is no name.
pub(crate) fn signal_name(signo: i32) -> String {
    kernel::signal_name(signo).map_or_else(|| format!("signal {signo}"), |name| name.to_string())
}
