//! Oracle: a call made by the code leaves every register, the flags and memory as the plain instruction does; also where its task is
//! stopped at any instruction on the way and then let go on.
#![expect(clippy::unwrap_used, reason = "a test says what failed")]
#![expect(unsafe_code, reason = "a traced process with memory at fixed addresses")]

extern crate backstory_buffer as buffer;

mod mappings;
mod readings;

use std::collections::BTreeSet;
use std::{mem, ptr};

use abi::SiteDescriptor;
use abi::buffer::{
    ALONE, AREAS, ASKS, CALLING, CLOSES, CODE, FAULTED, FDS, FIXED, FIXED_LEN, Form, GO, HEAD, IN_VAIN,
    LISTS, READS, RING, ROWS, Row, SITE, STATE, STUBS, Size, TRIED, WHILE_EMPTY, WRITES, WRITTEN_LEN,
    by_request, list_entry, list_head,
};
use abi::calls::{Call, Noted};
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
const OPEN: u64 = 2;
const POLL: u64 = 7;
const PPOLL: u64 = 271;
const READV: u64 = 19;
const WRITEV: u64 = 20;
const SENDMSG: u64 = 46;
const RECVMSG: u64 = 47;
const SCHED_YIELD: u64 = 24;
const EPOLL_PWAIT: u64 = 281;
const EPOLL_PWAIT2: u64 = 441;
const IOCTL: u64 = 16;
const FCNTL: u64 = 72;
const MADVISE: u64 = 28;
const FUTEX: u64 = 202;
const FIONREAD: u64 = 0x541b;
const TCGETS: u64 = 0x5401;
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
    map(mappings::OWN, mappings::OWN_LEN, libc::PROT_READ | libc::PROT_WRITE);
    put(mappings::OWN, b"of the program's own");
    put(AREAS, &mappings::areas());
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
    let mut list = LISTS + 64;
    for (nr, third, mask, requests) in requests() {
        put(ROWS + nr * 8, &by_request(list, third).to_le_bytes());
        let entries = requests.into_iter().map(|(request, row)| list_entry(request, row));
        for words in [list_head(mask)].into_iter().chain(entries).chain([[0; 2]]) {
            words.into_iter().zip([list, list + 8]).for_each(|(word, at)| put(at, &word.to_le_bytes()));
            list += 16;
        }
    }
    put(GO, &scene.go.to_le_bytes());
    put(ALONE, &scene.alone.to_le_bytes());
    put(HEAD, &scene.head.to_le_bytes());
    // SAFETY: plain calls; `dup2` gives the descriptors fixed numbers, and no other test's are there.
    unsafe {
        libc::close_range(3, u32::MAX, 0);
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
        (OPEN, row(0, 3, None, [None; 2], Form::OpenAs)),
        (POLL, row(0, 3, Some((0, Size::Several)), [None; 2], Form::Poll)),
        (PPOLL, row(0, 5, Some((0, Size::Several)), [Some(2), Some(3)], Form::Poll)),
        (READV, row(READS, 3, Some((1, Size::Several)), [None; 2], Form::Vectors)),
        (WRITEV, row(WRITES, 3, None, [None; 2], Form::Vectors)),
        (RECVMSG, row(READS, 3, Some((1, Size::Several)), [None; 2], Form::Message)),
        (SENDMSG, row(WRITES, 3, None, [None; 2], Form::Message)),
        (mappings::MMAP, row(0, 6, None, [None; 2], Form::Fresh)),
        (mappings::MPROTECT, row(0, 3, None, [None; 2], Form::Range)),
        (mappings::MUNMAP, row(0, 2, None, [None; 2], Form::Range)),
        (SCHED_YIELD, row(0, 0, None, [None; 2], Form::Alone)),
        (EPOLL_PWAIT, row(ASKS, 6, Some((1, Size::Result(2, 12))), [Some(4), None], Form::NoTime)),
        (EPOLL_PWAIT2, row(ASKS, 6, Some((1, Size::Result(2, 12))), [Some(3), Some(4)], Form::NoTimeAt)),
    ]
}

/// A call whose request is an argument: whether the third one, under which mask, and the requests.
type ByRequest = (u64, bool, u32, Vec<(u32, Row)>);

