//! The registers as gdb numbers them: the target description, and the packet bytes of a register file. Read only:
//! nothing turns packet bytes into registers, since a recording cannot be changed.
//!
//! Numbers and layouts follow gdb's `features/i386/64bit-{core,sse,linux,segments,avx,avx512}.xml`.

use std::num::NonZeroUsize;

use gdbstub::arch::{Arch, RegId, Registers as GdbRegisters};
use guest::{Registers, XState};

use crate::xsave::{Xsave, has_avx512};

/// x86-64 Linux with SSE, AVX, AVX-512 where this processor has it, `orig_rax` and segment bases.
#[derive(Debug)]
pub enum Amd64 {}

impl Arch for Amd64 {
    type Usize = u64;
    type Registers = RegisterFile;
    type BreakpointKind = usize;
    type RegId = Register;
}

/// Number of registers without those of AVX-512.
const AVX: usize = 16 + 8 + 8 + 8 + 16 + 1 + 1 + 2 + 16;
/// The first of `xmm16` and on, of the upper halves of `ymm16` and on, of the opmasks, of the upper halves of `zmm0` and on.
const XMM16: usize = AVX;
const YMM16_HIGH: usize = XMM16 + 16;
const OPMASK: usize = YMM16_HIGH + 16;
const ZMM_HIGH: usize = OPMASK + 8;

/// Number of registers in the description.
fn count() -> usize {
    if has_avx512() { ZMM_HIGH + 32 } else { AVX }
}

/// A register by gdb's number.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Register(pub usize);

impl Register {
    /// Width in bytes.
    const fn width(self) -> usize {
        match self.0 {
            0..=16 => 8,
            17..=23 => 4,
            24..=31 => 10,
            32..=39 => 4,
            40..=55 => 16,
            56 => 4,
            57..=59 | OPMASK..ZMM_HIGH => 8,
            60..OPMASK => 16,
            _ => 32,
        }
    }
}

impl RegId for Register {
    fn from_raw_id(id: usize) -> Option<(Self, Option<NonZeroUsize>)> {
        let register = Self(id);
        (id < count()).then(|| (register, NonZeroUsize::new(register.width())))
    }

    fn to_raw_id(&self) -> Option<usize> {
        Some(self.0)
    }
}

/// All registers of a task, as packet bytes.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct RegisterFile {
    bytes: Vec<u8>,
    pc: u64,
}

impl RegisterFile {
    /// The packet bytes of a task's registers.
    pub fn new(general: &Registers, extended: &XState) -> Self {
        let mut bytes = Vec::with_capacity(2460);
        for number in 0..count() {
            let register = Register(number);
            let value = value(register, general, extended);
            bytes.extend_from_slice(&value[..register.width()]);
        }
        Self { bytes, pc: general.rip }
    }

    /// One register's bytes.
    pub fn register(&self, register: Register) -> Option<&[u8]> {
        let start = (0..register.0).map(|number| Register(number).width()).sum();
        self.bytes.get(start..)?.get(..register.width())
    }
}

impl GdbRegisters for RegisterFile {
    type ProgramCounter = u64;

    fn pc(&self) -> u64 {
        self.pc
    }

    fn gdb_serialize(&self, mut write_byte: impl FnMut(Option<u8>)) {
        self.bytes.iter().for_each(|&byte| write_byte(Some(byte)));
    }

    /// Keeps the bytes so that they can be refused; never loaded anywhere.
    fn gdb_deserialize(&mut self, bytes: &[u8]) -> Result<(), ()> {
        self.bytes = bytes.to_vec();
        Ok(())
    }
}

/// A register's value, little-endian, padded with zeroes.
fn value(register: Register, general: &Registers, extended: &XState) -> [u8; 32] {
    let state = Xsave(&extended.0);
    let value = match register.0 {
        number @ ZMM_HIGH.. => return state.zmm_high(number - ZMM_HIGH),
        number @ 0..=23 => word(general_register(number, general)),
        number @ 24..=31 => state.st(number - 24),
        number @ 32..=39 => word(u64::from(state.x87_control(number - 32))),
        number @ 40..=55 => state.xmm(number - 40),
        56 => word(u64::from(state.mxcsr())),
        57 => word(general.orig_rax),
        58 => word(general.fs_base),
        59 => word(general.gs_base),
        number @ 60..AVX => state.ymm_high(number - 60),
        number @ XMM16..YMM16_HIGH => state.quarter(16 + number - XMM16, 0),
        number @ YMM16_HIGH..OPMASK => state.quarter(16 + number - YMM16_HIGH, 1),
        number @ OPMASK.. => word(u64::from_le_bytes(state.opmask(number - OPMASK))),
    };
    let mut bytes = [0; 32];
    bytes[..16].copy_from_slice(&value);
    bytes
}

