//! What a recorder does about a call, before it runs. Decides from number, arguments and the memory they point to.

use guest::{GuestAddr, GuestMemory};

use crate::effects::may_write;
use crate::errno::Errno;
use crate::flags::CLONE;
use crate::requests::{Request, UnknownRequest};
use crate::row::{Check, Class, NoWait, Row, Support};
use crate::table;

/// A call that stops the recording because its effects are not known or cannot be replayed.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{what} is not supported: {why}")]
pub struct Refusal {
    /// Number of the call.
    pub nr: u32,
    /// The call, and the request or flag where it is that: `ioctl(0x5456)`, `clone(CLONE_THREAD)`.
    pub what: String,
    /// Why not.
    pub why: String,
}

/// What to do about a call: its class with flags and requests taken into account, or why it stops the recording.
///
/// Only calls that take their flags from memory (`clone3`) read `mem`.
pub fn decide(nr: u32, args: &[u64; 6], mem: &dyn GuestMemory) -> Result<Class, Refusal> {
    // A negative number is no call of any Linux: the kernel answers it before it looks at a table.
    if (nr as i32) < 0 {
        return Ok(Class::Emulate(Errno::ENOSYS));
    }
    let Some(row) = table::row(nr) else {
        return if nr & X32 != 0 { Err(no_such_call(nr)) } else { Ok(Class::Unknown) };
    };
    let refuse = |what: String, why: &str| Refusal { nr, what, why: why.into() };
    if let Support::Refused(why) = row.support {
        return Err(refuse(request_name(row, args), why));
    }
    if let Some(check) = row.check {
        check_flags(row, check, args, mem)?;
    }
    let Some(requests) = row.requests else {
        return Ok(quick(row, args, row.class));
    };
    match requests.find(args) {
        None => Ok(Class::Unknown),
        Some(Request { support: Support::Refused(why), .. }) => Err(refuse(request_name(row, args), why)),
        Some(request) => Ok(request.class),
    }
}

/// What became of a call of class [`Class::Unknown`]: fine where the kernel answered that it does not know it, or knows of nothing
/// that would have taken it. Nothing was written then.
pub fn answered_unknown(nr: u32, args: &[u64; 6], result: i64) -> Result<(), Refusal> {
    let errno = Errno::from_result(result);
    let Some(row) = table::row(nr) else {
        return if errno == Some(Errno::ENOSYS) { Ok(()) } else { Err(no_such_call(nr)) };
    };
    let fine = match row.requests.map(|requests| requests.unknown) {
        Some(UnknownRequest::Fails) => errno.is_some(),
        Some(UnknownRequest::FailsWith(errors)) => errno.is_some_and(|errno| errors.contains(&errno)),
        None => false,
    };
    let why = "the request is not in the table";
    if fine { Ok(()) } else { Err(Refusal { nr, what: request_name(row, args), why: why.into() }) }
}

fn no_such_call(nr: u32) -> Refusal {
    let why = if nr & X32 != 0 { "the x32 interface is not modelled" } else { "Linux 6.18 has no such call" };
    Refusal { nr, what: format!("system call {}", nr as i32), why: why.into() }
}

/// Whether a call with these arguments may wait for another task, a signal or time. Errs on the side of yes.
pub fn may_block(nr: u32, args: &[u64; 6]) -> bool {
    let Some(row) = table::row(nr) else { return false };
    let class = match row.requests.and_then(|requests| requests.find(args)) {
        Some(request) => request.class,
        None => quick(row, args, row.class),
    };
    class == Class::MayBlock
}

/// Whether a call, which came to this class, needs the address space for itself: it changes or copies it, or writes to it before it
/// returns, and waits for nobody who uses it. A parent by `vfork` waits for its child.
pub fn needs_space(class: Class, nr: u32, args: &[u64; 6], mem: &dyn GuestMemory) -> bool {
    match class {
        Class::Map(_) => true,
        Class::Spawn => spawn_flags(nr, args, mem) & CLONE_VFORK == 0,
        Class::MayBlock | Class::Exec | Class::Exit | Class::SignalReturn | Class::Unknown => false,
        Class::Plain
        | Class::Emulate(_)
        | Class::Restrict
        | Class::Answer(_)
        | Class::Trace
        | Class::Adjusted => may_write(nr, args),
    }
}

/// The flags of a call that makes a task.
fn spawn_flags(nr: u32, args: &[u64; 6], mem: &dyn GuestMemory) -> u64 {
    const VFORK: u32 = table::number("vfork");
    const CLONE: u32 = table::number("clone");
    const CLONE3: u32 = table::number("clone3");
    match nr {
        VFORK => CLONE_VFORK,
        CLONE => args[0],
        CLONE3 => mem.read_u64(GuestAddr(args[0])).unwrap_or(0),
        _ => 0,
    }
}

