//! Oracle: a call made by the code leaves every register, the flags and memory as the plain instruction does; also where its task is
//! stopped at any instruction on the way and then let go on.
#![expect(clippy::unwrap_used, reason = "a test says what failed")]
#![expect(unsafe_code, reason = "a traced process with memory at fixed addresses")]

extern crate backstory_buffer as buffer;

use std::collections::BTreeSet;
use std::{mem, ptr};

use abi::SiteDescriptor;
use abi::buffer::{
    ASKS, CLOSES, CODE, FDS, FIXED, FIXED_LEN, Form, GO, HEAD, READS, RING, ROWS, Row, SITE, STATE, STUBS,
    Size, TRIED, WHILE_EMPTY, WRITES, WRITTEN_LEN,
};
use abi::calls::Call;
use buffer::{Standing, Used, standing};

/// Where the guest's own code and data lie: `syscall; int3`.
const GUEST: u64 = 0x20_0000;
const GUEST_LEN: usize = 0x3000;
const DATA: u64 = GUEST + 0x1000;
const STACK: u64 = GUEST + 0x2800;
/// Debug registers in `struct user`.
const DEBUG: usize = mem::offset_of!(libc::user, u_debugreg);

const READ: u64 = 0;
const WRITE: u64 = 1;
const CLOCK: u64 = 228;
const GETPPID: u64 = 110;
const GETTIMEOFDAY: u64 = 96;
const EPOLL_WAIT: u64 = 232;
const RECVFROM: u64 = 45;
const CLOSE: u64 = 3;
const SENDFILE: u64 = 40;
const OPENAT: u64 = 257;
const AT_FDCWD: u64 = libc::AT_FDCWD as u64;

fn map(at: u64, len: usize, prot: i32) {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE;
    // SAFETY: a fresh mapping at a free place.
    let got = unsafe { libc::mmap(at as *mut _, len, prot, flags, -1, 0) };
    assert_eq!(got as u64, at);
}

fn put(at: u64, bytes: &[u8]) {
    // SAFETY: the child has mapped what it writes to.
    unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), at as *mut u8, bytes.len()) };
}

/// The child: everything in place, then it waits for its tracer.
fn child(scene: &Scene) -> ! {
    let all = libc::PROT_READ | libc::PROT_WRITE | libc::PROT_EXEC;
    map(FIXED, FIXED_LEN as usize, all);
    map(STATE, WRITTEN_LEN as usize, all);
    map(GUEST, GUEST_LEN, all);
    put(CODE, buffer::code());
    let descriptor = SiteDescriptor { after: GUEST + 2, resume: GUEST + 2 };
    put(STUBS, &descriptor.to_bytes());
    let mut stub = vec![0x41, 0xbb];
    stub.extend((STUBS as u32).to_le_bytes());
    let from = STUBS + 16 + stub.len() as u64 + 5;
    stub.push(0xe9);
    stub.extend((CODE.wrapping_sub(from) as u32).to_le_bytes());
    put(STUBS + 16, &stub);
    put(GUEST, &[0x0f, 0x05, 0xcc]);
    for (nr, row) in rows() {
        put(ROWS + nr * 8, &row.to_word().to_le_bytes());
    }
    put(GO, &scene.go.to_le_bytes());
    put(HEAD, &scene.head.to_le_bytes());
    // SAFETY: plain calls; `dup2` gives the descriptors fixed numbers.
    unsafe {
        let mut fds = [0; 2];
        libc::pipe(fds.as_mut_ptr());
        libc::dup2(fds[0], 100);
        libc::dup2(fds[1], 101);
        libc::dup2(libc::open(c"/dev/zero".as_ptr(), libc::O_RDONLY), 102);
        libc::socketpair(libc::AF_UNIX, libc::SOCK_STREAM, 0, fds.as_mut_ptr());
        libc::dup2(fds[0], 103);
        libc::write(fds[1], b"socket".as_ptr().cast(), 6);
        libc::dup2(libc::epoll_create1(0), 104);
        libc::dup2(fds[1], 106);
        libc::dup2(libc::epoll_create1(0), 107);
        libc::dup2(libc::open(c"/proc/self/exe".as_ptr(), libc::O_RDONLY), 108);
        let mut event = libc::epoll_event { events: libc::EPOLLOUT as u32, u64: 7 };
        libc::epoll_ctl(104, libc::EPOLL_CTL_ADD, 101, &mut event);
        libc::socketpair(libc::AF_UNIX, libc::SOCK_STREAM, 0, fds.as_mut_ptr());
        libc::dup2(fds[0], 109);
        if scene.full {
            libc::dup2(fds[1], 110);
            libc::write(110, b"on its way".as_ptr().cast(), 10);
            libc::write(101, b"in the pipe".as_ptr().cast(), 11);
        }
    }
    let (reads, writes) = (READS << TRIED, WRITES << TRIED);
    put(FDS + 100, &[reads, writes, READS, reads | writes, ASKS, 0, reads, ASKS, READS | ASKS | CLOSES]);
    put(FDS + 109, &[writes | WHILE_EMPTY, writes | WHILE_EMPTY]);
    if scene.nr == SENDFILE {
        put(FDS + 101, &[WRITES]);
    }
    put(DATA, &scene.data);
    // SAFETY: the tracer takes over at the stop.
    unsafe {
        libc::ptrace(libc::PTRACE_TRACEME, 0, 0, 0);
        libc::raise(libc::SIGSTOP);
        libc::_exit(1)
    }
}

