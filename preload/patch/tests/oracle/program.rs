//! Whole programs, patched at the first hit of each site: they write and return what they write and return unpatched.
#![expect(unsafe_code, reason = "ptrace, for tests only")]

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use patch::{CodeAddr, Examined, Facts, MAX_STUB, Method, Site, Text};

use crate::native::{SCRATCH, common_entry};
use crate::scene::{COMMON, low};

/// Length of what is mapped from the common entry on: slots and stubs.
const LOW_LEN: u64 = 0x10_0000;
const STUBS: u64 = COMMON + 0x1000;
/// A slot and a stub.
const STRIDE: u64 = 8 + MAX_STUB as u64;

/// An executable mapping: its content, and what was patched there.
struct Mapping {
    text: Text,
    taken: Vec<Range<CodeAddr>>,
}

/// A traced program.
struct Tracee {
    child: Child,
    memory: File,
    mappings: BTreeMap<(u64, String), Mapping>,
    /// Methods, the first choice first.
    order: [Method; 3],
    /// Sites that were asked about.
    sites: BTreeMap<u64, Option<Method>>,
    /// Which method a stub is for.
    stubs: BTreeMap<u64, Method>,
    /// Calls that stubs made, by method.
    calls: [usize; 3],
}

impl Tracee {
    fn start(command: &mut Command, order: [Method; 3]) -> Self {
        let trace_me = || {
            // SAFETY: a plain system call.
            unsafe { libc::ptrace(libc::PTRACE_TRACEME, 0, 0, 0) };
            Ok(())
        };
        // SAFETY: only makes a system call.
        unsafe { command.pre_exec(trace_me) };
        let child = command.spawn().unwrap();
        let memory =
            OpenOptions::new().read(true).write(true).open(format!("/proc/{}/mem", child.id())).unwrap();
        let (mappings, sites, stubs) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
        let mut tracee = Self { child, memory, mappings, order, sites, stubs, calls: [0; 3] };
        assert_eq!(tracee.wait(), libc::SIGTRAP << 8 | 0x7F);
        let options = libc::PTRACE_O_EXITKILL | libc::PTRACE_O_TRACESYSGOOD;
        tracee.ptrace(libc::PTRACE_SETOPTIONS, options as *mut libc::c_void);
        tracee.map_low_region();
        tracee
    }

    fn ptrace(&self, request: libc::c_uint, data: *mut libc::c_void) {
        // SAFETY: the child is ours and stopped; `data` is what the request wants.
        let got = unsafe {
            libc::ptrace(request, self.child.id() as i32, std::ptr::null_mut::<libc::c_void>(), data)
        };
        assert_eq!(got, 0, "ptrace {request}: {}", std::io::Error::last_os_error());
    }

    fn registers(&self) -> libc::user_regs_struct {
        // SAFETY: all zeroes is a valid value.
        let mut registers: libc::user_regs_struct = unsafe { std::mem::zeroed() };
        self.ptrace(libc::PTRACE_GETREGS, (&raw mut registers).cast());
        registers
    }

    fn set_registers(&self, registers: &libc::user_regs_struct) {
        self.ptrace(libc::PTRACE_SETREGS, std::ptr::from_ref(registers).cast_mut().cast());
    }

    fn wait(&mut self) -> i32 {
        let mut status = 0;
        // SAFETY: waits for our own child.
        let got = unsafe { libc::waitpid(self.child.id() as i32, &mut status, libc::__WALL) };
        assert_eq!(got, self.child.id() as i32);
        status
    }

    /// Lets the program make a call: `mmap`.
    fn map_low_region(&mut self) {
        let before = self.registers();
        let mut code = [0; 2];
        self.memory.read_exact_at(&mut code, before.rip).unwrap();
        self.memory.write_all_at(&[0x0F, 0x05], before.rip).unwrap();
        let mut call = before;
        call.rax = libc::SYS_mmap as u64;
        (call.rdi, call.rsi, call.rdx) = (COMMON, LOW_LEN, 7);
        call.r10 = (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE) as u64;
        (call.r8, call.r9) = (u64::MAX, 0);
        self.set_registers(&call);
        self.ptrace(libc::PTRACE_SINGLESTEP as _, std::ptr::null_mut());
        self.wait();
        assert_eq!(self.registers().rax, COMMON);
        self.memory.write_all_at(&code, before.rip).unwrap();
        self.set_registers(&before);
        self.memory.write_all_at(&common_entry(), COMMON).unwrap();
    }

