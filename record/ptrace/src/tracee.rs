//! A tracee as a value: [`Stopped`] owns register access, [`Running`] can only be waited for.
#![expect(unsafe_code, reason = "ptrace(2) is called here")]

use std::ffi::c_void;
use std::marker::PhantomData;
use std::ptr;

use guest::{Registers, XState};

/// A live thread id on this machine (not what a recorded program saw: that is `guest::Tid`).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct HostTid(pub i32);

impl std::fmt::Display for HostTid {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}

/// The request failed; nearly always because the tracee was killed (`errno` is then ESRCH).
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{request} on thread {tid} failed: {}", std::io::Error::from_raw_os_error(*errno))]
pub struct Gone {
    /// The ptrace request.
    pub request: &'static str,
    /// The tracee.
    pub tid: HostTid,
    /// The error number.
    pub errno: i32,
}

/// `PTRACE_O_*` bits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Options(pub i32);

impl Options {
    /// What both recorder and replay use: seccomp stops, distinguishable syscall stops, death with the tracer.
    pub const BASE: Self =
        Self(libc::PTRACE_O_TRACESYSGOOD | libc::PTRACE_O_TRACESECCOMP | libc::PTRACE_O_EXITKILL);
    /// `BASE` and every event of a process tree.
    pub const TREE: Self = Self(
        Self::BASE.0
            | libc::PTRACE_O_TRACEFORK
            | libc::PTRACE_O_TRACEVFORK
            | libc::PTRACE_O_TRACECLONE
            | libc::PTRACE_O_TRACEEXEC
            | libc::PTRACE_O_TRACEEXIT,
    );
}

/// A stopped tracee. Not `Send`: only the tracing thread may use it.
#[derive(Debug)]
pub struct Stopped {
    tid: HostTid,
    thread_bound: PhantomData<*const ()>,
}

/// A running tracee.
#[derive(Debug)]
pub struct Running {
    tid: HostTid,
    thread_bound: PhantomData<*const ()>,
}

/// Register set number of the extended state (`include/uapi/linux/elf.h`).
const NT_X86_XSTATE: usize = 0x202;

/// Size of the buffer for extended state: more than any CPU's XSAVE image (AMX needs 11,008 bytes).
const XSTATE_ROOM: usize = 16 * 1024;

/// `struct __ptrace_peeksiginfo_args`.
#[repr(C)]
struct PeekSiginfo {
    offset: u64,
    queue: u32,
    count: i32,
}

impl PeekSiginfo {
    /// The thread's own queue.
    const OWN: u32 = 0;
    /// That of its process.
    const SHARED: u32 = 1;
}

/// Signals looked at together.
const PEEKED: usize = 4;

fn request(name: &'static str, op: u32, tid: HostTid, addr: usize, data: usize) -> Result<i64, Gone> {
    // SAFETY: ptrace takes two words whose meaning depends on `op`; every caller in this file passes pointers to live
    // buffers of the size that its request reads or writes. Errors are returned, not ignored.
    let result = unsafe { libc::ptrace(op, tid.0, addr as *mut c_void, data as *mut c_void) };
    if result == -1 {
        let errno = std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO);
        return Err(Gone { request: name, tid, errno });
    }
    Ok(result)
}

impl Stopped {
    /// Takes a thread that a wait just reported as stopped (or that is stopped by construction).
    pub fn assume(tid: HostTid) -> Self {
        Self { tid, thread_bound: PhantomData }
    }

    /// The tracee's thread id.
    pub fn tid(&self) -> HostTid {
        self.tid
    }

    /// Sets `PTRACE_O_*` options.
    pub fn set_options(&self, options: Options) -> Result<(), Gone> {
        request("PTRACE_SETOPTIONS", libc::PTRACE_SETOPTIONS, self.tid, 0, options.0 as usize).map(drop)
    }

    /// The general registers.
    pub fn registers(&self) -> Result<Registers, Gone> {
        let mut regs = Registers::default();
        request("PTRACE_GETREGS", libc::PTRACE_GETREGS, self.tid, 0, ptr::from_mut(&mut regs) as usize)?;
        Ok(regs)
    }

    /// Loads the general registers.
    pub fn set_registers(&mut self, regs: &Registers) -> Result<(), Gone> {
        request("PTRACE_SETREGS", libc::PTRACE_SETREGS, self.tid, 0, ptr::from_ref(regs) as usize).map(drop)
    }

