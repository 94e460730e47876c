//! Bytes to be written into the code cache, gathered and then written by one call.

use std::collections::hash_map::Entry;

use guest::Unmapped;

use crate::host::Host;
use crate::table::AddressMap;

/// Most bytes between the code of two blocks that are written together.
const GAP: u64 = 16;

/// Pending writes. No two of them overlap but whole.
#[derive(Clone, Default, Debug)]
pub(crate) struct Patches {
    /// Runs of code, by their start; empty ones wait to be used again.
    code: Vec<(u64, Vec<u8>)>,
    /// Small pieces elsewhere, one after the other.
    bytes: Vec<u8>,
    /// Address and length of each piece of `bytes`.
    pieces: Vec<(u64, usize)>,
    /// By address: where a piece lies in `bytes`.
    at: AddressMap<usize>,
}

impl Patches {
    /// Puts code of a block, which nothing pending overlaps.
    pub(crate) fn put_code(&mut self, addr: u64, code: &[u8]) {
        let follows = |&&mut (start, ref run): &&mut (u64, Vec<u8>)| {
            let end = start + run.len() as u64;
            !run.is_empty() && (end..end + GAP).contains(&addr)
        };
        if let Some((start, run)) = self.code.iter_mut().find(follows) {
            run.resize((addr - *start) as usize, 0xcc);
            run.extend_from_slice(code);
        } else if let Some((start, run)) = self.code.iter_mut().find(|(_, run)| run.is_empty()) {
            *start = addr;
            run.extend_from_slice(code);
        } else {
            self.code.push((addr, code.to_vec()));
        }
    }

    /// Puts a few bytes anywhere, always as many at the same address; where code is pending, it is changed.
    pub(crate) fn put(&mut self, addr: u64, bytes: &[u8]) {
        let end = addr + bytes.len() as u64;
        for (start, run) in &mut self.code {
            if *start <= addr && end <= *start + run.len() as u64 {
                let at = (addr - *start) as usize;
                run[at..at + bytes.len()].copy_from_slice(bytes);
                return;
            }
        }
        match self.at.entry(addr) {
            Entry::Occupied(to) => self.bytes[*to.get()..][..bytes.len()].copy_from_slice(bytes),
            Entry::Vacant(to) => {
                to.insert(self.bytes.len());
                self.bytes.extend_from_slice(bytes);
                self.pieces.push((addr, bytes.len()));
            }
        }
    }

    /// Writes them all.
    pub(crate) fn flush(&mut self, host: &Host) -> Result<(), Unmapped> {
        for (start, run) in &mut self.code {
            if !run.is_empty() {
                self.bytes.extend_from_slice(run);
                self.pieces.push((*start, run.len()));
                run.clear();
            }
        }
        if !self.pieces.is_empty() {
            host.write_pieces(&self.bytes, &self.pieces)?;
            self.bytes.clear();
            self.pieces.clear();
            self.at.clear();
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn code_runs_together_and_is_patched_in_place() {
        let mut patches = Patches::default();
        patches.put_code(0x1000, &[1; 20]);
        patches.put_code(0x8000, &[2; 5]);
        patches.put_code(0x1020, &[3; 4]);
        patches.put(0x1021, &[9, 9]);
        patches.put(0x5000, &[7; 8]);
        patches.put(0x5000, &[8; 8]);
        assert_eq!(patches.code.len(), 2);
        assert_eq!(patches.code[0].1[0x1e..], [0xcc, 0xcc, 3, 9, 9, 3]);
        assert_eq!((patches.pieces.as_slice(), patches.bytes.as_slice()), (&[(0x5000, 8)][..], &[8; 8][..]));
    }
}