fn requests() -> Vec<ByRequest> {
    let row = |needs, args, out, zero, form| Row { needs, args, out, zero, form };
    let plain = |needs, args| row(needs, args, None, [None; 2], Form::Plain);
    let ioctl = |len| row(ASKS, 3, Some((2, Size::Fixed(len))), [None; 2], Form::Plain);
    let range = row(0, 3, None, [None; 2], Form::Range);
    let wait = |args| row(0, args, None, [Some(3), None], Form::Compare);
    vec![
        (IOCTL, false, u32::MAX, vec![(TCGETS as u32, ioctl(36)), (FIONREAD as u32, ioctl(4))]),
        (
            FCNTL,
            false,
            u32::MAX,
            vec![(libc::F_GETFD as u32, plain(ASKS, 2)), (libc::F_SETLK as u32, plain(READS, 3))],
        ),
        (
            MADVISE,
            true,
            u32::MAX,
            vec![(0, plain(0, 3)), (3, plain(0, 3)), (4, range), (8, range), (10, range)],
        ),
        (FUTEX, false, 0x7f, vec![(1, plain(0, 3)), (0, wait(4)), (9, wait(6))]),
    ]
}

/// The row by which a call is made.
fn row_of(nr: u64, args: &[u64; 6]) -> Row {
    let by_request = requests().into_iter().find(|(of, ..)| *of == nr).map(|(_, third, mask, all)| {
        let request = args[if third { 2 } else { 1 }] as u32 & mask;
        all.into_iter().find(|(value, _)| *value == request).unwrap().1
    });
    by_request.unwrap_or_else(|| rows().into_iter().find(|(of, _)| *of == nr).unwrap().1)
}

/// A call in some circumstances.
#[derive(Clone, Default)]
struct Scene {
    nr: u64,
    args: [u64; 6],
    flags: u64,
    go: u32,
    head: u32,
    alone: u32,
    /// Whether there is something in the pipe.
    full: bool,
    data: Vec<u8>,
    /// Whether the code makes it itself.
    made: bool,
    /// Whether what it writes is the same each time.
    steady: bool,
    /// Whether the code makes it, and has it stopped at as it failed of its results' memory.
    faults: bool,
    /// What is mapped in the end where mappings change, as the kernel lists it.
    mapped: Option<Vec<String>>,
    /// Whether the code tries it, and finds that it would wait.
    in_vain: bool,
}

/// A call that is made, of which nothing is special.
fn scene(nr: u64, args: &[u64]) -> Scene {
    let mut all = [0x11, 0x22, 0x33, 0x44, 0x55, 0x66];
    all[..args.len()].copy_from_slice(args);
    let (flags, data) = (0x202, vec![b'x'; 64]);
    let scene =
        Scene { nr, args: all, flags, go: 1, head: 0, alone: 1, full: true, data, ..Scene::default() };
    Scene { made: true, steady: true, ..scene }
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
            let enable = 0b1_0101usize;
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

    fn write(&self, at: u64, bytes: &[u8]) {
        let local = libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
        let remote = libc::iovec { iov_base: at as *mut _, iov_len: bytes.len() };
        // SAFETY: `local` describes `bytes`, which are only read.
        let wrote = unsafe { libc::process_vm_writev(self.0, &local, 1, &remote, 1, 0) };
        assert_eq!(wrote, bytes.len() as isize);
    }

    fn read(&self, at: u64, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        let local = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: len };
        let remote = libc::iovec { iov_base: at as *mut _, iov_len: len };
        // SAFETY: `local` describes `bytes`.
        assert_eq!(unsafe { libc::process_vm_readv(self.0, &local, 1, &remote, 1, 0) }, len as isize);
        bytes
    }

    /// A byte, where one can be read.
    fn peek(&self, at: u64) -> Option<u8> {
        let mut byte = 0;
        let local = libc::iovec { iov_base: (&raw mut byte).cast(), iov_len: 1 };
        let remote = libc::iovec { iov_base: at as *mut _, iov_len: 1 };
        // SAFETY: `local` describes `byte`.
        (unsafe { libc::process_vm_readv(self.0, &local, 1, &remote, 1, 0) } == 1).then_some(byte)
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
    at_every_instruction(what, scene, plain(scene));
}