fn rows() -> Vec<(u64, Row)> {
    let row = |needs, args, out, zero, form| Row { needs, args, out, zero, form };
    vec![
        (GETPPID, row(0, 0, None, [None; 2], Form::Plain)),
        (READ, row(READS, 3, Some((1, Size::Result(2, 1))), [None; 2], Form::Vector)),
        (WRITE, row(WRITES, 3, None, [None; 2], Form::Vector)),
        (CLOCK, row(0, 2, Some((1, Size::Fixed(16))), [None; 2], Form::Plain)),
        (GETTIMEOFDAY, row(0, 2, Some((0, Size::Fixed(16))), [Some(1), None], Form::Plain)),
        (EPOLL_WAIT, row(ASKS, 4, Some((1, Size::Result(2, 12))), [None; 2], Form::NoTime)),
        (CLOSE, row(0, 1, None, [None; 2], Form::Close)),
        (SENDFILE, row(WRITES, 4, Some((2, Size::Fixed(8))), [None; 2], Form::Send)),
        (OPENAT, row(0, 4, None, [None; 2], Form::Open)),
        (RECVFROM, row(READS, 6, Some((1, Size::Result(2, 1))), [Some(4), Some(5)], Form::NoWait)),
    ]
}

/// A call in some circumstances.
#[derive(Clone)]
struct Scene {
    nr: u64,
    args: [u64; 6],
    flags: u64,
    go: u32,
    head: u32,
    /// Whether there is something in the pipe.
    full: bool,
    data: [u8; 64],
    /// Whether the code makes it itself.
    made: bool,
    /// Whether what it writes is the same each time.
    steady: bool,
}

/// A call that is made, of which nothing is special.
fn scene(nr: u64, args: &[u64]) -> Scene {
    let mut all = [0x11, 0x22, 0x33, 0x44, 0x55, 0x66];
    all[..args.len()].copy_from_slice(args);
    let (flags, data) = (0x202, [b'x'; 64]);
    Scene { nr, args: all, flags, go: 1, head: 0, full: true, data, made: true, steady: true }
}

struct Tracee(i32);

impl Drop for Tracee {
    fn drop(&mut self) {
        // SAFETY: our own child.
        unsafe {
            libc::kill(self.0, libc::SIGKILL);
            libc::waitpid(self.0, ptr::null_mut(), 0);
        }
    }
}