const CLONE_VFORK: u64 = 0x4000;

/// The bit that marks numbers of the x32 interface.
const X32: u32 = 0x4000_0000;

/// A call that may wait is plain when its arguments say that it shall not.
fn quick(row: &Row, args: &[u64; 6], class: Class) -> Class {
    let at_once = match row.no_wait {
        Some(NoWait::Bits(at, bits)) => args[usize::from(at)] & bits != 0,
        Some(NoWait::Zero(at)) => args[usize::from(at)] as u32 == 0,
        None => false,
    };
    if at_once { Class::Plain } else { class }
}

/// `name`, or `name(REQUEST)`.
fn request_name(row: &Row, args: &[u64; 6]) -> String {
    let Some(requests) = row.requests else { return row.name.into() };
    match requests.find(args) {
        Some(request) => format!("{}({})", row.name, request.name),
        None => format!("{}({:#x})", row.name, requests.key(args)),
    }
}

/// The new task shall not be traced: the recorder does without this flag, but cannot in a structure that others could see change.
pub const CLONE_UNTRACED: u64 = 0x80_0000;

/// Refuses flags that are not supported.
fn check_flags(row: &Row, check: Check, args: &[u64; 6], mem: &dyn GuestMemory) -> Result<(), Refusal> {
    let refuse = |flags: u64, why: &str| {
        Err(Refusal { nr: row.nr, what: format!("{}({})", row.name, CLONE.show(flags)), why: why.into() })
    };
    let flags = match check {
        // Where the structure is not there the kernel fails with EFAULT.
        Check::Clone3 => mem.read_u64(GuestAddr(args[0])).unwrap_or(0),
    };
    if flags & CLONE_UNTRACED != 0 {
        return refuse(CLONE_UNTRACED, "the child would escape the recorder");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use guest::Unmapped;

    use super::*;
    use crate::row::{Answer, MapCall};
    use crate::table::number;

    struct Word(u64);

    impl GuestMemory for Word {
        fn read(&self, _: GuestAddr, into: &mut [u8]) -> Result<(), Unmapped> {
            into.copy_from_slice(&self.0.to_le_bytes()[..into.len()]);
            Ok(())
        }
    }

    #[track_caller]
    fn check(name: &str, args: &[u64], expected: Result<Class, &str>) {
        let mut all = [0; 6];
        all[..args.len()].copy_from_slice(args);
        let decided = decide(number(name), &all, &Word(0x4100)).map_err(|refusal| refusal.to_string());
        assert_eq!(decided, expected.map_err(str::to_string), "{name}{args:x?}");
        if let Ok(class) = expected {
            assert_eq!(may_block(number(name), &all), class == Class::MayBlock, "{name}{args:x?}");
        }
    }

    #[test]
    fn flags_and_requests_decide() {
        check("read", &[0, 1, 2], Ok(Class::MayBlock));
        check("getpid", &[], Ok(Class::Plain));
        check("wait4", &[0, 0, 1], Ok(Class::Plain));
        check("wait4", &[0, 0, 0], Ok(Class::MayBlock));
        check("poll", &[0, 0, 0], Ok(Class::Plain));
        check("poll", &[0, 0, u64::MAX], Ok(Class::MayBlock));
        check("fcntl", &[0, 7], Ok(Class::MayBlock));
        check("fcntl", &[0, 3], Ok(Class::Plain));
        check("futex", &[0, 0x80], Ok(Class::MayBlock));
        check("futex", &[0, 0x81], Ok(Class::Plain));
        check("ioctl", &[0, 0x5401], Ok(Class::Plain));
        check("ioctl", &[0, 0xffff_ffff_0000_5401], Ok(Class::Plain));
        check("madvise", &[0, 0, 4], Ok(Class::Map(MapCall::Discard)));
        check("mmap", &[], Ok(Class::Map(MapCall::Mmap)));
        check("rseq", &[], Ok(Class::Emulate(Errno::ENOSYS)));
        check("io_uring_setup", &[], Ok(Class::Emulate(Errno::ENOSYS)));
        check("tuxcall", &[], Ok(Class::Emulate(Errno::ENOSYS)));
        check("prctl", &[26, 2], Ok(Class::Answer(Answer::SetTsc)));
        check("prctl", &[22, 2], Ok(Class::Restrict));
        check("seccomp", &[1, 0, 0x1000], Ok(Class::Restrict));
        check("ptrace", &[0], Ok(Class::Trace));
        check("ptrace", &[0x4206, 77, 0, 1], Ok(Class::Trace));
        check("fork", &[], Ok(Class::Spawn));
        check("clone", &[0x0120_0011], Ok(Class::Spawn));
        check("clone", &[0x4111], Ok(Class::Spawn));
        check("clone", &[0x3d_0f00], Ok(Class::Spawn));
        check("clone", &[0x111], Ok(Class::Spawn));
        check("clone3", &[0x1000, 88], Ok(Class::Spawn));
        check("execve", &[], Ok(Class::Exec));
        check("exit_group", &[], Ok(Class::Exit));
        check("rt_sigreturn", &[], Ok(Class::SignalReturn));
        check("unshare", &[0x7e02_0400], Ok(Class::Plain));
        check("clone", &[0x7e82_0011], Ok(Class::Spawn));
    }

    #[track_caller]
    fn check_unknown(nr: u32, args: &[u64], result: i64, expected: Result<(), &str>) {
        let mut all = [0; 6];
        all[..args.len()].copy_from_slice(args);
        assert_eq!(decide(nr, &all, &Word(0)), Ok(Class::Unknown));
        let answered = answered_unknown(nr, &all, result).map_err(|refusal| refusal.to_string());
        assert_eq!(answered, expected.map_err(str::to_string), "{nr}{args:x?} = {result}");
    }

    #[test]
    fn the_kernel_says_what_it_does_not_know() {
        let no_call = "system call 400 is not supported: Linux 6.18 has no such call";
        check_unknown(400, &[], Errno::ENOSYS.as_result(), Ok(()));
        check_unknown(400, &[], Errno::EINVAL.as_result(), Err(no_call));
        check_unknown(400, &[], 0, Err(no_call));
        let no_command = "fcntl(0x270f) is not supported: the request is not in the table";
        check_unknown(number("fcntl"), &[3, 9999], Errno::EINVAL.as_result(), Ok(()));
        check_unknown(number("fcntl"), &[3, 9999], Errno::EBADF.as_result(), Ok(()));
        check_unknown(number("fcntl"), &[3, 9999], 0, Err(no_command));
        let no_device = "ioctl(0xdeadbeef) is not supported: the request is not in the table";
        check_unknown(number("ioctl"), &[0, 0xdead_beef], Errno::ENOTTY.as_result(), Ok(()));
        check_unknown(number("ioctl"), &[0, 0xdead_beef], Errno::EINVAL.as_result(), Err(no_device));
        check_unknown(number("ioctl"), &[0, 0xdead_beef], 0, Err(no_device));
        let no_option = "setsockopt(0x3e700000001) is not supported: the request is not in the table";
        check_unknown(number("setsockopt"), &[3, 999, 1], Errno::ENOPROTOOPT.as_result(), Ok(()));
        check_unknown(number("setsockopt"), &[3, 999, 1], Errno::EINVAL.as_result(), Err(no_option));
    }

    #[test]
    fn some_calls_need_their_space() {
        let needs = |name: &str, first: u64, word| {
            let (nr, args, mem) = (number(name), [first, 0x1000, 0, 1, 1, 1], Word(word));
            needs_space(decide(nr, &args, &mem).unwrap(), nr, &args, &mem)
        };
        for name in
            ["fork", "mmap", "munmap", "mprotect", "brk", "fstat", "getdents64", "pipe", "clock_gettime"]
        {
            assert!(needs(name, 0, 0), "{name}");
        }
        for name in ["vfork", "read", "close", "fsync", "getpid", "execve", "exit", "wait4"] {
            assert!(!needs(name, 0, 0), "{name}");
        }
        const THREAD: u64 = 0x3d_0f00;
        const SPAWN: u64 = 0x4111;
        assert!(needs("clone", THREAD, 0) && !needs("clone", SPAWN, 0));
        assert!(needs("clone3", 0x1000, THREAD) && !needs("clone3", 0x1000, SPAWN));
    }

    #[test]
    fn refusals_name_what_they_refuse() {
        check(
            "ioctl",
            &[0, 0x2285],
            Err("ioctl(SG_IO) is not supported: commands to devices fill buffers of their own"),
        );
        check(
            "ptrace",
            &[25, 77],
            Err("ptrace(PTRACE_GET_THREAD_AREA) is not supported: 32-bit segments are not modelled"),
        );
        let untraced = decide(number("clone3"), &[0x1000, 88, 0, 0, 0, 0], &Word(0x80_0000)).unwrap_err();
        assert_eq!(
            untraced.to_string(),
            "clone3(CLONE_UNTRACED) is not supported: the child would escape the recorder"
        );
        assert_eq!(decide(-1_i32 as u32, &[0; 6], &Word(0)), Ok(Class::Emulate(Errno::ENOSYS)));
        let x32 = decide(0x4000_0000, &[0; 6], &Word(0)).unwrap_err();
        assert_eq!(
            x32.to_string(),
            "system call 1073741824 is not supported: the x32 interface is not modelled"
        );
    }
}