/// Checks what comes of a scene, wherever its task is stopped on the way.
#[track_caller]
fn at_every_instruction(what: &str, scene: &Scene, (words, memory): ([u64; 18], Vec<u8>)) {
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
        mappings::as_expected(what, scene, tracee);
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
    let now = Used { rax, args, rbx, rbp, r12, rsp, eflags, ..Used::default() };
    let head = u32::from_le_bytes(tracee.read(HEAD, 4).try_into().unwrap());
    let (rax, args, eflags) = (scene.nr, scene.args, scene.flags);
    let at_call = Used { rax, args, rbx: 101, rbp: 102, r12: 103, rsp: STACK, eflags, ..Used::default() };
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
    assert_eq!(tracee.read(CALLING, 4), [0; 4], "{what}");
    if !scene.made {
        assert_eq!(head, scene.head, "{what}");
        assert_eq!(tracee.read(FAULTED, 4), [u8::from(scene.faults), 0, 0, 0], "{what}");
        assert_eq!(tracee.read(IN_VAIN, 4), [u8::from(scene.in_vain), 0, 0, 0], "{what}");
        return;
    }
    let bytes = tracee.read(RING + u64::from(scene.head), (head - scene.head) as usize);
    let (Noted::Call(call), len) = abi::calls::first(&bytes).unwrap() else { panic!("{what}") };
    assert_eq!(len, bytes.len(), "{what}");
    let Call { nr, after, result: noted, args, wrote } = call;
    assert_eq!((u64::from(nr), after, noted as u64), (scene.nr, GUEST + 2, result), "{what}");
    let row = row_of(scene.nr, &scene.args);
    assert_eq!(args[..usize::from(row.args)], scene.args[..usize::from(row.args)], "{what}");
    let len: usize = wrote.map(|piece| piece.bytes.len()).sum();
    let expected = match row.out {
        Some((at, Size::Fixed(len))) if result as i64 >= 0 && args[usize::from(at)] != 0 => len as usize,
        Some((_, Size::Result(_, unit))) if result as i64 > 0 => result as usize * usize::from(unit),
        Some((_, Size::Several)) if result as i64 >= 0 => len,
        _ => 0,
    };
    assert_eq!(len, expected, "{what}");
    // Nothing else in memory is another than before.
    let mut memory = scene.data.clone();
    memory.resize(0x2000, 0);
    for piece in wrote {
        memory[(piece.to - DATA) as usize..][..piece.bytes.len()].copy_from_slice(piece.bytes);
    }
    assert!(memory == tracee.read(DATA, 0x2000), "{what}");
}

#[test]
fn calls_that_are_made() {
    check("getppid", &scene(GETPPID, &[]));
    check("flags", &Scene { flags: 0x202 | 0x8d5 | 0x400, ..scene(GETPPID, &[]) });
    check("far in the ring", &Scene { head: 200_000, ..scene(GETPPID, &[]) });
    check("zeroes", &scene(READ, &[102, DATA, 21]));
    let faults = Scene { made: false, faults: true, ..scene(READ, &[102, 1, 21]) };
    check("a bad pointer", &faults);
    check("clock", &Scene { steady: false, ..scene(CLOCK, &[1, DATA + 8]) });
    check("no such clock", &scene(CLOCK, &[77, DATA]));
    check("time of day", &Scene { steady: false, ..scene(GETTIMEOFDAY, &[DATA, 0]) });
    check("time to nowhere", &scene(GETTIMEOFDAY, &[0, 0]));
}

/// Words, then bytes, then zeroes.
fn words(words: &[u64], bytes: &[u8]) -> Vec<u8> {
    let mut all: Vec<u8> =
        words.iter().flat_map(|word| word.to_le_bytes()).chain(bytes.iter().copied()).collect();
    all.resize(all.len() + 64, 0);
    all
}