impl Tracee {
    fn start(scene: &Scene) -> Self {
        // SAFETY: the child makes plain calls only, on what was made before.
        let pid = unsafe { libc::fork() };
        if pid == 0 {
            child(scene);
        }
        let tracee = Self(pid);
        assert_eq!(tracee.wait(), libc::SIGSTOP);
        tracee
    }

    fn wait(&self) -> i32 {
        let mut status = 0;
        // SAFETY: our own child.
        assert_eq!(unsafe { libc::waitpid(self.0, &mut status, 0) }, self.0);
        assert!(libc::WIFSTOPPED(status), "{status:#x}");
        libc::WSTOPSIG(status)
    }

    fn registers(&self) -> libc::user_regs_struct {
        // SAFETY: the structure is plain numbers, and filled by the request.
        unsafe {
            let mut regs: libc::user_regs_struct = mem::zeroed();
            assert_eq!(libc::ptrace(libc::PTRACE_GETREGS, self.0, 0, &mut regs), 0);
            regs
        }
    }

    fn set_registers(&self, regs: &libc::user_regs_struct) {
        // SAFETY: the request reads the structure.
        assert_eq!(unsafe { libc::ptrace(libc::PTRACE_SETREGS, self.0, 0, regs) }, 0);
    }

    /// Runs to an address; whether it gets there before the call that would be stopped at.
    fn run_to(&self, at: u64) -> bool {
        self.break_at(0, at);
        self.break_at(1, buffer::traced_return() - 2);
        // SAFETY: requests about our own child.
        unsafe {
            let enable = 0b101usize;
            assert_eq!(libc::ptrace(libc::PTRACE_POKEUSER, self.0, DEBUG + 7 * 8, enable), 0);
            assert_eq!(libc::ptrace(libc::PTRACE_CONT, self.0, 0, 0), 0);
        }
        assert_eq!(self.wait(), libc::SIGTRAP);
        self.registers().rip == at
    }

    fn break_at(&self, register: usize, at: u64) {
        // SAFETY: as above.
        assert_eq!(unsafe { libc::ptrace(libc::PTRACE_POKEUSER, self.0, DEBUG + register * 8, at) }, 0);
    }

    fn step(&self) {
        // SAFETY: as above.
        assert_eq!(unsafe { libc::ptrace(libc::PTRACE_SINGLESTEP, self.0, 0, 0) }, 0);
        assert_eq!(self.wait(), libc::SIGTRAP);
    }

    fn read(&self, at: u64, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        let local = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: len };
        let remote = libc::iovec { iov_base: at as *mut _, iov_len: len };
        // SAFETY: `local` describes `bytes`.
        assert_eq!(unsafe { libc::process_vm_readv(self.0, &local, 1, &remote, 1, 0) }, len as isize);
        bytes
    }

    /// Ready to begin at an address.
    fn at(scene: &Scene, rip: u64) -> Self {
        let tracee = Self::start(scene);
        let [rdi, rsi, rdx, r10, r8, r9] = scene.args;
        let regs = tracee.registers();
        tracee.set_registers(&libc::user_regs_struct {
            rip,
            rax: scene.nr,
            orig_rax: u64::MAX,
            rdi,
            rsi,
            rdx,
            r10,
            r8,
            r9,
            rbx: 101,
            rbp: 102,
            r12: 103,
            r13: 104,
            r14: 105,
            r15: 106,
            rcx: 107,
            r11: 108,
            rsp: STACK,
            eflags: scene.flags,
            ..regs
        });
        tracee
    }

    /// What a program can see: registers, data, stack.
    fn state(&self) -> ([u64; 18], Vec<u8>) {
        let regs = self.registers();
        let words = [
            regs.rip,
            regs.rax,
            regs.rbx,
            regs.rcx,
            regs.rdx,
            regs.rsi,
            regs.rdi,
            regs.rbp,
            regs.rsp,
            regs.r8,
            regs.r9,
            regs.r10,
            regs.r11,
            regs.r12,
            regs.r13,
            regs.r14,
            regs.r15,
            // Without what breakpoints set.
            regs.eflags & !0x1_0000,
        ];
        (words, self.read(DATA, 0x2000))
    }
}

