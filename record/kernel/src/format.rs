//! Calls as people read them. Knows rows and memory; decides nothing.

use guest::{GuestAddr, GuestMemory};

use crate::errno::Errno;
use crate::requests::{Key, Request, Requests};
use crate::row::{Arg, Class, Kind, MapCall, Row, Size, Struct};
use crate::signal::signal_name;
use crate::table;

/// Bytes of a buffer that are shown.
const SHOWN_BYTES: u64 = 32;
/// Bytes of a string that are shown.
const SHOWN_STRING: usize = 256;
/// Strings of a vector, and numbers of an array, that are shown.
const SHOWN_ITEMS: usize = 8;

/// A call in the manner of strace: `read(3, 0x7ffc.., 512) = 0`, `openat(AT_FDCWD, "/etc/passwd", O_RDONLY) = -1 ENOENT`. With `mem`
/// (as it is after the call), strings, buffers, times and small arrays are shown. Without a result the call has not returned.
pub fn format_call(nr: u32, args: &[u64; 6], result: Option<i64>, mem: Option<&dyn GuestMemory>) -> String {
    let Some(row) = table::row(nr) else {
        let shown: Vec<String> = args.iter().map(|arg| format!("{arg:#x}")).collect();
        return format!("syscall_{}({}) = {}", nr as i32, shown.join(", "), format_result(None, result));
    };
    let request = row.requests.and_then(|requests| requests.find(args));
    let shown = Shown { row, request, values: args, result, mem };
    format!("{}({}) = {}", row.name, shown.arguments(), format_result(Some(row), result))
}

/// A result: a number, an address, or `-1` and the error.
fn format_result(row: Option<&Row>, result: Option<i64>) -> String {
    let Some(result) = result else { return "?".into() };
    if let Some(errno) = Errno::from_result(result) {
        return format!("-1 {errno}");
    }
    let address = row.is_some_and(|row| {
        matches!(row.class, Class::Map(MapCall::Mmap | MapCall::Mremap | MapCall::Brk | MapCall::Shmat))
    });
    if address { format!("{result:#x}") } else { result.to_string() }
}

/// A call being shown.
struct Shown<'a> {
    row: &'a Row,
    request: Option<&'static Request>,
    values: &'a [u64; 6],
    result: Option<i64>,
    mem: Option<&'a dyn GuestMemory>,
}

