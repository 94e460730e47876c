//! The dynamic linker finds a function at its first call. It saves the registers on the stack meanwhile, as an image of which the
//! processor decides what it writes ([`crate::saved_state`]), and leaves that there: threads then stand at points whose memory no replay has,
//! long after the image can be told from what was written over it.
//!
//! So the two places in the linker where this is done are rewritten at an exec, to lead to instructions in the page of ours, which have
//! the image zeroed before and what the processor noted in it afterwards. The page is then a part of the program's memory, and replayed.

use std::collections::HashMap;

use guest::{COMPACTED, GuestAddr, GuestMemory, GuestRange, Unmapped, image_len};
use patch::LowAddr;
use ptrace::Memory;
use trace::TraceWriter;

use crate::image::{MappedFiles, OpenedFile};
use crate::procfs::{FilePart, Mapping};
use crate::session::Core;

/// Components that the linker saves: what functions' arguments may lie in.
const SAVED: u64 = 0xee;
/// Longer code is not the linker's.
const LONGEST: u64 = 1 << 20;
/// Bytes of it that are looked at together.
const PART: usize = 16 << 10;
/// Where it has the image on its stack, and in that what the processor notes: which components were in use, and how SSE was set.
const IMAGE: u8 = 0x40;
const USED: u32 = IMAGE as u32 + 512;
const SETTING: u8 = IMAGE + 24;
/// Bytes for each place: where it goes on, and the instructions.
const ROOM: usize = 64;

/// One of the places.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Place {
    /// `mov [rsp + 0x278], rdx; xsavec [rsp + 0x40]`: what was zeroed before, and the image.
    Save,
    /// `xor edx, edx; xrstor [rsp + 0x40]`
    Restore,
}

const SAVE: [u8; 13] = [0x48, 0x89, 0x94, 0x24, 0x78, 2, 0, 0, 0x0f, 0xc7, 0x64, 0x24, IMAGE];
const RESTORE: [u8; 7] = [0x31, 0xd2, 0x0f, 0xae, 0x6c, 0x24, IMAGE];
/// Sets the mask that goes with [`Place::Restore`], which comes right before it, and keeps the function that was found.
const BEFORE_RESTORE: [u8; 8] = [0x49, 0x89, 0xc3, 0xb8, SAVED as u8, 0, 0, 0];

impl Place {
    fn name(self) -> &'static str {
        match self {
            Self::Save => "save",
            Self::Restore => "restore",
        }
    }

    fn code(self) -> &'static [u8] {
        match self {
            Self::Save => &SAVE,
            Self::Restore => &RESTORE,
        }
    }

    /// The instructions that stand for it. The first arguments are saved elsewhere already, so their registers are free.
    fn instead(self, components: u64) -> Vec<u8> {
        match self {
            Self::Save => {
                let words = image_len(COMPACTED | components) as u32 / 8;
                [
                    &[0x89, 0xc6][..],                // mov esi, eax
                    &[0x48, 0x8d, 0x7c, 0x24, IMAGE], // lea rdi, [rsp + IMAGE]
                    &[0xb9],                          // mov ecx, words
                    &words.to_le_bytes(),
                    &[0x31, 0xc0],       // xor eax, eax
                    &[0xf3, 0x48, 0xab], // rep stosq
                    &[0x89, 0xf0],       // mov eax, esi
                    &SAVE[8..],
                ]
                .concat()
            }
            Self::Restore => [
                &RESTORE[..],
                &[0x48, 0x89, 0x94, 0x24], // mov [rsp + USED], rdx
                &USED.to_le_bytes(),
                &[0x48, 0x89, 0x54, 0x24, SETTING], // mov [rsp + SETTING], rdx
            ]
            .concat(),
        }
    }
}

/// Where in the code of files the places are.
#[derive(Debug, Default)]
pub(crate) struct Resolvers(HashMap<FilePart, Vec<(u64, Place)>>);

/// Rewrites the places in the linker that a new program starts in, at `pc`. What then lies in the page from [`abi::RESOLVER`] on; empty
/// where there are none. `features` are the components that the system has.
pub(crate) fn rewrite(
    core: &mut Core,
    memory: &Memory,
    files: &mut MappedFiles,
    mappings: &[Mapping],
    pc: GuestAddr,
    features: u64,
) -> Result<Vec<u8>, Unmapped> {
    let linker = mappings.iter().find(|mapping| mapping.range.contains(pc));
    let Some(mapping) = linker.filter(|mapping| mapping.inode != 0 && mapping.range.len() <= LONGEST) else {
        return Ok(Vec::new());
    };
    let key = mapping.part();
    let places = match core.resolvers.0.get(&key) {
        Some(places) => places.clone(),
        None => {
            let places = noted(&core.sink.writer, memory, files.get(mapping), mapping)?;
            core.resolvers.0.insert(key, places.clone());
            places
        }
    };
    let mut ours = Vec::new();
    for (at, place) in places {
        let at = mapping.range.start.wrapping_add(at);
        let old = place.code();
        // Another file may have the name and the number by now.
        if memory.read_vec(at, old.len())? != old {
            continue;
        }
        let slot = abi::RESOLVER + ours.len() as u64;
        let mut stub = (at.0 + old.len() as u64).to_le_bytes().to_vec();
        let code = slot + stub.len() as u64;
        stub.extend(place.instead(features & SAVED));
        stub.extend(through(slot));
        // Where the code begins has a slot of its own, which the jump in the linker reads.
        let entry = slot + ROOM as u64 - 8;
        stub.resize(ROOM - 8, 0xcc);
        stub.extend(code.to_le_bytes());
        ours.extend(stub);
        let mut jump = through(entry);
        jump.resize(old.len(), 0x90);
        memory.write(at, &jump)?;
    }
    memory.write(GuestAddr(abi::RESOLVER), &ours)?;
    Ok(ours)
}