/// The state after the plain instruction.
fn plain(scene: &Scene) -> ([u64; 18], Vec<u8>) {
    let tracee = Tracee::at(scene, GUEST);
    assert!(tracee.run_to(GUEST + 2));
    tracee.state()
}

#[track_caller]
fn check(what: &str, scene: &Scene) {
    let (words, memory) = plain(scene);
    let same = |tracee: &Tracee, where_: &str| {
        let (mut got, bytes) = tracee.state();
        if !scene.made {
            // Stopped at, the recorder lets it seem to come from the site.
            assert_eq!(got[0], buffer::traced_return() - 2, "{what}, {where_}");
            assert_eq!(got[1], scene.nr, "{what}, {where_}");
            (got[0], got[1], got[3], got[12]) = (words[0], words[1], words[3], words[12]);
        }
        assert_eq!(got, words, "{what}, {where_}");
        if scene.steady && scene.made {
            assert_eq!(bytes, memory, "{what}, {where_}");
        }
        noted(what, scene, tracee, words[1]);
    };
    // Every instruction on the way, by stepping once.
    let stepped = Tracee::at(scene, STUBS + 16);
    let mut seen = BTreeSet::new();
    loop {
        let rip = stepped.registers().rip;
        if rip == GUEST + 2 || rip == buffer::traced_return() - 2 {
            break;
        }
        seen.insert(rip);
        stepped.step();
    }
    assert!(seen.len() > 12, "{what}");
    let unhindered = Tracee::at(scene, STUBS + 16);
    assert_eq!(unhindered.run_to(GUEST + 2), scene.made, "{what}");
    same(&unhindered, "unhindered");
    for at in seen {
        let stopped = Tracee::at(scene, STUBS + 16);
        if at != STUBS + 16 {
            assert!(stopped.run_to(at), "{what}: {at:#x} is not met");
        }
        // Where it is to come out can be told from there.
        let descriptor = match at {
            CODE => stopped.registers().r11,
            at if !(CODE..STUBS).contains(&at) => STUBS,
            _ => u64::from_le_bytes(stopped.read(SITE, 8).try_into().unwrap()),
        };
        assert_eq!(descriptor, STUBS, "{what}, at {at:#x}");
        stands(what, scene, &stopped);
        assert_eq!(stopped.run_to(GUEST + 2), scene.made, "{what}, at {at:#x}");
        same(&stopped, &format!("stopped at {at:#x}"));
    }
}

/// Checks that a task that will not go on stands at the call, with the registers that it had there, until it is noted.
fn stands(what: &str, scene: &Scene, tracee: &Tracee) {
    let regs = tracee.registers();
    let word = |at: u64| Some(u64::from_le_bytes(tracee.read(at, 8).try_into().unwrap()));
    let args = [regs.rdi, regs.rsi, regs.rdx, regs.r10, regs.r8, regs.r9];
    let libc::user_regs_struct { rax, rbx, rbp, r12, rsp, eflags, .. } = regs;
    let eflags = eflags & !0x1_0000;
    let now = Used { rax, args, rbx, rbp, r12, rsp, eflags };
    let head = u32::from_le_bytes(tracee.read(HEAD, 4).try_into().unwrap());
    let (rax, args, eflags) = (scene.nr, scene.args, scene.flags);
    let at_call = Used { rax, args, rbx: 101, rbp: 102, r12: 103, rsp: STACK, eflags };
    let expected = match (CODE..STUBS).contains(&regs.rip) {
        false => None,
        true if head != scene.head => Some(Standing::Behind),
        true => Some(Standing::AtCall(at_call)),
    };
    assert_eq!(standing(regs.rip, now, word), expected, "{what}, at {:#x}", regs.rip);
}

