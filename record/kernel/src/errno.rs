//! Error numbers and their names (asm-generic/errno-base.h, asm-generic/errno.h, and the kernel-internal restart codes).

use std::fmt;

/// A Linux error number, positive.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Errno(pub i32);

impl Errno {
    /// Operation not permitted.
    pub const EPERM: Self = Self(1);
    /// Interrupted system call.
    pub const EINTR: Self = Self(4);
    /// Argument list too long, or a structure larger than the kernel knows.
    pub const E2BIG: Self = Self(7);
    /// Bad file descriptor.
    pub const EBADF: Self = Self(9);
    /// Permission denied.
    pub const EACCES: Self = Self(13);
    /// Bad address.
    pub const EFAULT: Self = Self(14);
    /// Invalid argument.
    pub const EINVAL: Self = Self(22);
    /// Inappropriate ioctl for device.
    pub const ENOTTY: Self = Self(25);
    /// Numerical result out of range.
    pub const ERANGE: Self = Self(34);
    /// No space left on device.
    pub const ENOSPC: Self = Self(28);
    /// Function not implemented.
    pub const ENOSYS: Self = Self(38);
    /// Value too large for its data type.
    pub const EOVERFLOW: Self = Self(75);
    /// Operation not supported.
    pub const EOPNOTSUPP: Self = Self(95);

    /// The error a call's result holds, if it is one (-4095 to -1).
    pub const fn from_result(result: i64) -> Option<Self> {
        if result < 0 && result >= -4095 { Some(Self(-result as i32)) } else { None }
    }

    /// What the call leaves in rax.
    pub const fn as_result(self) -> i64 {
        -(self.0 as i64)
    }

    /// Whether a signal cut the call short: `EINTR`, or one of the kernel's own restart codes, which a tracer sees at
    /// the exit stop and the guest never does.
    pub const fn is_interruption(self) -> bool {
        matches!(self.0, 4 | 512 | 513 | 514 | 516)
    }
}

impl fmt::Display for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "errno {}", self.0)
    }
}