/// The places in a mapping of a file, as an earlier recording found them; else they are looked for, and noted.
fn noted(
    writer: &TraceWriter,
    memory: &Memory,
    file: Option<OpenedFile>,
    mapping: &Mapping,
) -> Result<Vec<(u64, Place)>, Unmapped> {
    let Some(opened) = file else { return find(memory, mapping.range) };
    let what = format!("-resolver-{:x}-{:x}", mapping.offset, mapping.range.len());
    if let Some(places) = writer.noted(&opened.0, &what).as_deref().and_then(from_note) {
        return Ok(places);
    }
    let places = find(memory, mapping.range)?;
    writer.note(&opened.0, &what, &to_note(&places));
    Ok(places)
}

/// As text, a line each: which of them, and where, hexadecimal; then the end.
fn to_note(places: &[(u64, Place)]) -> String {
    let line = |(at, place): &(u64, Place)| format!("{} {at:x}\n", place.name());
    places.iter().map(line).collect::<String>() + END
}

fn from_note(text: &str) -> Option<Vec<(u64, Place)>> {
    let one = |line: &str| {
        let (name, at) = line.split_once(' ')?;
        let place = [Place::Save, Place::Restore].into_iter().find(|place| place.name() == name)?;
        Some((u64::from_str_radix(at, 16).ok()?, place))
    };
    text.strip_suffix(END)?.lines().map(one).collect()
}

const END: &str = "end\n";

/// A jump to where eight bytes in the page of ours say.
fn through(slot: u64) -> Vec<u8> {
    LowAddr::new(slot).map(patch::jump_through).expect("the page lies below 2 GiB")
}

/// The places in a range of code.
fn find(memory: &dyn GuestMemory, range: GuestRange) -> Result<Vec<(u64, Place)>, Unmapped> {
    let restore = [&BEFORE_RESTORE[..], &RESTORE].concat();
    let mut found = Vec::new();
    // By parts: what is read at once lies in memory that is new to this process.
    let mut part = vec![0; PART + restore.len() - 1];
    let mut from = 0;
    while from < range.len() {
        let bytes = part.len().min((range.len() - from) as usize);
        memory.read(range.start.wrapping_add(from), &mut part[..bytes])?;
        let mut note = |place, at: usize| {
            let at = (from + at as u64, place);
            if !found.contains(&at) {
                found.push(at);
            }
        };
        occurrences(&part[..bytes], &SAVE, |at| note(Place::Save, at));
        occurrences(&part[..bytes], &restore, |at| note(Place::Restore, at + BEFORE_RESTORE.len()));
        from += PART as u64;
    }
    found.sort_by_key(|(at, _)| *at);
    Ok(found)
}

/// Tells where a pattern begins in code. Looks at few bytes of it (Horspool's way): this is done for every program.
fn occurrences(code: &[u8], pattern: &[u8], mut tell: impl FnMut(usize)) {
    let last = pattern.len() - 1;
    let mut skips = [pattern.len(); 256];
    for (at, byte) in pattern[..last].iter().enumerate() {
        skips[usize::from(*byte)] = last - at;
    }
    let mut at = 0;
    while let Some(window) = code.get(at..at + pattern.len()) {
        if window == pattern {
            tell(at);
        }
        at += skips[usize::from(window[last])];
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Code at 0x1000.
    struct Code(Vec<u8>);

    impl GuestMemory for Code {
        fn read(&self, addr: GuestAddr, out: &mut [u8]) -> Result<(), Unmapped> {
            let at = (addr.0 - 0x1000) as usize;
            out.copy_from_slice(&self.0[at..at + out.len()]);
            Ok(())
        }
    }

    #[test]
    fn places_are_found_wherever_the_code_is_cut() {
        let restore = [&BEFORE_RESTORE[..], &RESTORE].concat();
        for shift in 0..2 * restore.len() {
            let mut code = vec![0x48; 3 * PART];
            let save = 2 * PART - restore.len() + shift;
            code[save..save + SAVE.len()].copy_from_slice(&SAVE);
            let at = PART - restore.len() + shift;
            code[at..at + restore.len()].copy_from_slice(&restore);
            let end = code.len() - restore.len();
            code[end..].copy_from_slice(&restore);
            let range = GuestRange::new(GuestAddr(0x1000), code.len() as u64);
            let found = find(&Code(code), range).unwrap();
            let skip = BEFORE_RESTORE.len();
            let expected = [(at + skip, Place::Restore), (save, Place::Save), (end + skip, Place::Restore)];
            assert_eq!(found, expected.map(|(at, place)| (at as u64, place)), "shift {shift}");
            assert_eq!(from_note(&to_note(&found)).as_ref(), Some(&found));
            assert_eq!(from_note(to_note(&found).strip_suffix("nd\n").unwrap()), None);
        }
    }
}
