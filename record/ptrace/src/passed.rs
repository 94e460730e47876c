//! Requests made for somebody else: as they are asked for, with the kernel's own answers. Knows no request's meaning but what it
//! needs for its buffers.
#![expect(unsafe_code, reason = "ptrace(2) is called here")]

use crate::tracee::{HostTid, Stopped};

/// What a request's last argument is.
#[derive(Debug)]
pub enum Data<'a> {
    /// A number.
    Value(u64),
    /// Memory that the kernel reads or fills: as long as it may ask for.
    Memory(&'a mut [u8]),
    /// The same of the argument before it (in place of the address), and of this.
    Both(&'a mut [u8], &'a mut [u8]),
    /// A `struct iovec` of it; the kernel says how much of it was used.
    Vector(&'a mut [u8], &'a mut usize),
}

impl Stopped {
    /// Makes a request with the kernel's own words (`PTRACE_PEEKDATA` and its like store through the last argument): its result, or a
    /// negated errno.
    pub fn pass(&mut self, request: u32, addr: u64, data: Data<'_>) -> i64 {
        pass(self.tid(), request, addr, data)
    }
}

fn pass(tid: HostTid, request: u32, addr: u64, data: Data<'_>) -> i64 {
    let call_at = |addr: u64, data: u64| {
        // SAFETY: ptrace takes two words; where the last is a pointer, it is to one of the buffers below, which outlive the call and are as
        // long as `Data` demands of the caller. Errors are returned, not ignored.
        let result = unsafe { libc::syscall(libc::SYS_ptrace, u64::from(request), tid.0, addr, data) };
        if result == -1 {
            -i64::from(std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO))
        } else {
            result
        }
    };
    let call = |data| call_at(addr, data);
    match data {
        Data::Both(first, second) => call_at(first.as_mut_ptr() as u64, second.as_mut_ptr() as u64),
        Data::Value(value) => call(value),
        Data::Memory(bytes) => call(bytes.as_mut_ptr() as u64),
        Data::Vector(bytes, len) => {
            let mut iov = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len().min(*len) };
            let result = call(std::ptr::from_mut(&mut iov) as u64);
            *len = iov.iov_len;
            result
        }
    }
}
