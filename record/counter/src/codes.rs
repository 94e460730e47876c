//! The one table of event codes: retired conditional branches, by processor. Facts, not code: they cannot be tested but on each of these
//! processors, which is why a counter is measured before it is used.
//!
//! Intel: event 0xC4, `BR_INST_RETIRED.CONDITIONAL`, later `.COND`, on small cores `.JCC`; unit masks from the event lists that Intel
//! publishes (github.com/intel/perfmon, `mapfile.csv` and the `*_core.json` that it names). AMD: event 0xD1, `ExRetCond`
//! (PMCx0D1 in the processor programming references of families 17h, 19h and 1Ah); ranges of models as in Linux's
//! `tools/perf/pmu-events/arch/x86/mapfile.csv`.

/// A processor, as CPUID names it: the vendor of leaf 0; family and model of leaf 1 with their extensions applied.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Processor {
    pub(crate) vendor: [u8; 12],
    pub(crate) family: u16,
    pub(crate) model: u8,
}

/// The kinds of cores of hybrid processors. Where all are alike, they count as big.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Core {
    Big,
    Small,
}

struct Row {
    vendor: &'static [u8; 12],
    family: u16,
    /// Inclusive ranges.
    models: &'static [(u8, u8)],
    name: &'static str,
    /// For the big cores, or all.
    big: u64,
    /// For the small cores of hybrid processors.
    small: Option<u64>,
}

const INTEL: &[u8; 12] = b"GenuineIntel";
const AMD: &[u8; 12] = b"AuthenticAMD";

/// Event 0xC4 with a unit mask.
const fn branches(mask: u64) -> u64 {
    0xC4 | mask << 8
}

/// Big cores from Nehalem on.
const CONDITIONAL: u64 = branches(0x01);
/// Big cores from Ice Lake on.
const COND: u64 = branches(0x11);
/// Lion Cove: the unit mask has an extension.
const COND_EXTENDED: u64 = branches(0x11) | 1 << 40;
/// Big and small cores from Panther Lake on.
const COND_NEW: u64 = branches(0x07);
/// Small cores from Silvermont on.
const JCC: u64 = branches(0x7E);
/// All of AMD's Zen.
const EX_RET_COND: u64 = 0xD1;

const fn intel(models: &'static [(u8, u8)], name: &'static str, big: u64) -> Row {
    Row { vendor: INTEL, family: 6, models, name, big, small: None }
}

const fn hybrid(models: &'static [(u8, u8)], name: &'static str, big: u64, small: u64) -> Row {
    Row { vendor: INTEL, family: 6, models, name, big, small: Some(small) }
}

const fn amd(family: u16, models: &'static [(u8, u8)], name: &'static str) -> Row {
    Row { vendor: AMD, family, models, name, big: EX_RET_COND, small: None }
}

/// A single model.
const fn one(model: u8) -> (u8, u8) {
    (model, model)
}

const ROWS: &[Row] = &[
    intel(&[one(0x1A), one(0x1E), one(0x1F), one(0x2E)], "Nehalem", CONDITIONAL),
    intel(&[one(0x25), one(0x2C), one(0x2F)], "Westmere", CONDITIONAL),
    intel(&[one(0x2A), one(0x2D)], "Sandy Bridge", CONDITIONAL),
    intel(&[one(0x3A), one(0x3E)], "Ivy Bridge", CONDITIONAL),
    intel(&[one(0x3C), one(0x3F), one(0x45), one(0x46)], "Haswell", CONDITIONAL),
    intel(&[one(0x3D), one(0x47), one(0x4F), one(0x56)], "Broadwell", CONDITIONAL),
    intel(&[one(0x4E), one(0x55), one(0x5E)], "Skylake", CONDITIONAL),
    intel(&[one(0x8E), one(0x9E)], "Kaby Lake", CONDITIONAL),
    intel(&[one(0xA5), one(0xA6)], "Comet Lake", CONDITIONAL),
    intel(&[one(0x6A), one(0x6C), one(0x7D), one(0x7E)], "Ice Lake", COND),
    intel(&[one(0x8C), one(0x8D)], "Tiger Lake", COND),
    intel(&[one(0xA7)], "Rocket Lake", COND),
    intel(&[one(0x8F)], "Sapphire Rapids", COND),
    intel(&[one(0xCF)], "Emerald Rapids", COND),
    intel(&[one(0xAD), one(0xAE)], "Granite Rapids", COND),
    hybrid(&[one(0x97), one(0x9A)], "Alder Lake", COND, JCC),
    hybrid(&[one(0xB7), one(0xBA), one(0xBF)], "Raptor Lake", COND, JCC),
    hybrid(&[one(0xAA), one(0xAC)], "Meteor Lake", COND, JCC),
    // Lists it with Meteor Lake, whose cores it has.
    hybrid(&[one(0xB5)], "Arrow Lake U", COND, JCC),
    hybrid(&[one(0xBD)], "Lunar Lake", COND_EXTENDED, JCC),
    hybrid(&[one(0xC5), one(0xC6)], "Arrow Lake", COND_EXTENDED, JCC),
    hybrid(&[one(0xCC), one(0xD5), one(0xE5)], "Panther Lake", COND_NEW, COND_NEW),
    intel(&[one(0x37), one(0x4A), one(0x4C), one(0x4D), one(0x5A)], "Silvermont", JCC),
    intel(&[one(0x57), one(0x85)], "Knights Landing", JCC),
    intel(&[one(0x5C), one(0x5F), one(0x7A)], "Goldmont", JCC),
    intel(&[one(0x86), one(0x96), one(0x9C)], "Tremont", JCC),
    intel(&[one(0xBE)], "Gracemont", JCC),
    intel(&[one(0xAF), one(0xB6)], "Crestmont", JCC),
    intel(&[one(0xDD)], "Clearwater Forest", COND_NEW),
    amd(0x17, &[(0x00, 0x2F)], "Zen"),
    amd(0x17, &[(0x30, 0xFF)], "Zen 2"),
    amd(0x19, &[(0x00, 0x0F), (0x20, 0x2F), (0x40, 0x5F)], "Zen 3"),
    amd(0x19, &[(0x10, 0x1F), (0x30, 0x3F), (0x60, 0xFF)], "Zen 4"),
    amd(0x1A, &[(0x00, 0x2F), (0x40, 0x4F), (0x60, 0x7F)], "Zen 5"),
];

