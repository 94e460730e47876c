//! How guest memory is read, whoever holds it: a live tracee, a replay, an image.

use serde::{Deserialize, Serialize};

use crate::addr::GuestAddr;

/// Page protections, as `mmap` has them.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default, Serialize, Deserialize)]
pub struct Prot {
    /// Loads are allowed.
    pub read: bool,
    /// Stores are allowed.
    pub write: bool,
    /// Instruction fetches are allowed.
    pub exec: bool,
}

impl Prot {
    /// From the `PROT_*` bits of `mmap(2)`; other bits are dropped.
    pub const fn from_bits(bits: u64) -> Self {
        Self { read: bits & 1 != 0, write: bits & 2 != 0, exec: bits & 4 != 0 }
    }

    /// As the `PROT_*` bits of `mmap(2)`.
    pub const fn bits(self) -> u64 {
        self.read as u64 | (self.write as u64) << 1 | (self.exec as u64) << 2
    }
}

/// A read touched memory that is not there.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("no memory at {addr}")]
pub struct Unmapped {
    /// The first address that could not be read.
    pub addr: GuestAddr,
}

/// Read access to guest memory.
pub trait GuestMemory {
    /// Fills `into` from `addr`, or fails naming the first unreadable address (`into` is then unspecified).
    fn read(&self, addr: GuestAddr, into: &mut [u8]) -> Result<(), Unmapped>;

    /// The `len` bytes at `addr`.
    fn read_vec(&self, addr: GuestAddr, len: usize) -> Result<Vec<u8>, Unmapped> {
        let mut bytes = vec![0; len];
        self.read(addr, &mut bytes)?;
        Ok(bytes)
    }

    /// The little-endian 64-bit word at `addr`.
    fn read_u64(&self, addr: GuestAddr) -> Result<u64, Unmapped> {
        let mut bytes = [0; 8];
        self.read(addr, &mut bytes)?;
        Ok(u64::from_le_bytes(bytes))
    }

    /// The little-endian 32-bit word at `addr`.
    fn read_u32(&self, addr: GuestAddr) -> Result<u32, Unmapped> {
        let mut bytes = [0; 4];
        self.read(addr, &mut bytes)?;
        Ok(u32::from_le_bytes(bytes))
    }

    /// The bytes from `addr` up to (without) the first NUL, at most `limit` of them.
    fn read_cstr(&self, addr: GuestAddr, limit: usize) -> Result<Vec<u8>, Unmapped> {
        let mut out = Vec::new();
        let mut at = addr;
        while out.len() < limit {
            let room = (crate::PAGE_SIZE - at.page_offset()) as usize;
            let chunk = self.read_vec(at, room.min(limit - out.len()))?;
            if let Some(nul) = chunk.iter().position(|&b| b == 0) {
                out.extend_from_slice(&chunk[..nul]);
                break;
            }
            at = at.wrapping_add(chunk.len() as u64);
            out.extend_from_slice(&chunk);
        }
        Ok(out)
    }
}