/// Checks what is in the ring.
fn noted(what: &str, scene: &Scene, tracee: &Tracee, result: u64) {
    let head = u32::from_le_bytes(tracee.read(HEAD, 4).try_into().unwrap());
    if !scene.made {
        assert_eq!(head, scene.head, "{what}");
        return;
    }
    let bytes = tracee.read(RING + u64::from(scene.head), (head - scene.head) as usize);
    let (call, _, len) = abi::calls::first(&bytes).unwrap();
    assert_eq!(len, bytes.len(), "{what}");
    let Call { nr, after, result: noted, args, to, wrote } = call;
    assert_eq!((u64::from(nr), after, noted as u64), (scene.nr, GUEST + 2, result), "{what}");
    let row = rows().into_iter().find(|(nr, _)| *nr == scene.nr).unwrap().1;
    assert_eq!(args[..usize::from(row.args)], scene.args[..usize::from(row.args)], "{what}");
    let expected = match row.out {
        Some((at, Size::Fixed(len))) if result as i64 >= 0 && args[usize::from(at)] != 0 => len as usize,
        Some((_, Size::Result(_, unit))) if result as i64 > 0 => result as usize * usize::from(unit),
        _ => 0,
    };
    assert_eq!(wrote.len(), expected, "{what}");
    assert!(wrote.is_empty() || wrote == tracee.read(to, expected), "{what}");
}

#[test]
fn calls_that_are_made() {
    check("getppid", &scene(GETPPID, &[]));
    check("flags", &Scene { flags: 0x202 | 0x8d5 | 0x400, ..scene(GETPPID, &[]) });
    check("far in the ring", &Scene { head: 200_000, ..scene(GETPPID, &[]) });
    check("zeroes", &scene(READ, &[102, DATA, 21]));
    check("a bad pointer", &scene(READ, &[102, 1, 21]));
    check("clock", &Scene { steady: false, ..scene(CLOCK, &[1, DATA + 8]) });
    check("no such clock", &scene(CLOCK, &[77, DATA]));
    check("time of day", &Scene { steady: false, ..scene(GETTIMEOFDAY, &[DATA, 0]) });
    check("time to nowhere", &scene(GETTIMEOFDAY, &[0, 0]));
}

/// A file is opened, by a name in memory.
fn opens(name: &str, flags: i32) -> Scene {
    let mut data = [0; 64];
    data[..name.len()].copy_from_slice(name.as_bytes());
    Scene { data, ..scene(OPENAT, &[AT_FDCWD, DATA, flags as u64, 0]) }
}

/// Whether a descriptor is known to be good for reading, and so on, once a call was made.
#[track_caller]
fn known(what: &str, scene: &Scene, fd: u64, good: u8) {
    let tracee = Tracee::at(scene, STUBS + 16);
    assert!(tracee.run_to(GUEST + 2), "{what}");
    assert_eq!(tracee.read(FDS + fd, 1), [good], "{what}");
}

#[test]
fn files_are_opened_and_closed() {
    let all = READS | ASKS | CLOSES;
    let cloexec = libc::O_CLOEXEC | libc::O_NONBLOCK;
    check("a file", &opens("/proc/self/exe", cloexec));
    check("a folder", &opens(".", libc::O_DIRECTORY));
    check("not a folder", &opens("/proc/self/exe", libc::O_DIRECTORY));
    check("nothing", &opens("/nowhere/at/all", 0));
    let first = plain(&opens("Cargo.toml", 0)).0[1];
    known("a file", &opens("Cargo.toml", 0), first, all);
    known("a file of the kernel's", &opens("/proc/self/maps", 0), first, 0);
    check("closed", &scene(CLOSE, &[108]));
    known("closed", &scene(CLOSE, &[108]), 108, 0);
    check("sent", &scene(SENDFILE, &[101, 102, 0, 9]));
    let offset = Scene { data: [0; 64], ..scene(SENDFILE, &[101, 108, DATA + 8, 9]) };
    check("sent from somewhere", &offset);
    left("to be written", opens("/dev/null", libc::O_WRONLY));
    left("a device", opens("/dev/zero", 0));
    left("not followed", opens("/proc/self/exe", libc::O_NOFOLLOW));
    left("closed, of which others need to know", scene(CLOSE, &[104]));
    left("closed, and far away", scene(CLOSE, &[1 << 20]));
    left("sent from a pipe", scene(SENDFILE, &[101, 100, 0, 9]));
    left("much to be sent", scene(SENDFILE, &[101, 108, 0, 1 << 20]));
    left("sent from where there is nothing", scene(SENDFILE, &[101, 108, 8, 9]));
}

