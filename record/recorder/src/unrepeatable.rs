//! Instructions whose results nothing tells, and no processor traps: `rdrand`, `rdseed`, `rdpid`.
//!
//! Where a part of a file is mapped to be executed, those in it are rewritten to begin with `hlt`, which is trapped, and are answered as
//! others are. Memory then shows that, as it does in a replay, where what runs is the program's own. What the
//! program makes itself, and what is found in no function of a file, runs as it is, and a replay refuses it.

mod find;

use std::collections::{BTreeMap, HashMap};
use std::fs::{File, Metadata};
use std::io::{self, Read as _};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::rc::Rc;

use guest::{GuestAddr, GuestMemory, GuestRange, Prot, Registers};
use iced_x86::{Decoder, DecoderOptions, Instruction, Mnemonic};
use kernel::MapCall;
use ptrace::Memory;
use trace::{Machine, MapOp, TraceWriter, Trapped};

use crate::image::MappedFiles;
use crate::procfs::Mapping;
use crate::session::Core;
use crate::task::{Space, Task};
use crate::{follow, procfs};

use find::Found;

/// The first byte of what they are rewritten to.
const HLT: u8 = 0xf4;

/// What one space has of them.
#[derive(Clone, Debug, Default)]
pub(crate) struct Sites {
    /// The bytes of those that are rewritten, by address.
    own: BTreeMap<u64, Vec<u8>>,
    /// Mappings in which there are some.
    mappings: Vec<GuestRange>,
}

/// A part of a file in one state.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
struct Part {
    file: (u64, u64),
    size: u64,
    changed: [(i64, i64); 2],
    offset: u64,
    len: u64,
}

/// Those in files.
#[derive(Debug)]
pub(crate) struct Unrepeatable {
    /// Which the processor has, and programs are told of.
    has: Vec<Mnemonic>,
    known: HashMap<Part, Rc<[Found]>>,
}

impl Unrepeatable {
    /// None yet, on a machine.
    pub(crate) fn on(machine: &Machine) -> Self {
        let [[_, _, first, _], [_, seventh, more, _]] =
            [1, 7].map(|leaf| machine.cpuid(leaf, 0).unwrap_or_default());
        let has = [
            (Mnemonic::Rdrand, first >> 30 & 1 == 1),
            (Mnemonic::Rdseed, seventh >> 18 & 1 == 1),
            (Mnemonic::Rdpid, more >> 22 & 1 == 1),
        ];
        let has = has.into_iter().filter_map(|(mnemonic, there)| there.then_some(mnemonic)).collect();
        Self { has, known: HashMap::new() }
    }

    /// Those in a part of a file.
    fn of_part(
        &mut self,
        writer: &TraceWriter,
        file: &File,
        meta: &Metadata,
        (offset, len): (u64, u64),
    ) -> Rc<[Found]> {
        if self.has.is_empty() {
            return Rc::default();
        }
        let changed = [(meta.mtime(), meta.mtime_nsec()), (meta.ctime(), meta.ctime_nsec())];
        let part = Part { file: (meta.dev(), meta.ino()), size: meta.size(), changed, offset, len };
        if let Some(known) = self.known.get(&part) {
            return Rc::clone(known);
        }
        let note = format!("-unrepeatable-{offset:x}-{len:x}");
        let noted = writer.noted(file, &note);
        let mut found = noted.as_deref().and_then(from_note).unwrap_or_else(|| {
            let read = |at: u64, into: &mut [u8]| read(file, at, into);
            let found = find::find(&read, offset, len.min(meta.size().saturating_sub(offset)));
            writer.note(file, &note, &to_note(&found));
            found
        });
        found.retain(|one| self.has.contains(&decoded(&one.bytes).mnemonic()));
        let found: Rc<[Found]> = found.into();
        // Else a change after now might not show in the times.
        if noted.is_some() {
            self.known.insert(part, Rc::clone(&found));
        }
        found
    }
}

/// As text, a line each: offset and bytes, hexadecimal; then the end.
fn to_note(found: &[Found]) -> String {
    let mut text = String::new();
    for Found { offset, bytes } in found {
        let bytes: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        text += &format!("{offset:x} {bytes}\n");
    }
    text + END
}

const END: &str = "end\n";

fn from_note(text: &str) -> Option<Vec<Found>> {
    let one = |line: &str| {
        let (offset, digits) = line.split_once(' ')?;
        let byte = |at| u8::from_str_radix(digits.get(at..at + 2)?, 16).ok();
        let bytes = (0..digits.len()).step_by(2).map(byte).collect::<Option<Vec<u8>>>()?;
        let found = Found { offset: u64::from_str_radix(offset, 16).ok()?, bytes };
        is_whole(&found.bytes).then_some(found)
    };
    text.strip_suffix(END)?.lines().map(one).collect()
}