fn word(value: u64) -> [u8; 16] {
    u128::from(value).to_le_bytes()
}

fn general_register(number: usize, r: &Registers) -> u64 {
    let in_order = [
        r.rax, r.rbx, r.rcx, r.rdx, r.rsi, r.rdi, r.rbp, r.rsp, r.r8, r.r9, r.r10, r.r11, r.r12, r.r13,
        r.r14, r.r15, r.rip, r.eflags, r.cs, r.ss, r.ds, r.es, r.fs, r.gs,
    ];
    in_order[number]
}

/// The target description that gdb reads.
pub(crate) fn target_xml() -> String {
    let mut xml = String::from(
        "<?xml version=\"1.0\"?><!DOCTYPE target SYSTEM \"gdb-target.dtd\"><target version=\"1.0\">\
         <architecture>i386:x86-64</architecture><osabi>GNU/Linux</osabi>",
    );
    feature(&mut xml, "core", CORE_TYPES, &core());
    feature(&mut xml, "sse", &format!("{SSE_VECTORS}{MXCSR}"), &sse());
    feature(&mut xml, "linux", "", &[entry("orig_rax", 64, "int", Some("system"))]);
    let bases = ["fs_base", "gs_base"].map(|name| entry(name, 64, "int", None));
    feature(&mut xml, "segments", "", &bases);
    let high: Vec<String> = (0..16).map(|i| entry(&format!("ymm{i}h"), 128, "uint128", None)).collect();
    feature(&mut xml, "avx", "", &high);
    if has_avx512() {
        feature(&mut xml, "avx512", &format!("{SSE_VECTORS}{AVX512_TYPES}"), &avx512());
    }
    xml.push_str("</target>");
    xml
}

const CORE_TYPES: &str = "<flags id=\"i386_eflags\" size=\"4\"><field name=\"\" start=\"22\" end=\"31\"/>\
<field name=\"CF\" start=\"0\" end=\"0\"/><field name=\"\" start=\"1\" end=\"1\"/>\
<field name=\"PF\" start=\"2\" end=\"2\"/><field name=\"AF\" start=\"4\" end=\"4\"/>\
<field name=\"ZF\" start=\"6\" end=\"6\"/><field name=\"SF\" start=\"7\" end=\"7\"/>\
<field name=\"TF\" start=\"8\" end=\"8\"/><field name=\"IF\" start=\"9\" end=\"9\"/>\
<field name=\"DF\" start=\"10\" end=\"10\"/><field name=\"OF\" start=\"11\" end=\"11\"/>\
<field name=\"NT\" start=\"14\" end=\"14\"/><field name=\"RF\" start=\"16\" end=\"16\"/>\
<field name=\"VM\" start=\"17\" end=\"17\"/><field name=\"AC\" start=\"18\" end=\"18\"/>\
<field name=\"VIF\" start=\"19\" end=\"19\"/><field name=\"VIP\" start=\"20\" end=\"20\"/>\
<field name=\"ID\" start=\"21\" end=\"21\"/></flags>";

const SSE_VECTORS: &str = "<vector id=\"v8bf16\" type=\"bfloat16\" count=\"8\"/>\
<vector id=\"v4f\" type=\"ieee_single\" count=\"4\"/><vector id=\"v2d\" type=\"ieee_double\" count=\"2\"/>\
<vector id=\"v16i8\" type=\"int8\" count=\"16\"/><vector id=\"v8i16\" type=\"int16\" count=\"8\"/>\
<vector id=\"v4i32\" type=\"int32\" count=\"4\"/><vector id=\"v2i64\" type=\"int64\" count=\"2\"/>\
<union id=\"vec128\"><field name=\"v8_bfloat16\" type=\"v8bf16\"/><field name=\"v4_float\" type=\"v4f\"/>\
<field name=\"v2_double\" type=\"v2d\"/><field name=\"v16_int8\" type=\"v16i8\"/>\
<field name=\"v8_int16\" type=\"v8i16\"/><field name=\"v4_int32\" type=\"v4i32\"/>\
<field name=\"v2_int64\" type=\"v2i64\"/><field name=\"uint128\" type=\"uint128\"/></union>";