    /// The extended state, as the kernel's XSAVE image.
    pub fn xstate(&self) -> Result<XState, Gone> {
        let mut room = vec![0u8; XSTATE_ROOM];
        let mut io = libc::iovec { iov_base: room.as_mut_ptr().cast(), iov_len: room.len() };
        let set = NT_X86_XSTATE;
        request("PTRACE_GETREGSET", libc::PTRACE_GETREGSET, self.tid, set, ptr::from_mut(&mut io) as usize)?;
        room.truncate(io.iov_len);
        Ok(XState(room))
    }

    /// Loads the extended state.
    pub fn set_xstate(&mut self, state: &XState) -> Result<(), Gone> {
        let mut io = libc::iovec { iov_base: state.0.as_ptr().cast_mut().cast(), iov_len: state.0.len() };
        let set = NT_X86_XSTATE;
        request("PTRACE_SETREGSET", libc::PTRACE_SETREGSET, self.tid, set, ptr::from_mut(&mut io) as usize)
            .map(drop)
    }

    /// The `siginfo_t` of the signal it stopped for (128 bytes).
    pub fn siginfo(&self) -> Result<[u8; 128], Gone> {
        let mut info = [0u64; 16];
        request("PTRACE_GETSIGINFO", libc::PTRACE_GETSIGINFO, self.tid, 0, info.as_mut_ptr() as usize)?;
        let mut bytes = [0; 128];
        for (to, word) in bytes.chunks_exact_mut(8).zip(info) {
            to.copy_from_slice(&word.to_ne_bytes());
        }
        Ok(bytes)
    }

    /// Replaces the `siginfo_t` of the signal about to be delivered.
    pub fn set_siginfo(&mut self, info: &[u8; 128]) -> Result<(), Gone> {
        let mut words = [0u64; 16];
        for (word, from) in words.iter_mut().zip(info.as_chunks::<8>().0) {
            *word = u64::from_ne_bytes(*from);
        }
        request("PTRACE_SETSIGINFO", libc::PTRACE_SETSIGINFO, self.tid, 0, words.as_ptr() as usize).map(drop)
    }

    /// The blocked signals, bit `n - 1` for signal `n`.
    pub fn signal_mask(&self) -> Result<u64, Gone> {
        let mut mask = 0u64;
        let op = 0x420a; // PTRACE_GETSIGMASK
        request("PTRACE_GETSIGMASK", op, self.tid, 8, ptr::from_mut(&mut mask) as usize)?;
        Ok(mask)
    }

    /// Whether a signal that is not blocked waits for it: it stops for that before it runs any code of its own.
    pub fn awaits_signal(&self) -> Result<bool, Gone> {
        let mut blocked = None;
        for queue in [PeekSiginfo::OWN, PeekSiginfo::SHARED] {
            let mut args = PeekSiginfo { offset: 0, queue, count: PEEKED as i32 };
            loop {
                let mut found = [[0u8; 128]; PEEKED];
                let (from, to) = (ptr::from_ref(&args) as usize, found.as_mut_ptr() as usize);
                let op = 0x4209; // PTRACE_PEEKSIGINFO
                let count = request("PTRACE_PEEKSIGINFO", op, self.tid, from, to)? as usize;
                for info in found.iter().take(count) {
                    let mask = match blocked {
                        Some(mask) => mask,
                        None => *blocked.insert(self.signal_mask()?),
                    };
                    let number = u32::from_le_bytes([info[0], info[1], info[2], info[3]]);
                    if mask >> number.wrapping_sub(1) & 1 == 0 {
                        return Ok(true);
                    }
                }
                if count < PEEKED {
                    break;
                }
                args.offset += count as u64;
            }
        }
        Ok(false)
    }

    /// Sets the blocked signals.
    pub fn set_signal_mask(&mut self, mask: u64) -> Result<(), Gone> {
        let op = 0x420b; // PTRACE_SETSIGMASK
        request("PTRACE_SETSIGMASK", op, self.tid, 8, ptr::from_ref(&mask) as usize).map(drop)
    }

    /// The message of the ptrace event it stopped for (new thread id, exit status, seccomp data).
    pub fn event_message(&self) -> Result<u64, Gone> {
        let mut message = 0u64;
        let to = ptr::from_mut(&mut message) as usize;
        request("PTRACE_GETEVENTMSG", libc::PTRACE_GETEVENTMSG, self.tid, 0, to)?;
        Ok(message)
    }