    /// Runs to the end. Returns the exit status.
    fn run(&mut self) -> i32 {
        let mut signal = 0;
        loop {
            self.ptrace(libc::PTRACE_SYSCALL, signal as *mut libc::c_void);
            let status = self.wait();
            if !libc::WIFSTOPPED(status) {
                return status;
            }
            signal = match libc::WSTOPSIG(status) {
                stop if stop == libc::SIGTRAP | 0x80 => {
                    self.call();
                    0
                }
                signal => {
                    self.leave_common();
                    signal as usize
                }
            };
        }
    }

    /// Steps on until a signal's handler may make calls. (The common entry of these tests keeps its things in one place.)
    fn leave_common(&mut self) {
        while (COMMON..STUBS).contains(&self.registers().rip) {
            self.ptrace(libc::PTRACE_SINGLESTEP as _, std::ptr::null_mut());
            let status = self.wait();
            assert!(libc::WIFSTOPPED(status) && libc::WSTOPSIG(status) == libc::SIGTRAP, "{status:#x}");
        }
    }

    /// At the entry of a call.
    fn call(&mut self) {
        let registers = self.registers();
        let at = registers.rip - 2;
        if (COMMON..COMMON + LOW_LEN).contains(&at) {
            let mut stub = [0; 8];
            self.memory.read_exact_at(&mut stub, SCRATCH).unwrap();
            self.calls[self.stubs[&u64::from_le_bytes(stub)] as usize] += 1;
        } else if !self.sites.contains_key(&at) && !is_refused(registers.orig_rax as i64) {
            let resume = self.patch(at);
            let mut skipped = registers;
            if resume.is_some() {
                skipped.orig_rax = u64::MAX;
                self.set_registers(&skipped);
            }
            self.leave_call();
            if let Some(resume) = resume {
                skipped.rip = resume;
                skipped.rax = registers.orig_rax;
                self.set_registers(&skipped);
            }
            return;
        }
        if !matches!(registers.orig_rax as i64, libc::SYS_exit | libc::SYS_exit_group) {
            self.leave_call();
        }
    }

    fn leave_call(&mut self) {
        self.ptrace(libc::PTRACE_SYSCALL, std::ptr::null_mut());
        let status = self.wait();
        assert!(libc::WIFSTOPPED(status) && libc::WSTOPSIG(status) == libc::SIGTRAP | 0x80, "{status:#x}");
    }

    /// Patches a site. Returns where to go on.
    fn patch(&mut self, at: u64) -> Option<u64> {
        let (range, name) = self.mapping(at);
        let memory = &self.memory;
        let mapping = self.mappings.entry((range.start, name)).or_insert_with(|| {
            let mut bytes = vec![0; (range.end - range.start) as usize];
            memory.read_exact_at(&mut bytes, range.start).unwrap();
            Mapping { text: Text::new(bytes), taken: Vec::new() }
        });
        let slot = STUBS + STRIDE * self.sites.len() as u64;
        let (slot_addr, stub) = (low(slot), low(slot + 8));
        let site = Site {
            base: CodeAddr(range.start),
            at: CodeAddr(at),
            slot: slot_addr,
            stub,
            common: low(COMMON),
            noted: low(COMMON + 0x80),
        };
        let facts = Facts { taken: &mapping.taken, ..Facts::default() };
        let examined = Examined::new(&mapping.text, site, facts).ok();
        let plan =
            examined.and_then(|examined| self.order.iter().find_map(|&method| examined.by(method).ok()));
        self.sites.insert(at, plan.as_ref().map(|plan| plan.method));
        let plan = plan?;
        self.stubs.insert(plan.stub.at.get(), plan.method);
        memory.write_all_at(&plan.stub.entry.get().to_le_bytes(), slot).unwrap();
        memory.write_all_at(&plan.stub.bytes, plan.stub.at.get()).unwrap();
        for write in &plan.writes {
            let mut old = vec![0; write.old.len()];
            memory.read_exact_at(&mut old, write.at.0).unwrap();
            assert_eq!(old, write.old);
            memory.write_all_at(&write.new, write.at.0).unwrap();
        }
        mapping.taken.extend(plan.occupied);
        Some(plan.map.redirect(CodeAddr(at)).unwrap())
    }

