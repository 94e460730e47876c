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
    /// Socket operation on something else.
    pub const ENOTSOCK: Self = Self(88);
    /// Protocol option not available.
    pub const ENOPROTOOPT: Self = Self(92);
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

impl Errno {
    /// Its name, `ENOENT`; also those of the kernel's restart codes.
    pub fn name(self) -> Option<&'static str> {
        match self.0 {
            512 => Some("ERESTARTSYS"),
            513 => Some("ERESTARTNOINTR"),
            514 => Some("ERESTARTNOHAND"),
            516 => Some("ERESTART_RESTARTBLOCK"),
            number => {
                let name = NAMES.get(usize::try_from(number).ok()?)?;
                (!name.is_empty()).then_some(*name)
            }
        }
    }
}

impl fmt::Display for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            Some(name) => f.write_str(name),
            None => write!(f, "errno {}", self.0),
        }
    }
}

/// Names by number. 41 and 58 are free.
const NAMES: [&str; 134] = [
    "",
    "EPERM",
    "ENOENT",
    "ESRCH",
    "EINTR",
    "EIO",
    "ENXIO",
    "E2BIG",
    "ENOEXEC",
    "EBADF",
    "ECHILD",
    "EAGAIN",
    "ENOMEM",
    "EACCES",
    "EFAULT",
    "ENOTBLK",
    "EBUSY",
    "EEXIST",
    "EXDEV",
    "ENODEV",
    "ENOTDIR",
    "EISDIR",
    "EINVAL",
    "ENFILE",
    "EMFILE",
    "ENOTTY",
    "ETXTBSY",
    "EFBIG",
    "ENOSPC",
    "ESPIPE",
    "EROFS",
    "EMLINK",
    "EPIPE",
    "EDOM",
    "ERANGE",
    "EDEADLK",
    "ENAMETOOLONG",
    "ENOLCK",
    "ENOSYS",
    "ENOTEMPTY",
    "ELOOP",
    "",
    "ENOMSG",
    "EIDRM",
    "ECHRNG",
    "EL2NSYNC",
    "EL3HLT",
    "EL3RST",
    "ELNRNG",
    "EUNATCH",
    "ENOCSI",
    "EL2HLT",
    "EBADE",
    "EBADR",
    "EXFULL",
    "ENOANO",
    "EBADRQC",
    "EBADSLT",
    "",
    "EBFONT",
    "ENOSTR",
    "ENODATA",
    "ETIME",
    "ENOSR",
    "ENONET",
    "ENOPKG",
    "EREMOTE",
    "ENOLINK",
    "EADV",
    "ESRMNT",
    "ECOMM",
    "EPROTO",
    "EMULTIHOP",
    "EDOTDOT",
    "EBADMSG",
    "EOVERFLOW",
    "ENOTUNIQ",
    "EBADFD",
    "EREMCHG",
    "ELIBACC",
    "ELIBBAD",
    "ELIBSCN",
    "ELIBMAX",
    "ELIBEXEC",
    "EILSEQ",
    "ERESTART",
    "ESTRPIPE",
    "EUSERS",
    "ENOTSOCK",
    "EDESTADDRREQ",
    "EMSGSIZE",
    "EPROTOTYPE",
    "ENOPROTOOPT",
    "EPROTONOSUPPORT",
    "ESOCKTNOSUPPORT",
    "EOPNOTSUPP",
    "EPFNOSUPPORT",
    "EAFNOSUPPORT",
    "EADDRINUSE",
    "EADDRNOTAVAIL",
    "ENETDOWN",
    "ENETUNREACH",
    "ENETRESET",
    "ECONNABORTED",
    "ECONNRESET",
    "ENOBUFS",
    "EISCONN",
    "ENOTCONN",
    "ESHUTDOWN",
    "ETOOMANYREFS",
    "ETIMEDOUT",
    "ECONNREFUSED",
    "EHOSTDOWN",
    "EHOSTUNREACH",
    "EALREADY",
    "EINPROGRESS",
    "ESTALE",
    "EUCLEAN",
    "ENOTNAM",
    "ENAVAIL",
    "EISNAM",
    "EREMOTEIO",
    "EDQUOT",
    "ENOMEDIUM",
    "EMEDIUMTYPE",
    "ECANCELED",
    "ENOKEY",
    "EKEYEXPIRED",
    "EKEYREVOKED",
    "EKEYREJECTED",
    "EOWNERDEAD",
    "ENOTRECOVERABLE",
    "ERFKILL",
    "EHWPOISON",
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_their_names() {
        for (errno, name) in [
            (Errno::EPERM, "EPERM"),
            (Errno::EINTR, "EINTR"),
            (Errno::E2BIG, "E2BIG"),
            (Errno::EBADF, "EBADF"),
            (Errno::EACCES, "EACCES"),
            (Errno::EFAULT, "EFAULT"),
            (Errno::EINVAL, "EINVAL"),
            (Errno::ENOTTY, "ENOTTY"),
            (Errno::ENOSPC, "ENOSPC"),
            (Errno::ERANGE, "ERANGE"),
            (Errno::ENOSYS, "ENOSYS"),
            (Errno::EOVERFLOW, "EOVERFLOW"),
            (Errno::ENOPROTOOPT, "ENOPROTOOPT"),
            (Errno::EOPNOTSUPP, "EOPNOTSUPP"),
            (Errno(512), "ERESTARTSYS"),
            (Errno(133), "EHWPOISON"),
            (Errno(41), "errno 41"),
            (Errno(-1), "errno -1"),
        ] {
            assert_eq!(errno.to_string(), name);
        }
    }

    #[test]
    fn results_hold_errors_in_their_last_page() {
        assert_eq!(Errno::from_result(-2), Some(Errno(2)));
        assert_eq!(Errno::from_result(-4095), Some(Errno(4095)));
        assert_eq!(Errno::from_result(-4096), None);
        assert_eq!(Errno::from_result(0), None);
        assert_eq!(Errno::ENOSYS.as_result(), -38);
    }
}