#[test]
fn calls_that_might_wait_and_need_not() {
    check("pipe", &scene(READ, &[100, DATA + 1, 40]));
    check("part of a pipe", &scene(READ, &[100, DATA + 1, 3]));
    check("into a pipe", &scene(WRITE, &[101, DATA, 33]));
    check("into a socket where nothing is on its way", &scene(WRITE, &[109, DATA, 33]));
    check("socket", &scene(RECVFROM, &[103, DATA, 40, 0, 0, 0]));
    check("what is cut off", &scene(RECVFROM, &[103, DATA, 2, libc::MSG_PEEK as u64, 0, 0]));
    check("events", &scene(EPOLL_WAIT, &[104, DATA, 3, 1000]));
    check("no room for events", &scene(EPOLL_WAIT, &[104, DATA, 0, 1000]));
    check("no events, which are not waited for", &scene(EPOLL_WAIT, &[107, DATA, 3, 0]));
}

/// A call that the code leaves to the recorder. What the plain one does is of no account.
#[track_caller]
fn left(what: &str, scene: Scene) {
    check(what, &Scene { made: false, steady: false, ..scene });
}

#[test]
fn calls_that_are_left() {
    left("another call", scene(39, &[]));
    left("no such number", scene(600, &[]));
    left("a large number", scene(1 << 40, &[]));
    left("not at present", Scene { go: 0, ..scene(GETPPID, &[]) });
    left("no room", Scene { head: 262_000, ..scene(GETPPID, &[]) });
    left("no room for as much", Scene { head: 150_000, ..scene(READ, &[102, DATA, 120_000]) });
    left("much of a file", scene(READ, &[102, DATA, 9000]));
    left("too much", scene(READ, &[102, DATA, 140_000]));
    left("too many", scene(EPOLL_WAIT, &[104, DATA, 20_000, 0]));
    left("far too much", scene(READ, &[102, DATA, 1 << 40]));
    left("no known descriptor", scene(READ, &[105, DATA, 4]));
    left("a descriptor that is not good for that", scene(WRITE, &[102, DATA, 4]));
    left("a descriptor beyond", scene(READ, &[5000, DATA, 4]));
    left("more than was said", scene(GETTIMEOFDAY, &[DATA, DATA + 16]));
    left("an address", scene(RECVFROM, &[103, DATA, 4, 0, DATA + 16, 0]));
    left("its length", scene(RECVFROM, &[103, DATA, 4, 0, 0, DATA + 16]));
    left("a long write", scene(WRITE, &[101, DATA, 5000]));
}

#[test]
fn calls_that_would_wait() {
    let empty = |scene: Scene| Scene { full: false, ..scene };
    let waits = |scene: &Scene| {
        let tracee = Tracee::at(scene, STUBS + 16);
        assert!(!tracee.run_to(GUEST + 2), "it is left to the recorder");
        let (words, _) = tracee.state();
        assert_eq!(words[1], scene.nr);
        let args = [words[6], words[5], words[4], words[11], words[9], words[10]];
        assert_eq!((args, words[8], words[17]), (scene.args, STACK, scene.flags));
        assert_eq!([words[2], words[7], words[13]], [101, 102, 103]);
        noted("it would wait", &Scene { made: false, ..scene.clone() }, &tracee, 0);
    };
    waits(&empty(scene(READ, &[100, DATA, 40])));
    waits(&scene(WRITE, &[110, DATA, 40]));
    waits(&scene(RECVFROM, &[106, DATA, 40, 0, 0, 0]));
    waits(&scene(EPOLL_WAIT, &[107, DATA, 3, 1000]));
}
