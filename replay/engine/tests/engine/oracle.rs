//! A program run natively under `PTRACE_SINGLESTEP`, and the same program in the engine, side by side.
#![expect(unsafe_code, reason = "PTRACE_TRACEME is asked for in the forked child")]

use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use backstory_engine::{Branches, Config, Exit, MapRequest, MapSource, Mode, Space};
use guest::{GuestAddr, GuestMemory, GuestRange, Prot, Registers};
use ptrace::{HostTid, Memory, Options, Report, Stopped, wait_for};

/// A mapping of the native process.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Map {
    pub(crate) range: GuestRange,
    pub(crate) prot: Prot,
    pub(crate) name: String,
}

/// A process that is single-stepped.
pub(crate) struct Native {
    pub(crate) stopped: Option<Stopped>,
    pub(crate) tid: HostTid,
    pub(crate) memory: Memory,
    /// Instructions retired; a repeated string instruction counts once.
    pub(crate) retired: u64,
    /// Of those: `jcc`.
    pub(crate) jccs: u64,
    /// Of those: `loop`, `jrcxz` and the like.
    pub(crate) loops: u64,
}

/// Compiles C or assembly (by extension) to a static program in `dir`.
pub(crate) fn build(dir: &Path, name: &str, source: &str, flags: &[&str]) -> PathBuf {
    let file = dir.join(name);
    std::fs::write(&file, source).unwrap();
    let program = file.with_extension("");
    let status = Command::new("gcc").args(flags).arg("-o").arg(&program).arg(&file).status().unwrap();
    assert!(status.success(), "gcc failed on {name}");
    program
}

impl Native {
    #[expect(clippy::zombie_processes, reason = "it is waited for by its id")]
    pub(crate) fn start(program: &Path, args: &[&str]) -> Self {
        ptrace::pin_to_cpu(ptrace::current_cpu()).unwrap();
        let mut command = Command::new(program);
        command.args(args).env_clear().stdout(Stdio::null()).stdin(Stdio::null());
        // SAFETY: the closure makes three system calls and allocates nothing.
        unsafe {
            command.pre_exec(|| {
                libc::personality(libc::ADDR_NO_RANDOMIZE as libc::c_ulong);
                libc::prctl(libc::PR_SET_TSC, libc::PR_TSC_SIGSEGV);
                libc::ptrace(libc::PTRACE_TRACEME, 0, 0, 0);
                Ok(())
            });
        }
        let child = command.spawn().unwrap();
        let tid = HostTid(child.id() as i32);
        let stopped = stopped_by(libc::SIGTRAP, tid);
        stopped.set_options(Options::BASE).unwrap();
        let memory = Memory::open(tid).unwrap();
        Self { stopped: Some(stopped), tid, memory, retired: 0, jccs: 0, loops: 0 }
    }

    pub(crate) fn registers(&self) -> Registers {
        let mut regs = self.stopped.as_ref().unwrap().registers().unwrap();
        regs.orig_rax = 0;
        // The stepper's trap flag shows after `popf`.
        regs.eflags &= !0x100;
        regs
    }

    /// One instruction (a string instruction to its end). The signal it raised instead, if any.
    pub(crate) fn step(&mut self) -> Option<i32> {
        let before = self.registers().rip;
        let branch = self.conditional(before);
        loop {
            let stopped = self.stopped.take().unwrap();
            stopped.step(0).unwrap();
            match wait_for(self.tid, 0).unwrap().unwrap().report {
                Report::Signal(libc::SIGTRAP, stopped) => self.stopped = Some(stopped),
                Report::Signal(signal, stopped) => {
                    self.stopped = Some(stopped);
                    if signal == libc::SIGSEGV && self.answer_tsc() {
                        self.retired += 1;
                        return None;
                    }
                    return Some(signal);
                }
                Report::Exited(_) | Report::Killed(..) => return Some(-1),
                other => panic!("{other:?}"),
            }
            if self.registers().rip != before || !self.repeats(before) {
                self.retired += 1;
                match branch {
                    Branches::Uncounted => {}
                    Branches::Jcc => self.jccs += 1,
                    Branches::All => self.loops += 1,
                }
                return None;
            }
        }
    }

    /// What it takes to count the instruction at `pc`, by its opcode (Intel SDM, volume 2, appendix A).
    fn conditional(&self, pc: u64) -> Branches {
        let mut bytes = [0; 15];
        self.memory.read_forced(GuestAddr(pc), &mut bytes);
        let is_prefix = |byte: &&u8| matches!(**byte, 0x26 | 0x2e | 0x36 | 0x3e | 0x40..=0x4f | 0x64..=0x67 | 0xf0 | 0xf2 | 0xf3);
        match bytes[bytes.iter().take_while(is_prefix).count()..] {
            [0x70..=0x7f, ..] | [0x0f, 0x80..=0x8f, ..] => Branches::Jcc,
            [0xe0..=0xe3, ..] => Branches::All,
            _ => Branches::Uncounted,
        }
    }