impl Shown<'_> {
    fn arguments(&self) -> String {
        let own = match (self.row.requests, self.request) {
            (Some(requests), Some(_)) => requests.own(self.row),
            _ => self.row.args,
        };
        let more = self.request.map_or(&[] as &[Arg], |request| request.args);
        let shown: Vec<String> = own
            .iter()
            .chain(more)
            .zip(self.values)
            .map(|(arg, value)| self.argument(arg.kind, *value))
            .collect();
        shown.join(", ")
    }

    fn argument(&self, kind: Kind, value: u64) -> String {
        match kind {
            Kind::Int => (value as i32).to_string(),
            Kind::Long => (value as i64).to_string(),
            Kind::Uint => value.to_string(),
            Kind::Fd => (value as i32).to_string(),
            Kind::DirFd if value as i32 == -100 => "AT_FDCWD".into(),
            Kind::DirFd => (value as i32).to_string(),
            Kind::Mode => format!("0{:o}", value & 0xffff_ffff),
            Kind::Signal => signal_name(value as i32).unwrap_or_else(|| (value as i32).to_string()),
            Kind::Flags(set) => set.show(value),
            Kind::Request => self.request_name(),
            Kind::Hex if value == 0 => "0".into(),
            Kind::Hex => format!("{value:#x}"),
            _ if value == 0 => "NULL".into(),
            Kind::Path | Kind::Str => self.string(value),
            Kind::StrVec => self.strings(value),
            Kind::In(size) => self.pointee(size, value),
            Kind::Out(size, _) | Kind::InOut(size, _) if self.result.is_some_and(|result| result >= 0) => {
                self.pointee(size, value)
            }
            _ => format!("{value:#x}"),
        }
    }

    fn request_name(&self) -> String {
        let value = self.row.requests.map_or(0, |requests| self.values[requests.position()]);
        match (self.row.requests, self.request) {
            (Some(requests), Some(request)) => with_rest(requests, request, value),
            _ => format!("{:#x}", value & 0xffff_ffff),
        }
    }

    fn string(&self, at: u64) -> String {
        let text = self.mem.and_then(|mem| mem.read_cstr(GuestAddr(at), SHOWN_STRING).ok());
        match text {
            Some(bytes) => quoted(&bytes, bytes.len() >= SHOWN_STRING),
            None => format!("{at:#x}"),
        }
    }

    fn strings(&self, at: u64) -> String {
        let Some(mem) = self.mem else { return format!("{at:#x}") };
        let mut shown = Vec::new();
        for index in 0.. {
            match mem.read_u64(GuestAddr(at).wrapping_add(index * 8)) {
                Ok(0) => break,
                Ok(_) if shown.len() == SHOWN_ITEMS => {
                    shown.push("...".into());
                    break;
                }
                Ok(string) => shown.push(self.string(string)),
                Err(_) => return format!("{at:#x}"),
            }
        }
        format!("[{}]", shown.join(", "))
    }

    /// What is behind a pointer, where it is short and plain enough to be read.
    fn pointee(&self, size: Size, at: u64) -> String {
        let value = |position: u8| self.values[usize::from(position)];
        let shown = match size {
            Size::One(one) => self.structure(one, at),
            Size::Arg(position) => self.bytes(at, value(position)),
            Size::Result(position) => {
                self.bytes(at, value(position).min(self.result.unwrap_or(0).max(0) as u64))
            }
            _ => None,
        };
        shown.unwrap_or_else(|| format!("{at:#x}"))
    }

    fn bytes(&self, at: u64, len: u64) -> Option<String> {
        let bytes = self.mem?.read_vec(GuestAddr(at), len.min(SHOWN_BYTES) as usize).ok()?;
        Some(quoted(&bytes, len > SHOWN_BYTES))
    }

    fn structure(&self, one: Struct, at: u64) -> Option<String> {
        let word = |index: u64| self.mem?.read_u64(GuestAddr(at).wrapping_add(index * 8)).ok();
        let half = |index: u64| self.mem?.read_u32(GuestAddr(at).wrapping_add(index * 4)).ok();
        Some(match one.name {
            "timespec" => format!("{{tv_sec={}, tv_nsec={}}}", word(0)? as i64, word(1)?),
            "timeval" => format!("{{tv_sec={}, tv_usec={}}}", word(0)? as i64, word(1)?),
            "int[2]" => format!("[{}, {}]", half(0)? as i32, half(1)? as i32),
            "int" => format!("[{}]", half(0)? as i32),
            "unsigned int" | "id_t" | "timer_t" => format!("[{}]", half(0)?),
            "long" | "loff_t" | "time_t" => format!("[{}]", word(0)? as i64),
            "rlimit" => format!("{{rlim_cur={}, rlim_max={}}}", limit(word(0)?), limit(word(1)?)),
            "winsize" => format!("{{ws_row={}, ws_col={}}}", half(0)? & 0xffff, half(0)? >> 16),
            "sigset_t" => signals(word(0)?),
            _ => return None,
        })
    }
}

/// A request's name, with the bits that its key leaves out.
fn with_rest(requests: &Requests, request: &Request, value: u64) -> String {
    match requests.key {
        Key::Masked(_, mask) if value & 0xffff_ffff & !mask != 0 => {
            let rest = value & 0xffff_ffff & !mask;
            let private = if rest & 0x80 != 0 { "_PRIVATE" } else { "" };
            let clock = if rest & 0x100 != 0 { "|FUTEX_CLOCK_REALTIME" } else { "" };
            format!("{}{private}{clock}", request.name)
        }
        _ => request.name.to_string(),
    }
}

fn limit(value: u64) -> String {
    if value == u64::MAX { "RLIM64_INFINITY".into() } else { value.to_string() }
}

/// The members of a signal set.
fn signals(set: u64) -> String {
    if set == u64::MAX {
        return "~[]".into();
    }
    let names: Vec<String> =
        (1..=64).filter(|number| set >> (number - 1) & 1 != 0).filter_map(signal_name).collect();
    format!("[{}]", names.join(" "))
}

