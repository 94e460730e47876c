//! What the recorder's seccomp filter stops. The filter program itself is the recorder's.

/// The input of the filter.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Filter {
    /// The architecture whose calls it knows (`AUDIT_ARCH_X86_64`); those of any other are refused.
    pub audit_arch: u32,
    /// Numbers that pass without a stop wherever they are made. All others stop, known or not.
    pub passing: &'static [u32],
}

/// Every call stops: each has a result at the least, and an unknown one must be refused by name.
pub const FILTER: Filter = Filter { audit_arch: 0xc000_003e, passing: &[] };
