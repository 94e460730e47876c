//! Bytes to be written into the code cache, gathered and then written by one call.

use guest::Unmapped;

use crate::host::Host;

/// Pending writes, in order.
#[derive(Clone, Default, Debug)]
pub(crate) struct Patches {
    bytes: Vec<u8>,
    /// Address and length of each piece of `bytes`.
    pieces: Vec<(u64, usize)>,
}

impl Patches {
    pub(crate) fn put(&mut self, addr: u64, bytes: &[u8]) {
        // Code that waits to be written is patched in place. No piece overlaps another: this sees to it.
        let end = addr + bytes.len() as u64;
        let mut to = self.bytes.len();
        for &(start, len) in self.pieces.iter().rev() {
            to -= len;
            if start <= addr && end <= start + len as u64 {
                to += (addr - start) as usize;
                self.bytes[to..to + bytes.len()].copy_from_slice(bytes);
                return;
            }
        }
        self.bytes.extend_from_slice(bytes);
        match self.pieces.last_mut() {
            Some((start, len)) if *start + *len as u64 == addr => *len += bytes.len(),
            _ => self.pieces.push((addr, bytes.len())),
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.pieces.is_empty()
    }

    /// Writes them all.
    pub(crate) fn flush(&mut self, host: &Host) -> Result<(), Unmapped> {
        if !self.is_empty() {
            host.write_pieces(&self.bytes, &self.pieces)?;
            self.bytes.clear();
            self.pieces.clear();
        }
        Ok(())
    }
}
