//! Fields of an XSAVE image in the non-compacted format (Intel SDM vol. 1, 13.4). Missing bytes read as their initial
//! values.

use std::arch::x86_64::__cpuid_count;
use std::sync::LazyLock;

/// An XSAVE image, as this machine's processor lays it out.
pub(crate) struct Xsave<'a>(pub(crate) &'a [u8]);

/// Where the components of AVX-512 lie, if the processor has them (SDM vol. 1, 13.5.6: CPUID.0DH.5 and on, EBX): opmasks, upper halves of
/// zmm0 to zmm15, zmm16 to zmm31.
static AVX512: LazyLock<Option<[usize; 3]>> = LazyLock::new(|| {
    let there = __cpuid_count(0xd, 0).eax >> 5 & 7 == 7;
    there.then(|| [5, 6, 7].map(|component| __cpuid_count(0xd, component).ebx as usize))
});

/// Whether images have the registers of AVX-512.
pub(crate) fn has_avx512() -> bool {
    AVX512.is_some()
}

/// Offset of the upper halves of ymm0 to ymm15 (SDM vol. 1, 13.4.3: CPUID.0DH.2:EBX; 576 on every CPU made).
const YMM_HIGH: usize = 576;
/// Bytes before the registers of the legacy area.
const ST: usize = 32;
const XMM: usize = 160;

impl Xsave<'_> {
    fn bytes<const N: usize>(&self, at: usize) -> Option<[u8; N]> {
        self.0.get(at..at + N)?.try_into().ok()
    }

    fn u16_at(&self, at: usize) -> Option<u16> {
        self.bytes(at).map(u16::from_le_bytes)
    }

    fn u32_at(&self, at: usize) -> u32 {
        self.bytes(at).map_or(0, u32::from_le_bytes)
    }

    /// `st(n)`, ten bytes and padding.
    pub(crate) fn st(&self, n: usize) -> [u8; 16] {
        let mut value = self.bytes(ST + 16 * n).unwrap_or([0; 16]);
        value[10..].fill(0);
        value
    }

    /// `xmm<n>`
    pub(crate) fn xmm(&self, n: usize) -> [u8; 16] {
        self.bytes(XMM + 16 * n).unwrap_or([0; 16])
    }

    /// The upper half of `ymm<n>`, of 16.
    pub(crate) fn ymm_high(&self, n: usize) -> [u8; 16] {
        self.part(2, YMM_HIGH + 16 * n)
    }

    /// Bytes of a component; zero when the image says that it is in its initial state.
    fn part<const N: usize>(&self, component: u32, at: usize) -> [u8; N] {
        let present = self.u32_at(512) >> component & 1 != 0;
        self.bytes(at).filter(|_| present).unwrap_or([0; N])
    }

    /// `k<n>`
    pub(crate) fn opmask(&self, n: usize) -> [u8; 8] {
        AVX512.map_or([0; 8], |[at, ..]| self.part(5, at + 8 * n))
    }

    /// The upper half of `zmm<n>`, of all 32.
    pub(crate) fn zmm_high(&self, n: usize) -> [u8; 32] {
        AVX512.map_or([0; 32], |[_, low, high]| match n.checked_sub(16) {
            None => self.part(6, low + 32 * n),
            Some(n) => self.part(7, high + 64 * n + 32),
        })
    }

    /// A quarter of `zmm<n>`, of the last 16: number 0 is `xmm<n>`, number 1 the upper half of `ymm<n>`.
    pub(crate) fn quarter(&self, n: usize, quarter: usize) -> [u8; 16] {
        AVX512.map_or([0; 16], |[.., high]| self.part(7, high + 64 * (n - 16) + 16 * quarter))
    }

    /// `mxcsr`
    pub(crate) fn mxcsr(&self) -> u32 {
        self.bytes(24).map_or(0x1f80, u32::from_le_bytes)
    }

    /// gdb's `fctrl, fstat, ftag, fiseg, fioff, foseg, fooff, fop`, by position.
    pub(crate) fn x87_control(&self, n: usize) -> u32 {
        match n {
            0 => u32::from(self.u16_at(0).unwrap_or(0x37f)),
            1 => u32::from(self.u16_at(2).unwrap_or(0)),
            2 => u32::from(self.tags()),
            3 => u32::from(self.u16_at(12).unwrap_or(0)),
            4 => self.u32_at(8),
            5 => u32::from(self.u16_at(20).unwrap_or(0)),
            6 => self.u32_at(16),
            _ => u32::from(self.u16_at(6).unwrap_or(0)) & 0x7ff,
        }
    }

    /// The full tag word, from the abridged one and the values (SDM vol. 1, 10.5.1.1).
    fn tags(&self) -> u16 {
        let abridged = self.0.get(4).copied().unwrap_or(0);
        let top = usize::from(self.u16_at(2).unwrap_or(0) >> 11 & 7);
        (0..8).fold(0, |tags, physical| {
            let tag = if abridged >> physical & 1 == 0 { 3 } else { self.tag((physical + 8 - top) % 8) };
            tags | tag << (2 * physical)
        })
    }

    /// 0 valid, 1 zero, 2 special.
    fn tag(&self, n: usize) -> u16 {
        let value = u128::from_le_bytes(self.st(n));
        let (mantissa, exponent) = (value as u64, (value >> 64) as u16 & 0x7fff);
        match exponent {
            0 if mantissa == 0 => 1,
            0 | 0x7fff => 2,
            _ if mantissa >> 63 == 1 => 0,
            _ => 2,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_absent_image_reads_as_the_initial_state() {
        let state = Xsave(&[]);
        assert_eq!([state.x87_control(0), state.x87_control(2), state.mxcsr()], [0x37f, 0xffff, 0x1f80]);
        assert_eq!(state.xmm(15), [0; 16]);
    }

    #[test]
    fn tags_follow_the_stack_top() {
        // One value, 1.0, pushed: top is 7, physical register 7 is st0.
        let mut image = vec![0; 832];
        image[2..4].copy_from_slice(&(7u16 << 11).to_le_bytes());
        image[4] = 0x80;
        image[ST..ST + 10].copy_from_slice(&[0, 0, 0, 0, 0, 0, 0, 0x80, 0xff, 0x3f]);
        assert_eq!(Xsave(&image).x87_control(2), 0x3fff);
        image[ST..ST + 10].fill(0);
        assert_eq!(Xsave(&image).x87_control(2), 0x7fff);
    }

    #[test]
    fn upper_halves_count_only_where_they_are_in_use() {
        let mut image = vec![0; 832];
        image[YMM_HIGH..YMM_HIGH + 16].fill(7);
        assert_eq!(Xsave(&image).ymm_high(0), [0; 16]);
        image[512] = 7;
        assert_eq!(Xsave(&image).ymm_high(0), [7; 16]);
    }
}
