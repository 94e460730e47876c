//! Memory of another process.
#![expect(unsafe_code, reason = "process_vm_readv(2) and process_vm_writev(2) are called here")]

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;

use guest::{GuestAddr, GuestMemory, GuestRange, Unmapped};

use crate::tracee::HostTid;

/// The memory of a tracee's address space. Writes go through `/proc/PID/mem`, which ignores page protections as a
/// debugger's writes do. Opened anew after an exec: the handle stays with the old space.
#[derive(Debug)]
pub struct Memory {
    tid: HostTid,
    file: File,
}

impl Memory {
    /// Opens the memory of a stopped tracee.
    pub fn open(tid: HostTid) -> io::Result<Self> {
        let file = OpenOptions::new().read(true).write(true).open(format!("/proc/{tid}/mem"))?;
        Ok(Self { tid, file })
    }

    /// The memory of a tracee that has none any more: all reads and writes fail.
    pub fn of_dead(tid: HostTid) -> io::Result<Self> {
        Ok(Self { tid, file: File::open("/dev/null")? })
    }

    /// Writes `bytes` at `addr`, whatever its protection.
    pub fn write(&self, addr: GuestAddr, bytes: &[u8]) -> Result<(), Unmapped> {
        let mut done = 0;
        while done < bytes.len() {
            let at = addr.wrapping_add(done as u64);
            match self.file.write_at(&bytes[done..], at.0) {
                Ok(n) if n > 0 => done += n,
                _ => return Err(Unmapped { addr: at }),
            }
        }
        Ok(())
    }

    /// Writes consecutive runs of `bytes` at many places, in order, by few calls: `pieces` are addresses and lengths that add up
    /// to `bytes.len()`. Protections count (unless the thread is gone, as in [`Memory::read_some`]). Fails naming a piece that could not be written.
    pub fn write_pieces(&self, bytes: &[u8], pieces: &[(u64, usize)]) -> Result<(), Unmapped> {
        const MOST: usize = 1024; // IOV_MAX
        let mut from = 0;
        let mut remote = Vec::with_capacity(pieces.len().min(MOST));
        for group in pieces.chunks(MOST) {
            let len: usize = group.iter().map(|&(_, len)| len).sum();
            let run = &bytes[from..from + len];
            remote.clear();
            remote.extend(
                group.iter().map(|&(addr, iov_len)| libc::iovec { iov_base: addr as *mut _, iov_len }),
            );
            let local = libc::iovec { iov_base: run.as_ptr().cast_mut().cast(), iov_len: len };
            // SAFETY: `local` describes `run`, which is only read; `remote` holds addresses in another process.
            let n = unsafe {
                libc::process_vm_writev(self.tid.0, &local, 1, remote.as_ptr(), remote.len() as u64, 0)
            };
            if n < 0 && is_gone() {
                let mut run = run;
                for &(addr, len) in group {
                    let (piece, rest) = run.split_at(len);
                    self.write(GuestAddr(addr), piece)?;
                    run = rest;
                }
            } else if usize::try_from(n) != Ok(len) {
                let mut left = usize::try_from(n).unwrap_or(0);
                let failed = group.iter().find(|&&(_, len)| {
                    left.checked_sub(len).is_none_or(|rest| {
                        left = rest;
                        false
                    })
                });
                return Err(Unmapped { addr: GuestAddr(failed.map_or(0, |&(addr, _)| addr)) });
            }
            from += len;
        }
        Ok(())
    }

    /// Reads as much as is readable from `addr` on, ignoring page protections; returns the number of bytes.
    pub fn read_forced(&self, addr: GuestAddr, into: &mut [u8]) -> usize {
        let mut done = 0;
        while done < into.len() {
            match self.file.read_at(&mut into[done..], addr.0.wrapping_add(done as u64)) {
                Ok(n) if n > 0 => done += n,
                _ => break,
            }
        }
        done
    }

    /// Reads as much as is readable from `addr` on; returns the number of bytes. Where the thread by which the space was opened has ended and
    /// others live on in it, page protections are ignored.
    pub fn read_some(&self, addr: GuestAddr, into: &mut [u8]) -> usize {
        let local = libc::iovec { iov_base: into.as_mut_ptr().cast(), iov_len: into.len() };
        let remote = libc::iovec { iov_base: addr.0 as *mut libc::c_void, iov_len: into.len() };
        // SAFETY: `local` describes `into`, which outlives the call; `remote` is only an address in another process.
        let n = unsafe { libc::process_vm_readv(self.tid.0, &local, 1, &remote, 1, 0) };
        match usize::try_from(n) {
            Ok(read) => read,
            Err(_) if is_gone() => self.read_forced(addr, into),
            Err(_) => 0,
        }
    }

    /// The same of several ranges, at most 1024, one after the other into as many bytes as they are long together; up to the first byte
    /// that cannot be read.
    pub fn read_ranges(&self, ranges: &[GuestRange], into: &mut [u8]) -> usize {
        let part = |range: &GuestRange| libc::iovec {
            iov_base: range.start.0 as *mut libc::c_void,
            iov_len: range.len() as usize,
        };
        let remote: Vec<libc::iovec> = ranges.iter().map(part).collect();
        let local = libc::iovec { iov_base: into.as_mut_ptr().cast(), iov_len: into.len() };
        // SAFETY: as above.
        let n =
            unsafe { libc::process_vm_readv(self.tid.0, &local, 1, remote.as_ptr(), remote.len() as u64, 0) };
        match usize::try_from(n) {
            Ok(read) => read,
            Err(_) if is_gone() => self.read_ranges_forced(ranges, into),
            Err(_) => 0,
        }
    }

    fn read_ranges_forced(&self, ranges: &[GuestRange], into: &mut [u8]) -> usize {
        let mut done = 0;
        for range in ranges {
            let len = (range.len() as usize).min(into.len() - done);
            let read = self.read_forced(range.start, &mut into[done..done + len]);
            done += read;
            if read < len {
                break;
            }
        }
        done
    }
}

/// Whether the last call found no thread, though its memory may still be there.
fn is_gone() -> bool {
    io::Error::last_os_error().raw_os_error() == Some(libc::ESRCH)
}

impl GuestMemory for Memory {
    fn read(&self, addr: GuestAddr, into: &mut [u8]) -> Result<(), Unmapped> {
        let mut done = self.read_some(addr, into);
        if done < into.len() {
            // One transfer stops at a page it may not read; /proc/PID/mem reads those that only a debugger may.
            done += self.read_forced(addr.wrapping_add(done as u64), &mut into[done..]);
        }
        if done < into.len() {
            let at = addr.wrapping_add(done as u64);
            return Err(Unmapped { addr: if done == 0 { addr } else { at } });
        }
        Ok(())
    }
}
