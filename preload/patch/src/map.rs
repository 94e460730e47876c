//! Pcs of the patched code and of the plain code, both ways.

use crate::addr::CodeAddr;

/// Which registers are those that the plain program would have.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Registers {
    /// All, and the flags.
    All,
    /// All but r11, which the call is about to overwrite and which is lost.
    AllButR11,
}

/// Where the plain program would be.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Place {
    /// The pc.
    pub pc: CodeAddr,
    /// What else is the same there. Memory is.
    pub registers: Registers,
}

/// Which pcs of one site's patched code stand for which of the plain code.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct PcMap {
    /// Ascending in the first.
    places: Vec<(u64, Place)>,
    /// Ascending in the first.
    redirects: Vec<(CodeAddr, u64)>,
}

impl PcMap {
    pub(crate) fn new(mut places: Vec<(u64, Place)>, mut redirects: Vec<(CodeAddr, u64)>) -> Self {
        places.sort_unstable_by_key(|&(at, _)| at);
        redirects.sort_unstable_by_key(|&(pc, _)| pc);
        Self { places, redirects }
    }

    /// What a pc in the stub or in the island stands for. `None` elsewhere: in the common entry, at the rewritten
    /// instruction itself (which stands for itself), and where no instruction begins.
    pub fn plain(&self, pc: u64) -> Option<Place> {
        let index = self.places.binary_search_by_key(&pc, |&(at, _)| at).ok()?;
        Some(self.places[index].1)
    }

    /// Where to go on instead of at `pc`, because of the instructions that were rewritten or moved. A task that was to go
    /// on there (stopped while the patch was made, or about to make a call again, at the instruction that made it) has to
    /// be sent here; where the jump itself begins, it need not be.
    pub fn redirect(&self, pc: CodeAddr) -> Option<u64> {
        let index = self.redirects.binary_search_by_key(&pc, |&(from, _)| from).ok()?;
        Some(self.redirects[index].1)
    }

    /// All pairs of the first kind, in order.
    pub fn places(&self) -> impl Iterator<Item = (u64, Place)> + '_ {
        self.places.iter().copied()
    }

    /// All pairs of the second kind, in order.
    pub fn redirects(&self) -> impl Iterator<Item = (CodeAddr, u64)> + '_ {
        self.redirects.iter().copied()
    }
}