    fn repeats(&self, pc: u64) -> bool {
        let mut bytes = [0; 4];
        self.memory.read_forced(GuestAddr(pc), &mut bytes);
        matches!(bytes[0], 0xf2 | 0xf3)
    }

    pub(crate) fn maps(&self) -> Vec<Map> {
        let text = std::fs::read_to_string(format!("/proc/{}/maps", self.tid)).unwrap();
        let parse = |line: &str| {
            let mut words = line.split_whitespace();
            let (start, end) = words.next().unwrap().split_once('-').unwrap();
            let perms = words.next().unwrap().as_bytes().to_vec();
            let addr = |hex| GuestAddr(u64::from_str_radix(hex, 16).unwrap());
            let prot = Prot { read: perms[0] == b'r', write: perms[1] == b'w', exec: perms[2] == b'x' };
            let name = words.nth(3).unwrap_or("").to_owned();
            Map { range: GuestRange { start: addr(start), end: addr(end) }, prot, name }
        };
        let all = text.lines().map(parse);
        all.filter(|map| !map.name.starts_with("[v")).collect()
    }

    /// Ranges for the engine to keep out of.
    pub(crate) fn footprint(&self) -> Vec<GuestRange> {
        // The heap, and where programs of the tests fault.
        let others = [
            GuestRange::new(GuestAddr(0x100_0000), 0x2000_0000),
            GuestRange::new(GuestAddr(0x7_0000), 0x1_0000),
        ];
        self.maps().iter().map(|map| map.range).chain(others).collect()
    }

    /// Hides the vDSO, as a recording does.
    pub(crate) fn hide_vdso(&self) {
        let mut at = GuestAddr(self.registers().rsp);
        let argc = self.memory.read_u64(at).unwrap();
        at = at.wrapping_add(8 * (argc + 2));
        while self.memory.read_u64(at).unwrap() != 0 {
            at = at.wrapping_add(8);
        }
        loop {
            at = at.wrapping_add(8);
            match self.memory.read_u64(at).unwrap() {
                0 => return,
                33 => self.memory.write(at, &1u64.to_le_bytes()).unwrap(), // AT_SYSINFO_EHDR to AT_IGNORE
                _ => at = at.wrapping_add(8),
            }
        }
    }

    /// Answers a trapped `rdtsc` or `rdtscp` with 1.
    pub(crate) fn answer_tsc(&mut self) -> bool {
        let stopped = self.stopped.as_mut().unwrap();
        let regs = stopped.registers().unwrap();
        let mut bytes = [0; 3];
        self.memory.read_forced(GuestAddr(regs.rip), &mut bytes);
        let regs = match bytes {
            [0x0f, 0x31, _] => Registers { rip: regs.rip + 2, rax: 1, rdx: 0, ..regs },
            [0x0f, 0x01, 0xf9] => Registers { rip: regs.rip + 3, rax: 1, rdx: 0, rcx: 0, ..regs },
            _ => return false,
        };
        stopped.set_registers(&regs).unwrap();
        true
    }

    /// A space with this process's memory and registers.
    pub(crate) fn image(&self, mode: Mode) -> Space {
        self.image_counting(mode, Branches::Uncounted)
    }

    /// The same, conditional branches being counted.
    pub(crate) fn image_counting(&self, mode: Mode, branches: Branches) -> Space {
        let footprint = self.footprint();
        let config = Config { footprint, mode, log_bytes: 4 << 20, branches, ..Config::default() };
        let mut space = Space::new(&config).unwrap();
        for map in self.maps() {
            self.copy_mapping(&map, &mut space);
        }
        space.set_registers(&self.registers());
        space.set_xstate(&self.stopped.as_ref().unwrap().xstate().unwrap()).unwrap();
        space
    }

    fn copy_mapping(&self, map: &Map, space: &mut Space) {
        let request = MapRequest {
            range: map.range,
            prot: map.prot,
            shared: false,
            grows_down: map.name == "[stack]",
            no_reserve: false,
            source: MapSource::Zero,
        };
        space.map(&request).unwrap();
        let mut bytes = vec![0; map.range.len() as usize];
        let readable = self.memory.read_forced(map.range.start, &mut bytes);
        for (at, chunk) in bytes[..readable].chunks(4096).enumerate() {
            if chunk.iter().any(|&byte| byte != 0) {
                space.write(map.range.start.wrapping_add(at as u64 * 4096), chunk).unwrap();
            }
        }
    }

    /// Runs the system call or trapped instruction here natively and copies what it did.
    pub(crate) fn perform(&mut self, space: &mut Space) {
        let maps = self.maps();
        assert_eq!(self.step(), None);
        self.retired -= 1;
        self.copy_changes(&maps, space);
    }