/// A file is opened, by a name in memory.
fn opens(name: &str, flags: i32) -> Scene {
    let data = words(&[], name.as_bytes());
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
    let offset = Scene { data: vec![0; 64], ..scene(SENDFILE, &[101, 108, DATA + 8, 9]) };
    check("sent from somewhere", &offset);
    let as_open = |scene: Scene| Scene { nr: OPEN, args: [DATA, scene.args[2], 0, 4, 5, 6], ..scene };
    check("a file, in another way", &as_open(opens("/proc/self/exe", cloexec)));
    check("nothing, in another way", &as_open(opens("/nowhere/at/all", 0)));
    known("a file, in another way", &as_open(opens("Cargo.toml", 0)), first, all);
    left("to be written, in another way", as_open(opens("/dev/null", libc::O_RDWR)));
    left("a device, in another way", as_open(opens("/dev/zero", 0)));
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
    check("events, with a mask of no signals", &scene(EPOLL_PWAIT, &[104, DATA, 3, 1000, 0, 8]));
    check("events, for ever", &scene(EPOLL_PWAIT2, &[104, DATA, 3, 0, 0, 8]));
}

#[test]
fn requests_have_rows_of_their_own() {
    check("what can be read", &scene(IOCTL, &[108, FIONREAD, DATA + 4]));
    check("no terminal", &scene(IOCTL, &[108, TCGETS, DATA]));
    check("only half of it counts", &scene(IOCTL, &[108, 7 << 32 | FIONREAD, DATA]));
    check("a flag", &scene(FCNTL, &[104, libc::F_GETFD as u64]));
    check("a lock", &Scene { data: words(&[0], &[]), ..scene(FCNTL, &[108, libc::F_SETLK as u64, DATA]) });
    check("advice", &scene(MADVISE, &[DATA, 4096, 3]));
    check("useless advice", &scene(MADVISE, &[DATA + 1, 4096, 0]));
    check("nobody to wake", &scene(FUTEX, &[DATA, 0x81, 7]));
    check("nothing to wait for", &scene(FUTEX, &[DATA, 0x80, 3, 0]));
    check("nothing to wait for, of all processes", &scene(FUTEX, &[DATA, 0, 3, 0]));
    check("nobody to wake where there is nothing", &scene(FUTEX, &[1 << 12, 1, 3]));
    check("nothing to wait for by any clock", &scene(FUTEX, &[DATA, 0x189, 3, 0, 77, 1]));
    left("no bits to wait for", scene(FUTEX, &[DATA, 0x89, 3, 0, 77, 0]));
    left("a clock for no time", scene(FUTEX, &[DATA, 0x180, 3, 0]));
    left("an operation that is not there", scene(FUTEX, &[DATA, 0x880, 3, 0]));
    left("a word that is not there", scene(FUTEX, &[1 << 12, 0x80, 3, 0]));
    left("another request", scene(IOCTL, &[108, 0x5421, DATA]));
    left("a request to an unknown file", scene(IOCTL, &[105, FIONREAD, DATA]));
    left("a lock of another kind of file", scene(FCNTL, &[104, libc::F_SETLK as u64, DATA]));
    left("other advice", scene(MADVISE, &[DATA, 4096, 9]));
    left("another operation", scene(FUTEX, &[DATA, 0x85, 7]));
    left("not for ever", scene(FUTEX, &[DATA, 0x80, 3, DATA + 16]));
}

#[test]
fn a_task_that_is_alone_need_not_give_way() {
    check("nobody waits", &scene(SCHED_YIELD, &[]));
    left("somebody waits", Scene { alone: 0, ..scene(SCHED_YIELD, &[]) });
}

/// An entry for `poll`.
fn entry(fd: u32, events: i16, revents: u16) -> u64 {
    u64::from(fd) | u64::from(events as u16) << 32 | u64::from(revents) << 48
}

/// `poll` of such entries, at an offset in the data.
fn polls(at: usize, entries: &[u64], timeout: u64) -> Scene {
    let mut data = vec![b'x'; at];
    data.extend(words(entries, &[]));
    Scene { data, ..scene(POLL, &[DATA + at as u64, entries.len() as u64, timeout]) }
}

/// The same by `ppoll`.
fn ppolls(scene: Scene) -> Scene {
    let [at, count, ..] = scene.args;
    Scene { nr: PPOLL, args: [at, count, 0, 0, 8, 6], ..scene }
}

