//! The first process: made, seized, given its filter, and executed. Knows nothing of what follows.
#![expect(unsafe_code, reason = "clone(2) and what the child does before execve(2)")]

use std::ffi::CString;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsRawFd, FromRawFd};
use std::ptr;

use ptrace::{HostTid, Options, PtraceEvent, Report, Running, Stopped, wait_for};
use seccompiler::sock_filter;

use crate::api::RecordError;
use crate::command::Prepared;
use crate::filter;

/// Bytes of the child's stack.
const CHILD_STACK: usize = 16 << 10;

/// What went wrong in the child before its program ran.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
enum Stage {
    Seccomp = 1,
    Exec = 2,
}

/// `struct sock_fprog` of `linux/filter.h`.
#[repr(C)]
struct FilterProgram {
    len: u16,
    filter: *const sock_filter,
}

/// What the child needs, made before the fork: it may not allocate.
struct ChildPlan {
    path: CString,
    argv: Vec<*const libc::c_char>,
    shell_argv: Vec<*const libc::c_char>,
    envp: Vec<*const libc::c_char>,
    filter: Vec<sock_filter>,
    go: i32,
    report: i32,
}

/// Starts the command. Returns its first process at the `PTRACE_EVENT_EXEC` stop, still inside `execve`.
pub(crate) fn launch(prepared: &Prepared) -> Result<Stopped, RecordError> {
    let system = |what| move |source| RecordError::System { what, source };
    let (go_read, mut go_write) = pipe().map_err(system("cannot make a pipe"))?;
    let (mut report_read, report_write) = pipe().map_err(system("cannot make a pipe"))?;
    let shell = [CString::from(c"/bin/sh"), prepared.path.clone()];
    let plan = ChildPlan {
        path: prepared.path.clone(),
        argv: pointers(&prepared.argv),
        shell_argv: shell
            .iter()
            .chain(prepared.argv.iter().skip(1))
            .map(|s| s.as_ptr())
            .chain([ptr::null()])
            .collect(),
        envp: pointers(&prepared.envp),
        filter: filter::program(abi::SYSCALL_RETURN as u32, buffer::call_return() as u32),
        go: go_read.as_raw_fd(),
        report: report_write.as_raw_fd(),
    };
    let mut stack = vec![0u128; CHILD_STACK / size_of::<u128>()];
    // The child runs in this process's memory until it executes its program: a copy of it would cost more than all else here.
    // SAFETY: it only makes the system calls in `child` and never returns; everything it uses, its stack with that, was
    // made above and lives until it has executed its program or is dead, which `until_exec` or the wait below sees. Its `errno`
    // is ours, too, but only calls that fail set it, and while it makes such we wait.
    let pid = unsafe {
        let top = stack.as_mut_ptr_range().end.cast();
        libc::clone(begin, top, libc::CLONE_VM | libc::SIGCHLD, (&raw const plan).cast_mut().cast())
    };
    if pid == -1 {
        return Err(system("cannot fork")(io::Error::last_os_error()));
    }
    drop(report_write);
    let tid = HostTid(pid);
    let dead = || {
        tid.kill();
        let _ = wait_for(tid, 0);
    };
    let seized = Running::seize(tid, Options::TREE).map_err(|gone| {
        dead();
        no_permission(io::Error::from_raw_os_error(gone.errno))
    })?;
    go_write.write_all(b"g").map_err(|source| {
        dead();
        system("cannot start the command")(source)
    })?;
    drop((go_write, seized));
    until_exec(tid, prepared, &mut report_read)
}

extern "C" fn begin(plan: *mut libc::c_void) -> i32 {
    // SAFETY: `launch` passes a plan, which it keeps.
    child(unsafe { &*plan.cast::<ChildPlan>() })
}

fn until_exec(tid: HostTid, prepared: &Prepared, report: &mut File) -> Result<Stopped, RecordError> {
    let lost = |gone: ptrace::Gone| RecordError::System {
        what: "the command vanished before it began",
        source: io::Error::from_raw_os_error(gone.errno),
    };
    loop {
        let waited = wait_for(tid, 0)
            .map_err(|source| RecordError::System { what: "cannot wait for the command", source })?;
        let resumed = match waited.map(|waited| waited.report) {
            Some(Report::Event(PtraceEvent::Exec, stopped)) => return Ok(stopped),
            Some(Report::Signal(signal, stopped)) => stopped.cont(signal),
            Some(Report::Group(_, stopped)) => stopped.listen(),
            Some(Report::Seccomp(stopped) | Report::Syscall(stopped) | Report::Event(_, stopped)) => {
                stopped.cont(0)
            }
            Some(Report::Exited(_) | Report::Killed(..)) | None => return Err(failed(prepared, report)),
        };
        resumed.map_err(lost)?;
    }
}