const MXCSR: &str = "<flags id=\"i386_mxcsr\" size=\"4\"><field name=\"IE\" start=\"0\" end=\"0\"/>\
<field name=\"DE\" start=\"1\" end=\"1\"/><field name=\"ZE\" start=\"2\" end=\"2\"/>\
<field name=\"OE\" start=\"3\" end=\"3\"/><field name=\"UE\" start=\"4\" end=\"4\"/>\
<field name=\"PE\" start=\"5\" end=\"5\"/><field name=\"DAZ\" start=\"6\" end=\"6\"/>\
<field name=\"IM\" start=\"7\" end=\"7\"/><field name=\"DM\" start=\"8\" end=\"8\"/>\
<field name=\"ZM\" start=\"9\" end=\"9\"/><field name=\"OM\" start=\"10\" end=\"10\"/>\
<field name=\"UM\" start=\"11\" end=\"11\"/><field name=\"PM\" start=\"12\" end=\"12\"/>\
<field name=\"FZ\" start=\"15\" end=\"15\"/></flags>";

fn feature(xml: &mut String, name: &str, types: &str, entries: &[String]) {
    xml.push_str(&format!("<feature name=\"org.gnu.gdb.i386.{name}\">{types}{}</feature>", entries.concat()));
}

fn entry(name: &str, bits: u32, kind: &str, group: Option<&str>) -> String {
    let group = group.map_or(String::new(), |group| format!(" group=\"{group}\""));
    format!("<reg name=\"{name}\" bitsize=\"{bits}\" type=\"{kind}\"{group}/>")
}

fn core() -> Vec<String> {
    let plain = ["rax", "rbx", "rcx", "rdx", "rsi", "rdi"].map(|name| entry(name, 64, "int64", None));
    let mut all = plain.to_vec();
    all.extend(["rbp", "rsp"].map(|name| entry(name, 64, "data_ptr", None)));
    all.extend((8..16).map(|i| entry(&format!("r{i}"), 64, "int64", None)));
    all.push(entry("rip", 64, "code_ptr", None));
    all.push(entry("eflags", 32, "i386_eflags", None));
    all.extend(["cs", "ss", "ds", "es", "fs", "gs"].map(|name| entry(name, 32, "int32", None)));
    all.extend((0..8).map(|i| entry(&format!("st{i}"), 80, "i387_ext", None)));
    let control = ["fctrl", "fstat", "ftag", "fiseg", "fioff", "foseg", "fooff", "fop"];
    all.extend(control.map(|name| entry(name, 32, "int", Some("float"))));
    all
}

fn avx512() -> Vec<String> {
    let each = |numbers: std::ops::Range<usize>, name: fn(usize) -> String, bits, kind| {
        numbers.map(move |number| entry(&name(number), bits, kind, None)).collect::<Vec<_>>()
    };
    [
        each(16..32, |i| format!("xmm{i}"), 128, "vec128"),
        each(16..32, |i| format!("ymm{i}h"), 128, "uint128"),
        each(0..8, |i| format!("k{i}"), 64, "uint64"),
        each(0..32, |i| format!("zmm{i}h"), 256, "v2ui128"),
    ]
    .concat()
}

const AVX512_TYPES: &str = "<vector id=\"v2ui128\" type=\"uint128\" count=\"2\"/>";

fn sse() -> Vec<String> {
    let mut all: Vec<String> = (0..16).map(|i| entry(&format!("xmm{i}"), 128, "vec128", None)).collect();
    all.push(entry("mxcsr", 32, "i386_mxcsr", Some("vector")));
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_description_agrees_with_the_layout() {
        let xml = target_xml();
        let widths: Vec<usize> = xml
            .split("<reg ")
            .skip(1)
            .map(|reg| reg.split("bitsize=\"").nth(1).unwrap().split('"').next().unwrap().parse().unwrap())
            .collect();
        let expected: Vec<usize> = (0..count()).map(|number| Register(number).width() * 8).collect();
        assert_eq!(widths, expected);
    }

    #[test]
    fn registers_lie_where_gdb_looks_for_them() {
        let words = std::array::from_fn(|i| 0x1000 + i as u64);
        let general = Registers::from_words(words);
        let file = RegisterFile::new(&general, &XState::default());
        let read = |number| u64::from_le_bytes(file.register(Register(number)).unwrap().try_into().unwrap());
        let pairs = [(0, general.rax), (7, general.rsp), (15, general.r15), (16, general.rip)];
        for (number, expected) in pairs.into_iter().chain([(57, general.orig_rax), (58, general.fs_base)]) {
            assert_eq!(read(number), expected, "register {number}");
        }
        assert_eq!(file.register(Register(AVX - 1)).unwrap().len(), 16);
        assert_eq!(file.register(Register(count())), None);
    }
}
