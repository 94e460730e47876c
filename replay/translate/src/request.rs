//! What to translate and how.

use std::collections::BTreeSet;
use std::num::NonZeroU32;

use guest::GuestAddr;

use crate::block::BlockId;
use crate::layout::{CacheAddr, Layout};

/// What translated code does besides running the guest. The guest-visible result is the same in all of them.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Mode {
    /// Count instructions. Arithmetic flags that the guest cannot see any more may be destroyed.
    Plain,
    /// Count, and never touch the flags: after [`EnginePage::flags_defined`](crate::EnginePage::flags_defined) became
    /// 1, every exit and every mark shows all of them.
    Exact,
    /// As `Plain`, and log executed blocks and stores.
    Indexed,
    /// As `Exact`, and log executed blocks and stores.
    IndexedExact,
}

impl Mode {
    /// Whether executed blocks and stores are logged.
    pub const fn logs(self) -> bool {
        matches!(self, Self::Indexed | Self::IndexedExact)
    }

    /// Whether flags are kept even where the guest cannot see them.
    pub const fn exact(self) -> bool {
        matches!(self, Self::Exact | Self::IndexedExact)
    }
}

/// Which conditional branches are counted, taken or not, besides instructions: to compare with a hardware counter's count.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Branches {
    /// None, which costs nothing.
    #[default]
    Uncounted,
    /// `jcc` alone.
    Jcc,
    /// `jcc`, `loop`, `loope`, `loopne`, `jecxz` and `jrcxz`.
    All,
}

/// Guest code as the translator reads it.
pub trait Source {
    /// Executable bytes from `at` on: as many as are at hand, and at least 15 unless the mapping ends sooner. Empty:
    /// there is no code at `at`, or it is not known.
    fn bytes(&self, at: GuestAddr) -> &[u8];

    /// The same as loads see it, where that may be something else.
    fn shown(&self, at: GuestAddr) -> &[u8] {
        self.bytes(at)
    }
}

/// A single run of bytes as a source.
#[derive(Clone, Copy, Debug)]
pub struct Bytes<'a> {
    /// Address of the first byte.
    pub start: GuestAddr,
    /// The bytes.
    pub bytes: &'a [u8],
}

impl Source for Bytes<'_> {
    fn bytes(&self, at: GuestAddr) -> &[u8] {
        at.0.checked_sub(self.start.0)
            .and_then(|skip| usize::try_from(skip).ok())
            .and_then(|skip| self.bytes.get(skip..))
            .unwrap_or(&[])
    }
}

/// Where blocks compare the guest's state.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct SearchAt {
    /// The instruction.
    pub pc: GuestAddr,
    /// The value of rcx in [`EnginePage::search`](crate::EnginePage::search), which code may hold, too.
    pub rcx: u64,
}

/// One block to translate.
#[derive(Clone, Copy)]
pub struct Request<'a> {
    /// Guest address of the first instruction. It is translated even if it is a breakpoint.
    pub pc: GuestAddr,
    /// Where guest code is read. Bytes beyond the block are looked at to see which flags matter.
    pub code: &'a dyn Source,
    /// Where [`Translated::code`](crate::Translated::code) will lie; within 2 GiB of everything the code addresses
    /// relative to rip.
    pub hot: CacheAddr,
    /// Where [`Translated::cold`](crate::Translated::cold) will lie; within 2 GiB of `hot`. 8-byte aligned.
    pub cold: CacheAddr,
    /// What the code does besides running the guest.
    pub mode: Mode,
    /// The block's number, below 2^28. Exits and log records carry it.
    pub id: BlockId,
    /// End the block after exactly this many instructions (or sooner, if it ends by itself), with
    /// [`ExitKind::Budget`](crate::ExitKind::Budget) in place of a link.
    pub limit: Option<NonZeroU32>,
    /// Addresses that no block runs through or links to: [`ExitKind::Breakpoint`](crate::ExitKind::Breakpoint). Do
    /// not enter them in the lookup table either.
    pub breakpoints: &'a BTreeSet<GuestAddr>,
    /// An instruction before which the block compares the guest's state with what the engine page holds
    /// ([`EnginePage::search`](crate::EnginePage::search)), and leaves with
    /// [`ExitKind::Candidate`](crate::ExitKind::Candidate) when the two may be equal. Not before the first instruction of a block
    /// with a limit, nor before one that the block only exits at.
    pub search: Option<SearchAt>,
    /// Have the block compare its source bytes with what they are now, each time it is entered, and leave with
    /// [`ExitKind::Stale`](crate::ExitKind::Stale) when they differ. For pages that are both written and run.
    pub self_check: bool,
    /// Where the engine page, the common stubs and the table lie.
    pub layout: &'a Layout,
    /// Conditional branches to count, in [`EnginePage::branches`](crate::EnginePage::branches).
    pub branches: Branches,
    /// Whether the recorded processor has restricted transactional memory (CPUID leaf 7, EBX bit 11, or always aborting, EDX bit 11).
    /// If so, every transaction aborts at once; if not, its instructions are undefined.
    pub rtm: bool,
    /// Size in bytes of the XSAVE area for the enabled features (CPUID leaf 0xD, EBX), to log `xsave`.
    pub xsave_size: u32,
}

impl Request<'_> {
    /// Whether the state is compared before the instruction at `pc`.
    pub(crate) fn searches(&self, pc: GuestAddr) -> bool {
        self.search.is_some_and(|search| search.pc == pc)
    }
}