fn failed(prepared: &Prepared, report: &mut File) -> RecordError {
    let mut bytes = [0; 5];
    if report.read_exact(&mut bytes).is_err() {
        return RecordError::Bug { what: "the command died before it began".into() };
    }
    let errno = i32::from_le_bytes([bytes[1], bytes[2], bytes[3], bytes[4]]);
    let source = io::Error::from_raw_os_error(errno);
    if bytes[0] == Stage::Seccomp as u8 {
        return RecordError::NoPermission {
            setting: "seccomp(2) is refused, probably by the seccomp profile of this container".into(),
            source,
        };
    }
    let path = prepared.path.to_string_lossy().into_owned();
    RecordError::NotExecutable { path, source }
}

fn no_permission(source: io::Error) -> RecordError {
    let scope = std::fs::read_to_string("/proc/sys/kernel/yama/ptrace_scope").unwrap_or_default();
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let tracer = status.lines().find_map(|line| line.strip_prefix("TracerPid:")).map_or("0", str::trim);
    let setting = match scope.trim() {
        _ if tracer != "0" => {
            format!("process {tracer} (a debugger, strace?) traces this one and what it starts")
        }
        "3" => "kernel.yama.ptrace_scope is 3, which forbids all tracing until a reboot".into(),
        "2" => "kernel.yama.ptrace_scope is 2, which wants CAP_SYS_PTRACE".into(),
        _ => "ptrace(2) is refused, probably by the seccomp profile of this container \
              (docker: --cap-add=SYS_PTRACE or --security-opt seccomp=unconfined)"
            .to_string(),
    };
    RecordError::NoPermission { setting, source }
}

fn pointers(strings: &[CString]) -> Vec<*const libc::c_char> {
    strings.iter().map(|s| s.as_ptr()).chain([ptr::null()]).collect()
}

/// A pipe that is closed on exec: the reading and the writing end.
fn pipe() -> io::Result<(File, File)> {
    let mut fds = [0; 2];
    // SAFETY: `fds` has room for the two descriptors.
    if unsafe { libc::pipe2(fds.as_mut_ptr(), libc::O_CLOEXEC) } != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: both descriptors were just made and belong to no one else.
    Ok(unsafe { (File::from_raw_fd(fds[0]), File::from_raw_fd(fds[1])) })
}

/// The child from fork to exec: async-signal-safe calls only.
fn child(plan: &ChildPlan) -> ! {
    // SAFETY: only system calls on memory that the plan holds, which the parent made before the fork; the pointer lists end
    // with null; `_exit` ends the process without running anything of the parent's.
    unsafe {
        // The Rust runtime ignores SIGPIPE; programs expect to be killed by it.
        libc::signal(libc::SIGPIPE, libc::SIG_DFL);
        let old = libc::personality(0xffff_ffff);
        if old != -1 {
            libc::personality((old | libc::ADDR_NO_RANDOMIZE) as libc::c_ulong);
        }
        libc::prctl(libc::PR_SET_TSC, libc::PR_TSC_SIGSEGV, 0, 0, 0);
        let mut byte = 0u8;
        while libc::read(plan.go, (&raw mut byte).cast(), 1) == -1 && *libc::__errno_location() == libc::EINTR
        {
        }
        let program = FilterProgram { len: plan.filter.len() as u16, filter: plan.filter.as_ptr() };
        if !install(&program) {
            give_up(plan, Stage::Seccomp);
        }
        libc::execve(plan.path.as_ptr(), plan.argv.as_ptr(), plan.envp.as_ptr());
        if *libc::__errno_location() == libc::ENOEXEC {
            // A script without `#!`: shells run it, and so does execvp.
            libc::execve(c"/bin/sh".as_ptr(), plan.shell_argv.as_ptr(), plan.envp.as_ptr());
        }
        give_up(plan, Stage::Exec)
    }
}

/// Installs the filter; without privilege only a process that can gain none may.
///
/// # Safety
///
/// `program` must describe a live filter.
unsafe fn install(program: &FilterProgram) -> bool {
    // SAFETY: the kernel copies the filter out of live memory.
    unsafe {
        let set =
            || libc::syscall(libc::SYS_seccomp, libc::SECCOMP_SET_MODE_FILTER, 0, ptr::from_ref(program));
        set() == 0 || (libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 && set() == 0)
    }
}

/// Tells the parent which step failed and why.
///
/// # Safety
///
/// In the child only.
unsafe fn give_up(plan: &ChildPlan, stage: Stage) -> ! {
    // SAFETY: plain system calls; the buffer outlives the write.
    unsafe {
        let errno = (*libc::__errno_location()).to_le_bytes();
        let bytes = [stage as u8, errno[0], errno[1], errno[2], errno[3]];
        libc::write(plan.report, bytes.as_ptr().cast(), bytes.len());
        libc::_exit(127)
    }
}