    /// A word of the `user` area (debug registers lie at `offsetof(struct user, u_debugreg)`).
    pub fn peek_user(&self, offset: usize) -> Result<u64, Gone> {
        // PTRACE_PEEKUSER by the system call stores through `data`; glibc's wrapper returns the word instead, with
        // errno 0 telling a stored -1 from a failure.
        // SAFETY: errno is thread-local and always writable; PEEKUSER takes an offset and no pointer.
        let word = unsafe {
            *libc::__errno_location() = 0;
            libc::ptrace(libc::PTRACE_PEEKUSER, self.tid.0, offset as *mut c_void, ptr::null_mut::<c_void>())
        };
        match std::io::Error::last_os_error().raw_os_error() {
            Some(errno) if word == -1 && errno != 0 => {
                Err(Gone { request: "PTRACE_PEEKUSER", tid: self.tid, errno })
            }
            _ => Ok(word as u64),
        }
    }

    /// Sets a word of the `user` area.
    pub fn poke_user(&mut self, offset: usize, word: u64) -> Result<(), Gone> {
        request("PTRACE_POKEUSER", libc::PTRACE_POKEUSER, self.tid, offset, word as usize).map(drop)
    }

    /// Where the thread's rseq area is registered: address, length, signature, flags (`PTRACE_GET_RSEQ_CONFIGURATION`).
    pub fn rseq(&self) -> Result<(u64, u32, u32, u32), Gone> {
        let mut words = [0u64; 3];
        let op = 0x420f; // PTRACE_GET_RSEQ_CONFIGURATION
        request("PTRACE_GET_RSEQ_CONFIGURATION", op, self.tid, 24, words.as_mut_ptr() as usize)?;
        Ok((words[0], words[1] as u32, (words[1] >> 32) as u32, words[2] as u32))
    }

    /// Goes on until something happens; `signal` (0 for none) is delivered first.
    pub fn cont(self, signal: i32) -> Result<Running, Gone> {
        self.resume("PTRACE_CONT", libc::PTRACE_CONT, signal)
    }

    /// Goes on until the next syscall entry or exit, or something else.
    pub fn cont_to_syscall(self, signal: i32) -> Result<Running, Gone> {
        self.resume("PTRACE_SYSCALL", libc::PTRACE_SYSCALL, signal)
    }

    /// Goes on for one instruction (one iteration of a `rep`). With a signal that has a handler: to its first
    /// instruction.
    pub fn step(self, signal: i32) -> Result<Running, Gone> {
        self.resume("PTRACE_SINGLESTEP", libc::PTRACE_SINGLESTEP, signal)
    }

    /// Stays in its group stop, but may be woken (`PTRACE_LISTEN`, seized tracees only).
    pub fn listen(self) -> Result<Running, Gone> {
        self.resume("PTRACE_LISTEN", libc::PTRACE_LISTEN, 0)
    }

    fn resume(self, name: &'static str, op: u32, signal: i32) -> Result<Running, Gone> {
        request(name, op, self.tid, 0, signal as usize)?;
        Ok(Running { tid: self.tid, thread_bound: PhantomData })
    }

    /// Lets it go on untraced.
    pub fn detach(self, signal: i32) -> Result<(), Gone> {
        request("PTRACE_DETACH", libc::PTRACE_DETACH, self.tid, 0, signal as usize).map(drop)
    }
}

impl Running {
    /// Takes a thread known to run.
    pub fn assume(tid: HostTid) -> Self {
        Self { tid, thread_bound: PhantomData }
    }

    /// Attaches to a running thread without stopping it (`PTRACE_SEIZE`).
    pub fn seize(tid: HostTid, options: Options) -> Result<Self, Gone> {
        request("PTRACE_SEIZE", libc::PTRACE_SEIZE, tid, 0, options.0 as usize)?;
        Ok(Self { tid, thread_bound: PhantomData })
    }

    /// The tracee's thread id.
    pub fn tid(&self) -> HostTid {
        self.tid
    }

    /// Asks it to stop (`PTRACE_INTERRUPT`, seized tracees only); a wait reports it.
    pub fn interrupt(&self) -> Result<(), Gone> {
        request("PTRACE_INTERRUPT", libc::PTRACE_INTERRUPT, self.tid, 0, 0).map(drop)
    }
}

/// Kills the whole process of a tracee with SIGKILL. It must still be waited for.
impl HostTid {
    /// Sends SIGKILL to the process; a process that is gone already is no error.
    pub fn kill(self) {
        // SAFETY: kill(2) takes no pointers. The id is a tracee's, which is not reused before it is waited for.
        unsafe { libc::kill(self.0, libc::SIGKILL) };
    }
}