    /// Copies what changed since the mappings were `maps`: mappings, memory, registers.
    pub(crate) fn copy_changes(&self, maps: &[Map], space: &mut Space) {
        let now = self.maps();
        for gone in maps.iter().filter(|map| !now.contains(map)) {
            space.unmap(gone.range).unwrap();
        }
        for new in now.iter().filter(|map| !maps.contains(map)) {
            self.copy_mapping(new, space);
        }
        for map in now.iter().filter(|map| map.prot.write) {
            let (mut ours, mut theirs) = (vec![0; 4096], vec![0; 4096]);
            for page in (map.range.start.0..map.range.end.0).step_by(4096).map(GuestAddr) {
                self.memory.read_forced(page, &mut theirs);
                space.read(page, &mut ours).unwrap();
                if ours != theirs {
                    space.write(page, &theirs).unwrap();
                }
            }
        }
        space.set_registers(&self.registers());
    }

    /// Panics unless the space has the same memory.
    #[track_caller]
    pub(crate) fn assert_memory(&self, space: &Space) {
        for map in self.maps() {
            let (mut ours, mut theirs) = (vec![0; 4096], vec![0; 4096]);
            for page in (map.range.start.0..map.range.end.0).step_by(4096).map(GuestAddr) {
                if self.memory.read_forced(page, &mut theirs) == 4096 {
                    space.read(page, &mut ours).unwrap();
                    let differs = (0..4096).find(|&i| ours[i] != theirs[i]);
                    assert!(
                        differs.is_none(),
                        "memory differs at {:#x}",
                        page.0 + differs.unwrap_or(0) as u64
                    );
                }
            }
        }
    }

    /// Panics unless the space has the same registers (resume flag aside) and count.
    #[track_caller]
    pub(crate) fn assert_registers(&self, space: &Space) {
        let clean = |regs: Registers| Registers { eflags: regs.eflags & !0x10000, orig_rax: 0, ..regs };
        let (ours, theirs) = (clean(space.registers()), clean(self.registers()));
        assert_eq!(
            space.retired(),
            self.retired,
            "counts differ at {:#x} (native {:#x})",
            ours.rip,
            theirs.rip
        );
        for (name, (ours, theirs)) in
            Registers::NAMES.iter().zip(ours.to_words().into_iter().zip(theirs.to_words()))
        {
            assert_eq!(ours, theirs, "{name} differs ({ours:#x}, native {theirs:#x}) after {}", self.retired);
        }
    }

    /// Panics unless the space has counted the same branches.
    #[track_caller]
    pub(crate) fn assert_branches(&self, space: &Space) {
        let expected = match space.counted_branches() {
            Branches::Uncounted => 0,
            Branches::Jcc => self.jccs,
            Branches::All => self.jccs + self.loops,
        };
        assert_eq!(
            space.branches(),
            expected,
            "branches, after {} at {:#x}",
            self.retired,
            space.registers().rip
        );
    }

    /// Steps until as many instructions have retired as in the space.
    pub(crate) fn catch_up(&mut self, space: &Space) {
        while self.retired < space.retired() {
            assert_eq!(self.step(), None, "after {} of {}", self.retired, space.retired());
        }
    }
}

impl Drop for Native {
    fn drop(&mut self) {
        self.tid.kill();
        while let Ok(Some(waited)) = wait_for(self.tid, 0) {
            if matches!(waited.report, Report::Exited(_) | Report::Killed(..)) {
                break;
            }
        }
    }
}

fn stopped_by(signal: i32, tid: HostTid) -> Stopped {
    match wait_for(tid, 0).unwrap().unwrap().report {
        Report::Signal(got, stopped) if got == signal => stopped,
        other => panic!("{other:?}"),
    }
}

/// Runs a program to its `exit` call in both, comparing at every exit and, with `every`, at budgets of that many
/// instructions on average.
pub(crate) fn compare(native: &mut Native, space: &mut Space, every: Option<u64>) {
    let mut seed = 0x1234_5678_9abc_def1_u64;
    let mut random = |most: u64| {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        1 + seed % most
    };
    loop {
        let budget = every.map(|every| random(2 * every));
        let exit = space.run(budget).unwrap();
        native.catch_up(space);
        native.assert_branches(space);
        match exit {
            Exit::Budget => native.assert_registers(space),
            Exit::Syscall => {
                native.assert_registers(space);
                if matches!(space.registers().rax, 60 | 231) {
                    break;
                }
                native.perform(space);
            }
            Exit::Instruction(_) => {
                assert_eq!(space.registers().rip, native.registers().rip);
                native.perform(space);
            }
            Exit::LogFull => drop(space.drain_log()),
            other => panic!("{other:?} at {:#x} after {}", space.registers().rip, space.retired()),
        }
    }
    native.assert_memory(space);
}