/// Whether bytes are one of the instructions, and nothing else.
fn is_whole(bytes: &[u8]) -> bool {
    let instruction = decoded(bytes);
    instruction.len() == bytes.len() && find::is_wanted(&instruction)
}

/// As many bytes of a file as there are.
fn read(file: &File, at: u64, into: &mut [u8]) -> usize {
    let mut done = 0;
    while done < into.len() {
        match file.read_at(&mut into[done..], at + done as u64) {
            Ok(0) => break,
            Ok(read) => done += read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(_) => break,
        }
    }
    done
}

pub(crate) fn decoded(bytes: &[u8]) -> Instruction {
    Decoder::new(64, bytes, DecoderOptions::NONE).decode()
}

fn is_executed(prot: Prot) -> bool {
    prot.exec && !prot.write
}

/// A part of a file is mapped, private. What is rewritten in it.
pub(crate) fn mapped(
    core: &mut Core,
    space: &Space,
    (file, meta): (&File, &Metadata),
    (range, offset, prot): (GuestRange, u64, Prot),
) -> Vec<MapOp> {
    if !is_executed(prot) || !meta.is_file() {
        return Vec::new();
    }
    let found = core.unrepeatable.of_part(&core.sink.writer, file, meta, (offset, range.len()));
    rewrite(&space.memory, &mut space.unrepeatable.borrow_mut(), &found, (range, offset))
}

/// The same of what a new program begins with.
pub(crate) fn in_new(
    core: &mut Core,
    memory: &Memory,
    files: &mut MappedFiles,
    mappings: &[Mapping],
) -> (Sites, Vec<MapOp>) {
    let mut sites = Sites::default();
    let mut ops = Vec::new();
    for mapping in mappings {
        ops.extend(in_mapping(core, memory, files, &mut sites, mapping));
    }
    (sites, ops)
}

fn in_mapping(
    core: &mut Core,
    memory: &Memory,
    files: &mut MappedFiles,
    sites: &mut Sites,
    mapping: &Mapping,
) -> Vec<MapOp> {
    let of_file = mapping.inode != 0 && mapping.name.starts_with('/');
    if !of_file || mapping.shared || !is_executed(mapping.prot) {
        return Vec::new();
    }
    let Some(opened) = files.get(mapping) else { return Vec::new() };
    let (file, meta) = &*opened;
    let part = (mapping.offset, mapping.range.len());
    let found = core.unrepeatable.of_part(&core.sink.writer, file, meta, part);
    rewrite(memory, sites, &found, (mapping.range, mapping.offset))
}

/// Rewrites what was found in a part of a file that is mapped.
fn rewrite(
    memory: &Memory,
    sites: &mut Sites,
    found: &[Found],
    (range, offset): (GuestRange, u64),
) -> Vec<MapOp> {
    let mut ops = Vec::new();
    if !found.is_empty() && !sites.mappings.contains(&range) {
        sites.mappings.push(range);
    }
    for Found { offset: at, bytes: own } in found {
        let addr = range.start.wrapping_add(at - offset);
        let within = addr.0 + own.len() as u64 <= range.end.0;
        if !within || !memory.read_vec(addr, own.len()).is_ok_and(|now| now == *own) {
            continue;
        }
        if memory.write(addr, &[HLT]).is_ok() {
            sites.own.insert(addr.0, own.clone());
            ops.push(MapOp::Rewrite { addr, shown: shown(own), own: own.clone() });
        }
    }
    ops
}

/// What memory has in an instruction's place.
fn shown(own: &[u8]) -> Vec<u8> {
    [&[HLT], &own[1..]].concat()
}

/// A call is about to move mappings, or to drop what they hold: what lies there is put back, which belongs to its return.
pub(crate) fn before_map(task: &Task, kind: MapCall, args: &[u64; 6]) {
    if !matches!(kind, MapCall::Mremap | MapCall::Discard | MapCall::DiscardLater) {
        return;
    }
    let mut sites = task.space.unrepeatable.borrow_mut();
    let end = args[0].saturating_add(args[1]);
    for (at, own) in sites.own.extract_if(args[0].min(end)..end, |_, _| true) {
        let (addr, shown) = (GuestAddr(at), shown(&own));
        let is_there = task.space.memory.read_vec(addr, own.len()).is_ok_and(|now| now == shown);
        if is_there && task.space.memory.write(addr, &own).is_ok() {
            task.space.owed.borrow_mut().push(MapOp::Rewrite { addr, shown: own.clone(), own });
        }
    }
}