#[test]
fn descriptors_are_polled() {
    let (both, into, none) = (libc::POLLIN | libc::POLLOUT, libc::POLLIN, 0xffff);
    let ready = [entry(100, both, none), entry(101, both, none), entry(5000, both, 0), entry(110, into, 9)];
    check("one is ready", &polls(0, &ready[..1], 1000));
    check("some are ready", &polls(3, &ready, u64::MAX));
    check("over two pages", &polls(4096 - 12, &ready, 1000));
    check("as many as can be", &polls(0, &[ready[0]; 32], 1000));
    check("ready, with a mask of no signals", &ppolls(polls(0, &ready, 0)));
    check("none is ready, which is not waited for", &polls(0, &[entry(107, into, none); 3], 0));
    left("more than can be", polls(0, &[ready[0]; 33], 1000));
    left("none at all", polls(0, &[], 0));
    left("entries that are not there", scene(POLL, &[1 << 12, 2, 0]));
    left("entries of which one is not there", scene(POLL, &[GUEST + 0x3000 - 8, 2, 0]));
    left("not for ever", Scene { args: [DATA, 4, DATA + 40, 0, 8, 6], ..ppolls(polls(0, &ready, 0)) });
    left("with a mask", Scene { args: [DATA, 4, 0, DATA + 40, 8, 6], ..ppolls(polls(0, &ready, 0)) });
}

/// Bytes from or to several places.
fn vectors(nr: u64, fd: u64, at: usize, vectors: &[(u64, u64)]) -> Scene {
    let mut data = vec![b'x'; at];
    let all: Vec<u64> = vectors.iter().flat_map(|(to, len)| [*to, *len]).collect();
    data.extend(words(&all, b"and what is written"));
    Scene { data, ..scene(nr, &[fd, DATA + at as u64, vectors.len() as u64]) }
}

#[test]
fn bytes_come_from_and_go_to_several_places() {
    let (one, two, three) = ((DATA + 0x500, 5), (DATA + 0x600, 0), (DATA + 0x703, 13));
    check("zeroes", &vectors(READV, 102, 0, &[one, two, three]));
    check("from a pipe", &vectors(READV, 100, 0, &[one, two, three]));
    check("from a pipe into one", &vectors(READV, 100, 0, &[(DATA + 0x500, 100), three]));
    check("from a socket", &vectors(READV, 103, 0, &[(DATA + 0x501, 3), one]));
    check("over two pages", &vectors(READV, 102, 4096 - 24, &[one, three]));
    check("over what says where", &vectors(READV, 102, 0, &[(DATA, 20), (DATA + 24, 30)]));
    check("into as many as can be", &vectors(READV, 102, 0, &[(DATA + 0x601, 3); 16]));
    check("partly to nowhere", &vectors(READV, 102, 0, &[one, (1, 7)]));
    check("into a pipe", &vectors(WRITEV, 101, 0, &[(DATA + 64, 9), two, three]));
    check("into a socket", &vectors(WRITEV, 109, 0, &[(DATA + 64, 9), three]));
    left("into none", vectors(READV, 102, 0, &[]));
    left("into more than can be", vectors(READV, 102, 0, &[one; 17]));
    left("much", vectors(READV, 102, 0, &[(DATA, 4100), (DATA, 4100)]));
    left("far too much", vectors(READV, 102, 0, &[(DATA, 1), (DATA, u64::MAX)]));
    left("much at once", vectors(WRITEV, 101, 0, &[(DATA, 4000), (DATA, 97)]));
    left("no room for it", Scene { head: 255_000, ..vectors(READV, 102, 0, &[(DATA, 4000), (DATA, 4000)]) });
    left("from where nothing says", scene(READV, &[102, 1 << 12, 2]));
    left("from where nothing says all", scene(READV, &[102, GUEST + 0x3000 - 16, 2]));
}

/// A message, its head at the start of the data and its vector behind it.
fn message(nr: u64, fd: u64, flags: i32, change: impl Fn(&mut [u64; 11])) -> Scene {
    let mut head = [0, 0, DATA + 56, 2, 0, 0, 0x77, DATA + 0x500, 4, DATA + 0x600, 30];
    change(&mut head);
    Scene { data: words(&head, b"what is sent"), ..scene(nr, &[fd, DATA, flags as u64]) }
}