    /// The mapping that holds an address.
    fn mapping(&self, at: u64) -> (Range<u64>, String) {
        let maps = fs::read_to_string(format!("/proc/{}/maps", self.child.id())).unwrap();
        let parse = |line: &str| {
            let mut fields = line.split_whitespace();
            let (start, end) = fields.next().unwrap().split_once('-').unwrap();
            let number = |text| u64::from_str_radix(text, 16).unwrap();
            (number(start)..number(end), fields.nth(4).unwrap_or_default().to_owned())
        };
        maps.lines().map(parse).find(|(range, _)| range.contains(&at)).unwrap()
    }
}

/// What makes no sense to patch, or must return where it was made.
fn is_refused(number: i64) -> bool {
    [
        libc::SYS_exit,
        libc::SYS_exit_group,
        libc::SYS_execve,
        libc::SYS_rt_sigreturn,
        libc::SYS_clone,
        libc::SYS_clone3,
        libc::SYS_fork,
        libc::SYS_vfork,
    ]
    .contains(&number)
}

/// Runs a program plain, and patched with each method as the first choice.
#[track_caller]
fn check(program: &Path, args: &[&str]) {
    use Method::{Backward, Forward, Island};
    let scratch = tempfile::tempdir().unwrap();
    let command = |name: &str| {
        let mut command = Command::new(program);
        command.args(args).env_clear().env("LC_ALL", "C").env("PATH", "/usr/bin:/bin").current_dir("/");
        let file = |name| File::create(scratch.path().join(name)).unwrap();
        command.stdin(Stdio::null()).stdout(file(name)).stderr(file("errors"));
        command
    };
    let read = |name| fs::read(scratch.path().join(name)).unwrap();
    let plain = command("plain").status().unwrap();
    let errors = read("errors");
    for order in [Method::ALL, [Forward, Backward, Island], [Backward, Forward, Island]] {
        let mut tracee = Tracee::start(&mut command("patched"), order);
        let patched = tracee.run();
        let status = libc::WIFEXITED(patched).then(|| libc::WEXITSTATUS(patched));
        assert_eq!(plain.code(), status, "{program:?} {order:?}: {patched:#x}");
        assert!(read("plain") == read("patched"), "{program:?} {args:?} {order:?}: outputs differ");
        assert!(errors == read("errors"), "{program:?} {args:?} {order:?}: errors differ");
        let sites = tracee.sites.len();
        let by = |method| tracee.sites.values().filter(|&&site| site == Some(method)).count();
        let [island, forward, backward] = Method::ALL.map(by);
        let name = program.file_name().unwrap().display();
        println!(
            "{name}, {:?} first: {:?} calls through {:?} of {sites} sites (by {:?})",
            order[0],
            tracee.calls,
            [island, forward, backward],
            Method::ALL
        );
        assert!(tracee.calls.iter().sum::<usize>() >= 3 && island + forward + backward + 1 >= sites);
        assert!(by(order[0]) * 2 > sites, "the first choice mostly works");
    }
}

#[test]
fn programs_run_patched() {
    let script = "import os, json, hashlib\nfor d, _, fs in os.walk('/usr/lib/python3'):\n  for f in sorted(fs)[:5]: \
                  print(d, f, hashlib.sha256(open(os.path.join(d, f), 'rb').read()).hexdigest())\n\
                  r, w = os.pipe(); os.write(w, b'x'); print(os.read(r, 1), os.getppid() > 0, os.umask(18))\n\
                  p = os.fork()\nif p == 0: os._exit(7)\nprint(os.waitpid(p, 0)[1])";
    for (program, args) in [
        ("/bin/ls", &["-lR", "/usr/include"][..]),
        ("/bin/cat", &["/etc/passwd", "/etc/nothing"]),
        ("/usr/bin/find", &["/usr/include", "/etc", "-newer", "/etc/passwd"]),
        ("/usr/bin/sha256sum", &["/usr/bin/find", "/lib/x86_64-linux-gnu/libc.so.6"]),
        ("/bin/tar", &["cf", "-", "/usr/include/linux"]),
        ("/usr/bin/sort", &["-r", "/etc/services"]),
        (
            "/bin/bash",
            &["-c", "for i in 1 2 3; do (echo $i; exit $i); echo $?; done; /bin/echo end | cat; exit 3"],
        ),
        ("/usr/bin/python3", &["-c", script]),
    ] {
        if Path::new(program).exists() {
            check(Path::new(program), args);
        } else {
            println!("skipped: no {program}");
        }
    }
    let scratch = tempfile::tempdir().unwrap();
    for binary in
        crate::binaries::built(scratch.path()).iter().filter(|binary| binary.name.starts_with("static"))
    {
        check(&scratch.path().join(binary.name.replace(' ', "-")), &[]);
    }
}
