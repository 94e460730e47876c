//! An empty process: one page of code for injected system calls, nothing else mapped.
#![expect(unsafe_code, reason = "the child sets itself up between fork and exec")]

use std::ffi::CString;
use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use guest::{GuestAddr, GuestRange, Prot};
use ptrace::{HostTid, Memory, Report, Stopped, inject_with_trap, wait_for};
use trace::{Backing, MapOp, Trace};

/// Where the stub's own page lies: above what a recorder puts into programs, which may be in a recording, and below programs.
const PAGE: u64 = abi::buffer::END.next_multiple_of(0x1_0000);
/// Where paths are put for calls that take one.
const SCRATCH: u64 = PAGE + abi::PAGE_LEN;
/// Below lies memory of the stub's or the recorder's.
pub const END: u64 = SCRATCH + abi::PAGE_LEN;

/// A process that holds whatever is mapped into it. Killed on drop.
#[derive(Debug)]
pub struct Stub {
    tid: HostTid,
    tracee: Option<Stopped>,
    memory: Memory,
}

/// A static executable of one loaded page, with the bytes of the `abi` page, entered at an `int3`.
fn elf() -> Vec<u8> {
    let mut file = Vec::with_capacity(8192);
    file.extend_from_slice(b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0");
    file.extend_from_slice(&[2, 0, 62, 0, 1, 0, 0, 0]); // ET_EXEC, x86-64, version 1
    for word in [PAGE + abi::CODE.len() as u64 / 2, 64, 0] {
        file.extend_from_slice(&word.to_le_bytes()); // entry, program headers, no sections
    }
    file.extend_from_slice(&[0, 0, 0, 0, 64, 0, 56, 0, 1, 0, 0, 0, 0, 0, 0, 0]);
    file.extend_from_slice(&[1, 0, 0, 0, 5, 0, 0, 0]); // PT_LOAD, read and execute
    for word in [0x1000, PAGE, PAGE, abi::PAGE_LEN, abi::PAGE_LEN, 0x1000] {
        file.extend_from_slice(&word.to_le_bytes());
    }
    file.resize(0x1000, 0);
    file.extend_from_slice(&abi::page_bytes());
    file
}

impl Stub {
    /// Starts one on this thread's processor.
    pub fn start(scratch_dir: &Path) -> io::Result<Self> {
        let path = scratch_dir.join("stub");
        if !path.exists() {
            let mut file =
                fs::OpenOptions::new().create(true).write(true).truncate(true).mode(0o755).open(&path)?;
            file.write_all(&elf())?;
        }
        let mut command = Command::new(&path);
        // SAFETY: between fork and exec only two system calls are made, which allocate nothing.
        unsafe {
            command.env_clear().pre_exec(|| {
                libc::personality(libc::ADDR_NO_RANDOMIZE as libc::c_ulong);
                libc::ptrace(libc::PTRACE_TRACEME, 0, 0, 0);
                Ok(())
            });
        }
        let child = command.spawn()?;
        let tid = HostTid(child.id() as i32);
        let tracee = match wait_for(tid, 0)?.map(|waited| waited.report) {
            Some(Report::Signal(libc::SIGTRAP, stopped)) => stopped,
            other => return Err(io::Error::other(format!("stub did not stop at its exec: {other:?}"))),
        };
        let mut stub = Self { tid, tracee: Some(tracee), memory: Memory::open(tid)? };
        stub.unmap_all()?;
        stub.call(libc::SYS_mmap, [SCRATCH, 4096, 3, 0x32, u64::MAX, 0])?;
        Ok(stub)
    }

    /// Its process id.
    pub fn tid(&self) -> HostTid {
        self.tid
    }

    /// Its memory.
    pub fn memory(&self) -> &Memory {
        &self.memory
    }

    /// The stopped process.
    pub fn tracee(&mut self) -> &mut Stopped {
        self.tracee.as_mut().expect("the stub is stopped between calls")
    }

    /// Runs one instruction natively (one iteration of a `rep`); the signal it raised, if any but SIGTRAP.
    pub fn step(&mut self) -> io::Result<Option<i32>> {
        let tracee = self.tracee.take().expect("the stub is stopped between calls");
        tracee.step(0).map_err(io::Error::other)?;
        match wait_for(self.tid, 0)?.map(|waited| waited.report) {
            Some(Report::Signal(signo, stopped)) => {
                self.tracee = Some(stopped);
                Ok((signo != libc::SIGTRAP).then_some(signo))
            }
            other => Err(io::Error::other(format!("the stepped process did not stop: {other:?}"))),
        }
    }

    fn call(&mut self, nr: libc::c_long, args: [u64; 6]) -> io::Result<u64> {
        let tracee = self.tracee.take().expect("the stub is stopped between calls");
        let (tracee, result) =
            inject_with_trap(tracee, GuestAddr(PAGE), nr as u64, args).map_err(io::Error::other)?;
        self.tracee = Some(tracee);
        match result {
            -4095..0 => {
                let error = io::Error::from_raw_os_error(-result as i32);
                Err(io::Error::other(format!("system call {nr} {args:x?} in the stub: {error}")))
            }
            _ => Ok(result as u64),
        }
    }

    fn unmap_all(&mut self) -> io::Result<()> {
        for line in fs::read_to_string(format!("/proc/{}/maps", self.tid))?.lines() {
            let range = line.split(' ').next().and_then(|r| r.split_once('-'));
            let Some((start, end)) = range else { continue };
            let parse = |text: &str| u64::from_str_radix(text, 16).map_err(io::Error::other);
            let (start, end) = (parse(start)?, parse(end)?);
            if start > SCRATCH && start < 1 << 47 {
                self.call(libc::SYS_munmap, [start, end - start, 0, 0, 0, 0])?;
            }
        }
        Ok(())
    }

    /// Performs a recorded change of the address space.
    pub fn apply(&mut self, op: &MapOp, trace: &Trace) -> io::Result<()> {
        match *op {
            MapOp::UnmapAll => self.unmap_all(),
            MapOp::Map { range, prot, backing, .. } => self.map(range, prot, backing, trace),
            MapOp::Unmap { range } => {
                self.call(libc::SYS_munmap, [range.start.0, range.len(), 0, 0, 0, 0]).map(drop)
            }
            MapOp::Protect { range, prot } => {
                self.call(libc::SYS_mprotect, [range.start.0, range.len(), prot.bits(), 0, 0, 0]).map(drop)
            }
            MapOp::Remap { from, to, keep } => {
                let flags = if from.start == to.start { 0 } else { 3 | if keep { 4 } else { 0 } };
                self.call(libc::SYS_mremap, [from.start.0, from.len(), to.len(), flags, to.start.0, 0])
                    .map(drop)
            }
            MapOp::Discard { range } => {
                self.call(libc::SYS_madvise, [range.start.0, range.len(), 4, 0, 0, 0]).map(drop)
            }
            // What is stepped through is the program's own.
            MapOp::Rewrite { .. } => Ok(()),
        }
    }

    fn map(&mut self, range: GuestRange, prot: Prot, backing: Backing, trace: &Trace) -> io::Result<()> {
        // MAP_PRIVATE | MAP_FIXED | MAP_NORESERVE
        let flags = 0x2 | 0x10 | 0x4000;
        match backing {
            Backing::Zero => self
                .call(libc::SYS_mmap, [range.start.0, range.len(), prot.bits(), flags | 0x20, u64::MAX, 0]),
            Backing::File { file, offset } => {
                let path = trace.file_path(file).map_err(io::Error::other)?;
                let name = CString::new(path.as_os_str().as_encoded_bytes()).map_err(io::Error::other)?;
                self.memory
                    .write(GuestAddr(SCRATCH), name.as_bytes_with_nul())
                    .map_err(|e| io::Error::other(e.to_string()))?;
                let fd = self.call(libc::SYS_open, [SCRATCH, libc::O_RDONLY as u64, 0, 0, 0, 0])?;
                self.call(libc::SYS_mmap, [range.start.0, range.len(), prot.bits(), flags, fd, offset])?;
                self.call(libc::SYS_close, [fd, 0, 0, 0, 0, 0])
            }
        }
        .map(drop)
    }
}

impl Drop for Stub {
    fn drop(&mut self) {
        self.tid.kill();
        while !matches!(
            wait_for(self.tid, 0),
            Err(_) | Ok(Some(ptrace::Waited { report: Report::Killed(..) | Report::Exited(_), .. }))
        ) {}
    }
}