#[test]
fn messages_come_and_go() {
    check("a message", &message(RECVMSG, 103, 0, |_| {}));
    check("a message that stays", &message(RECVMSG, 103, libc::MSG_PEEK, |_| {}));
    check("no socket", &message(RECVMSG, 102, 0, |_| {}));
    check("a long address of none", &message(RECVMSG, 103, 0, |head| head[1] = 20));
    check("sent", &message(SENDMSG, 109, 0, |head| head[7] = DATA + 88));
    left("all of it", message(RECVMSG, 103, libc::MSG_WAITALL, |head| head[10] = 2));
    left("all of it, in one place", scene(RECVFROM, &[103, DATA, 6, libc::MSG_WAITALL as u64, 0, 0]));
    left("an address", message(RECVMSG, 103, 0, |head| head[0] = DATA + 0x700));
    left("control data", message(RECVMSG, 103, 0, |head| head[4] = DATA + 0x700));
    left("a length of control data", message(RECVMSG, 103, 0, |head| head[5] = 8));
    left("many places", message(RECVMSG, 103, 0, |head| head[3] = 17));
    left("no place", message(RECVMSG, 103, 0, |head| head[3] = 0));
    left("a place that is not there", message(RECVMSG, 103, 0, |head| head[2] = 1 << 12));
    left("a message that is not there", scene(RECVMSG, &[103, 1 << 12, 0]));
    left("a long message", message(SENDMSG, 109, 0, |head| (head[7], head[8]) = (DATA, 5000)));
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
    left("a mask", scene(EPOLL_PWAIT, &[104, DATA, 3, 1000, DATA + 16, 8]));
    left("a long write", scene(WRITE, &[101, DATA, 5000]));
}

#[test]
fn calls_that_would_wait() {
    let empty = |scene: Scene| Scene { full: false, ..scene };
    let waits = |scene: &Scene| {
        let in_vain = scene.nr != FUTEX;
        let scene = Scene { made: false, steady: false, in_vain, ..scene.clone() };
        let [rdi, rsi, rdx, r10, r8, r9] = scene.args;
        let rest = [101, 0, rdx, rsi, rdi, 102, STACK, r8, r9, r10, 0, 103, 104, 105, 106, scene.flags];
        let mut words = [GUEST + 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        words[2..].copy_from_slice(&rest);
        at_every_instruction("it would wait", &scene, (words, Vec::new()));
        // Nor is anything in memory another than before.
        let tracee = Tracee::at(&scene, STUBS + 16);
        assert!(!tracee.run_to(GUEST + 2), "it is left to the recorder");
        let memory = tracee.read(DATA, 0x2000);
        assert!(memory.starts_with(&scene.data) && memory[scene.data.len()..].iter().all(|byte| *byte == 0));
    };
    waits(&empty(scene(READ, &[100, DATA, 40])));
    waits(&scene(WRITE, &[110, DATA, 40]));
    waits(&scene(RECVFROM, &[106, DATA, 40, 0, 0, 0]));
    waits(&scene(EPOLL_WAIT, &[107, DATA, 3, 1000]));
    waits(&scene(EPOLL_PWAIT, &[107, DATA, 3, 1000, 0, 8]));
    waits(&scene(EPOLL_PWAIT2, &[107, DATA, 3, 0, 0, 8]));
    waits(&scene(FUTEX, &[DATA, 0x80, 0x7878_7878, 0]));
    waits(&scene(FUTEX, &[DATA + 4, 0x109, 0x7878_7878, 0, 77, u64::MAX]));
    waits(&polls(0, &[entry(107, libc::POLLIN, 0x7777); 3], 1000));
    waits(&ppolls(polls(4090, &[entry(107, libc::POLLIN, 0x7777); 3], 0)));
    waits(&empty(vectors(READV, 100, 0, &[(DATA + 0x500, 9), (DATA + 0x600, 9)])));
    waits(&vectors(WRITEV, 110, 0, &[(DATA + 64, 9), (DATA, 9)]));
    waits(&message(RECVMSG, 106, 0, |_| {}));
    waits(&message(SENDMSG, 110, 0, |_| {}));
}