/// A call has changed mappings otherwise than by making them: what is rewritten in those of a range of files that can be executed now.
pub(crate) fn after_map(core: &mut Core, task: &Task, range: GuestRange) -> Vec<MapOp> {
    let mut sites = task.space.unrepeatable.borrow_mut();
    if !follow::shows_file(&task.space, range) && !sites.mappings.iter().any(|known| known.overlaps(range)) {
        return Vec::new();
    }
    let Ok(mappings) = procfs::maps(task.host) else { return Vec::new() };
    let mut ops = Vec::new();
    let mut files = MappedFiles::of(task.host);
    for mapping in mappings.iter().filter(|mapping| mapping.range.overlaps(range)) {
        ops.extend(in_mapping(core, &task.space.memory, &mut files, &mut sites, mapping));
    }
    ops
}

/// Puts into bytes that were read at an address what was there before.
pub(crate) fn put_own(space: &Space, at: u64, bytes: &mut [u8]) {
    let end = at + bytes.len() as u64;
    for (site, own) in space.unrepeatable.borrow().own.range(at..end) {
        let place = bytes.get_mut((site - at) as usize..).unwrap_or_default();
        if place.starts_with(&shown(own)) {
            place[0] = own[0];
        }
    }
}

/// Which instruction lies at a pc, if it is one that was rewritten, and its own bytes.
pub(crate) fn at(task: &Task, pc: GuestAddr) -> Option<(Trapped, Vec<u8>)> {
    let own = task.space.unrepeatable.borrow().own.get(&pc.0)?.clone();
    let now = task.space.memory.read_vec(pc, own.len()).ok()?;
    let kind = match decoded(&own).mnemonic() {
        Mnemonic::Rdrand => Trapped::Rdrand,
        Mnemonic::Rdseed => Trapped::Rdseed,
        Mnemonic::Rdpid => Trapped::Rdpid,
        _ => return None,
    };
    (now == shown(&own)).then_some((kind, own))
}

/// Puts into the registers what an instruction that draws a number would: one, and that there was one.
pub(crate) fn draw(own: &[u8], regs: &mut Registers) -> io::Result<()> {
    /// Carry, parity, adjust, zero, sign, overflow.
    const FLAGS: u64 = 0x8d5;
    const CARRY: u64 = 1;
    put(random()?, own, regs);
    regs.eflags = regs.eflags & !FLAGS | CARRY;
    Ok(())
}

/// Puts a number into the register that an instruction names.
pub(crate) fn put(number: u64, own: &[u8], regs: &mut Registers) {
    let register = decoded(own).op0_register();
    let name = format!("{:?}", register.full_register()).to_lowercase();
    let mut words = regs.to_words();
    let place = Registers::NAMES.iter().position(|known| *known == name).expect("it is a general register");
    words[place] = match register.size() {
        2 => words[place] & !0xffff | number & 0xffff,
        4 => number & 0xffff_ffff,
        _ => number,
    };
    *regs = Registers::from_words(words);
}

fn random() -> io::Result<u64> {
    let mut bytes = [0; 8];
    File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    Ok(u64::from_le_bytes(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn notes_say_what_was_found() {
        let found = [(0x1234, vec![0x0f, 0xc7, 0xf0]), (0x5678, vec![0xf3, 0x0f, 0xc7, 0xf9])];
        let found = found.map(|(offset, bytes)| Found { offset, bytes });
        assert_eq!(from_note(&to_note(&found)).as_deref(), Some(&found[..]));
        assert_eq!(from_note(&to_note(&[])), Some(Vec::new()));
        for bad in
            ["", "12 0fc7f0\n", "12 0fc7\nend\n", "12 0fc7f090\nend\n", "12 90\nend\n", "x 0fc7f0\nend\n"]
        {
            assert_eq!(from_note(bad), None, "{bad}");
        }
    }

    #[test]
    fn answers_are_as_wide_as_the_register() {
        const FLAGS: u64 = 0x8d5;
        let before = Registers { rdi: 0x1122_3344_5566_7788, eflags: FLAGS | 2, ..Registers::default() };
        // rdrand di; rdrand edi; rdrand rdi
        for (own, kept) in [
            (&[0x66, 0x0f, 0xc7, 0xf7][..], !0xffff),
            (&[0x0f, 0xc7, 0xf7], 0),
            (&[0x48, 0x0f, 0xc7, 0xf7], 0),
        ] {
            let mut regs = before;
            draw(own, &mut regs).unwrap();
            assert_eq!((regs.rdi & kept, regs.eflags), (before.rdi & kept, 3), "{own:02x?}");
            assert_eq!(regs.rdi >> 32 == 0, own.len() == 3, "{own:02x?}");
            assert_ne!(regs.rdi, before.rdi);
            assert_eq!(Registers { rdi: before.rdi, eflags: before.eflags, ..regs }, before);
        }
    }
}