/// The name of a processor's kind and its code for `perf_event_attr.config`, if the table has it.
pub(crate) fn code(processor: Processor, core: Core) -> Option<(&'static str, u64)> {
    let row = ROWS.iter().find(|row| row.has(processor))?;
    let config = match core {
        Core::Big => row.big,
        Core::Small => row.small?,
    };
    Some((row.name, config))
}

impl Row {
    fn has(&self, processor: Processor) -> bool {
        let model = processor.model;
        (*self.vendor, self.family) == (processor.vendor, processor.family)
            && self.models.iter().any(|&(first, last)| (first..=last).contains(&model))
    }
}

impl Processor {
    /// From the answers (eax, ebx, ecx, edx) to CPUID leaves 0 and 1 (Intel SDM, volume 2A, CPUID).
    pub(crate) fn new([_, ebx, ecx, edx]: [u32; 4], [signature, ..]: [u32; 4]) -> Self {
        let mut vendor = [0; 12];
        for (to, word) in vendor.chunks_exact_mut(4).zip([ebx, edx, ecx]) {
            to.copy_from_slice(&word.to_le_bytes());
        }
        let field = |shift: u32, mask: u32| (signature >> shift & mask) as u8;
        let (base, extended) = (field(8, 0xF), field(20, 0xFF));
        let family = u16::from(base) + if base == 0xF { u16::from(extended) } else { 0 };
        let extends = matches!(base, 0x6 | 0xF);
        let model = field(4, 0xF) | if extends { field(16, 0xF) << 4 } else { 0 };
        Self { vendor, family, model }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_processor_has_one_row() {
        let mut known = 0;
        for vendor in [*INTEL, *AMD] {
            for family in [6, 0x17, 0x19, 0x1A] {
                for model in 0..=u8::MAX {
                    let processor = Processor { vendor, family, model };
                    let rows: Vec<&str> =
                        ROWS.iter().filter(|row| row.has(processor)).map(|row| row.name).collect();
                    assert!(rows.len() <= 1, "{processor:x?} is {rows:?}");
                    known += rows.len();
                }
            }
        }
        assert!(known > 600, "{known}");
    }

    #[test]
    fn signatures_are_decoded_and_found() {
        #[track_caller]
        fn check(vendor: &[u8; 12], signature: u32, core: Core, expected: Option<(&str, u64)>) {
            let word =
                |at: usize| u32::from_le_bytes([vendor[at], vendor[at + 1], vendor[at + 2], vendor[at + 3]]);
            let processor = Processor::new([0, word(0), word(8), word(4)], [signature, 0, 0, 0]);
            assert_eq!(code(processor, core), expected, "{processor:x?}");
        }
        check(INTEL, 0x106A5, Core::Big, Some(("Nehalem", 0x1C4)));
        check(INTEL, 0x506E3, Core::Big, Some(("Skylake", 0x1C4)));
        check(INTEL, 0x806F8, Core::Big, Some(("Sapphire Rapids", 0x11C4)));
        check(INTEL, 0x906A3, Core::Big, Some(("Alder Lake", 0x11C4)));
        check(INTEL, 0x906A3, Core::Small, Some(("Alder Lake", 0x7EC4)));
        check(INTEL, 0xB06D1, Core::Big, Some(("Lunar Lake", 0x100_0000_11C4)));
        check(INTEL, 0x506E3, Core::Small, None);
        // Before Nehalem, and another vendor's.
        check(INTEL, 0x6FB, Core::Big, None);
        check(b"HygonGenuine", 0x900F01, Core::Big, None);
        check(AMD, 0x830F10, Core::Big, Some(("Zen 2", 0xD1)));
        check(AMD, 0xA20F12, Core::Big, Some(("Zen 3", 0xD1)));
        check(AMD, 0xA60F12, Core::Big, Some(("Zen 4", 0xD1)));
        check(AMD, 0xB40F40, Core::Big, Some(("Zen 5", 0xD1)));
        check(AMD, 0x600F20, Core::Big, None);
    }
}