/// Bytes as a C string literal.
fn quoted(bytes: &[u8], cut: bool) -> String {
    let mut text = String::from("\"");
    for &byte in bytes {
        match byte {
            b'\n' => text.push_str("\\n"),
            b'\t' => text.push_str("\\t"),
            b'\r' => text.push_str("\\r"),
            b'"' | b'\\' => {
                text.push('\\');
                text.push(char::from(byte));
            }
            b' '..=b'~' => text.push(char::from(byte)),
            _ => text.push_str(&format!("\\x{byte:02x}")),
        }
    }
    text.push('"');
    if cut {
        text.push_str("...");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::Bytes;
    use crate::table::number;

    #[track_caller]
    fn check(name: &str, args: &[u64], result: Option<i64>, expected: &str) {
        let mut mem = Bytes::default();
        mem.put(0x1000, b"/etc/passwd\0");
        mem.put(0x2000, &[5, 0, 0, 0, 0, 0, 0, 0, 7, 0, 0, 0, 0, 0, 0, 0]);
        mem.put(0x3000, b"line \"one\"\n\x01 and more and more and more\0");
        mem.put(0x4000, &0x1000_u64.to_le_bytes());
        mem.put(0x4008, &0_u64.to_le_bytes());
        mem.put(0x5000, &0x4002_u64.to_le_bytes());
        let mut all = [0; 6];
        all[..args.len()].copy_from_slice(args);
        assert_eq!(format_call(number(name), &all, result, Some(&mem)), expected);
    }

    #[test]
    fn calls_read_like_strace() {
        check(
            "openat",
            &[-100_i64 as u64, 0x1000, 0o2000000, 0],
            Some(-2),
            r#"openat(AT_FDCWD, "/etc/passwd", O_RDONLY|O_CLOEXEC, 00) = -1 ENOENT"#,
        );
        check("write", &[1, 0x3000, 12], Some(12), r#"write(1, "line \"one\"\n\x01", 12) = 12"#);
        check(
            "write",
            &[1, 0x3000, 40],
            None,
            r#"write(1, "line \"one\"\n\x01 and more and more a"..., 40) = ?"#,
        );
        check("read", &[0, 0x3000, 100], Some(5), r#"read(0, "line ", 100) = 5"#);
        check("read", &[0, 0x3000, 100], Some(-4), "read(0, 0x3000, 100) = -1 EINTR");
        check("execve", &[0x1000, 0x4000, 0], Some(0), r#"execve("/etc/passwd", ["/etc/passwd"], NULL) = 0"#);
        check(
            "mmap",
            &[0, 4096, 3, 0x22, u64::MAX, 0],
            Some(0x7f00_0000_0000),
            "mmap(0, 4096, PROT_READ|PROT_WRITE, MAP_PRIVATE|MAP_ANONYMOUS, -1, 0) = 0x7f0000000000",
        );
        check("nanosleep", &[0x2000, 0], Some(0), "nanosleep({tv_sec=5, tv_nsec=7}, NULL) = 0");
        check("pipe", &[0x2000], Some(0), "pipe([5, 0]) = 0");
        check("ioctl", &[1, 0x5401, 0x2000], Some(-25), "ioctl(1, TCGETS, 0x2000) = -1 ENOTTY");
        check("ioctl", &[1, 0xdead, 0x2000], Some(0), "ioctl(1, 0xdead, 0x2000) = 0");
        check("futex", &[0x2000, 0x81, 1], Some(1), "futex(0x2000, FUTEX_WAKE_PRIVATE, 1) = 1");
        check("kill", &[77, 11], Some(0), "kill(77, SIGSEGV) = 0");
        check(
            "rt_sigprocmask",
            &[0, 0x5000, 0, 8],
            Some(0),
            "rt_sigprocmask(SIG_BLOCK, [SIGINT SIGTERM], NULL, 8) = 0",
        );
        check(
            "setsockopt",
            &[3, 1, 2, 0x2000, 4],
            Some(0),
            r#"setsockopt(3, SOL_SOCKET, SO_REUSEADDR, "\x05\x00\x00\x00", 4) = 0"#,
        );
        check("exit_group", &[3], None, "exit_group(3) = ?");
        assert_eq!(
            format_call(500, &[1, 2, 3, 4, 5, 6], Some(0), None),
            "syscall_500(0x1, 0x2, 0x3, 0x4, 0x5, 0x6) = 0"
        );
        assert_eq!(
            format_call(number("open"), &[0x1000, 0, 0, 0, 0, 0], Some(3), None),
            "open(0x1000, O_RDONLY, 00) = 3"
        );
    }
}
