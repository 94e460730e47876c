//! Signal names (signal(7)).

/// The name of a signal, `SIGSEGV`, `SIGRT_3`; `None` where Linux has no such signal.
pub fn signal_name(number: i32) -> Option<String> {
    match usize::try_from(number).ok()? {
        number @ 1..=31 => Some(format!("SIG{}", NAMES[number - 1])),
        number @ 32..=64 => Some(format!("SIGRT_{}", number - 32)),
        _ => None,
    }
}

const NAMES: [&str; 31] = [
    "HUP", "INT", "QUIT", "ILL", "TRAP", "ABRT", "BUS", "FPE", "KILL", "USR1", "SEGV", "USR2", "PIPE",
    "ALRM", "TERM", "STKFLT", "CHLD", "CONT", "STOP", "TSTP", "TTIN", "TTOU", "URG", "XCPU", "XFSZ",
    "VTALRM", "PROF", "WINCH", "IO", "PWR", "SYS",
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signals_have_their_names() {
        for (number, name) in [
            (1, Some("SIGHUP")),
            (11, Some("SIGSEGV")),
            (17, Some("SIGCHLD")),
            (31, Some("SIGSYS")),
            (34, Some("SIGRT_2")),
            (64, Some("SIGRT_32")),
            (0, None),
            (65, None),
            (-1, None),
        ] {
            assert_eq!(signal_name(number).as_deref(), name, "{number}");
        }
    }
}
