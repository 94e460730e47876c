//! Finds `rdrand`, `rdseed` and `rdpid` in the code of a file, where it is certain that they are instructions.
//!
//! Their bytes occur in other instructions and in data, too. So the function around them is asked of the file's table of unwind
//! entries, and decoded from its start along its branches. What is not reached so (the arms of a `switch`, what only handles exceptions)
//! is believed where it follows such an instruction, decodes to where the next one begins, and looks at the carry flag, which
//! says whether there was a number.

use iced_x86::{Decoder, DecoderOptions, FlowControl, Instruction, Mnemonic, RflagsBits};

/// Reads a part of the file, as much as there is; returns the number of bytes.
pub(super) type Read<'a> = &'a dyn Fn(u64, &mut [u8]) -> usize;

fn read_vec(read: Read<'_>, at: u64, len: usize) -> Option<Vec<u8>> {
    let mut bytes = vec![0; len];
    (read(at, &mut bytes) == len).then_some(bytes)
}

/// One of the instructions.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Found {
    /// Where in the file.
    pub(super) offset: u64,
    pub(super) bytes: Vec<u8>,
}

/// Longer functions are not decoded.
const LONGEST: u64 = 1 << 20;

/// Those in a part of a file.
pub(super) fn find(read: Read<'_>, start: u64, len: u64) -> Vec<Found> {
    let candidates = candidates(read, start, len);
    if candidates.is_empty() {
        return Vec::new();
    }
    let Some(layout) = Layout::of(read) else { return Vec::new() };
    let mut found: Vec<Found> = Vec::new();
    let mut seen = 0;
    for candidate in candidates {
        if candidate < seen {
            continue;
        }
        let Some((function, bytes)) = layout.function(read, candidate) else { continue };
        seen = function + bytes.len() as u64;
        found.extend(
            in_function(&bytes)
                .into_iter()
                .map(|(at, len)| Found { offset: function + at as u64, bytes: bytes[at..at + len].to_vec() }),
        );
    }
    found.retain(|one| start <= one.offset && one.offset + one.bytes.len() as u64 <= start + len);
    found
}

/// Where the bytes that all of them have in common lie in a part of a file.
fn candidates(read: Read<'_>, start: u64, len: u64) -> Vec<u64> {
    const CHUNK: u64 = 64 << 10;
    const COMMON: u64 = 3;
    let mut found = Vec::new();
    let mut bytes = vec![0; (CHUNK + COMMON - 1) as usize];
    let mut at = start;
    while at + COMMON <= start + len {
        let wanted = (start + len - at).min(bytes.len() as u64) as usize;
        let there = read(at, &mut bytes[..wanted]);
        found.extend(common(&bytes[..there]).map(|offset| at + offset as u64));
        if there < wanted {
            break;
        }
        at += CHUNK;
    }
    found
}

/// The same in bytes. Most blocks of them have none, which is told of a block at a time.
fn common(bytes: &[u8]) -> impl Iterator<Item = usize> {
    const BLOCK: usize = 256;
    let starts = bytes.len().saturating_sub(2);
    let is_one = |at: usize| bytes[at] == 0x0f && bytes[at + 1] == 0xc7 && bytes[at + 2] >= 0xf0;
    (0..starts).step_by(BLOCK).flat_map(move |block| {
        let end = (block + BLOCK).min(starts);
        let [first, second, third] = [0, 1, 2].map(|by| &bytes[block + by..end + by]);
        let any = first.iter().zip(second).zip(third).fold(0, |any, ((a, b), c)| {
            any | u8::from(*a == 0x0f) & u8::from(*b == 0xc7) & u8::from(*c >= 0xf0)
        });
        let within = if any == 0 { 0..0 } else { block..end };
        within.filter(move |at| is_one(*at))
    })
}

/// What an ELF file says of itself: where its parts are mapped, and where its table of unwind entries lies.
struct Layout {
    /// Offset in the file, address, length in the file.
    parts: Vec<(u64, u64, u64)>,
    /// Address of the table, and how many entries it has.
    table: (u64, u64),
}

impl Layout {
    /// Of what is laid out as linkers do (`elf.h`; Linux Standard Base, "Exception Frames").
    fn of(read: Read<'_>) -> Option<Self> {
        const LOAD: u32 = 1;
        const GNU_EH_FRAME: u32 = 0x6474_e550;
        const ENTRY: usize = 56;
        let head = read_vec(read, 0, 64)?;
        if head.get(..6)? != b"\x7fELF\x02\x01" {
            return None;
        }
        let count = usize::from(u16::from_le_bytes([*head.get(56)?, *head.get(57)?]));
        let entries = read_vec(read, word(&head, 32)?, count * ENTRY)?;
        let (mut parts, mut frames) = (Vec::new(), None);
        for entry in entries.chunks_exact(ENTRY) {
            let [offset, addr, len] = [8, 16, 32].map(|at| word(entry, at));
            match half(entry, 0)? {
                LOAD => parts.push((offset?, addr?, len?)),
                GNU_EH_FRAME => frames = addr,
                _ => {}
            }
        }
        let mut layout = Self { parts, table: (frames?, 0) };
        // Version 1, pointers of four bytes relative to themselves, a count of four, and a table relative to its head.
        let head = layout.read(read, layout.table.0, 12)?;
        if head.get(..4)? != [1, 0x1b, 0x03, 0x3b] {
            return None;
        }
        layout.table.1 = u64::from(half(&head, 8)?);
        Some(layout)
    }

    fn offset(&self, addr: u64) -> Option<u64> {
        let (offset, start, _) =
            self.parts.iter().find(|(_, start, len)| (*start..start + len).contains(&addr))?;
        Some(addr - start + offset)
    }

    fn addr(&self, offset: u64) -> Option<u64> {
        let (start, addr, _) =
            self.parts.iter().find(|(start, _, len)| (*start..start + len).contains(&offset))?;
        Some(offset - start + addr)
    }

    fn read(&self, read: Read<'_>, addr: u64, len: usize) -> Option<Vec<u8>> {
        read_vec(read, self.offset(addr)?, len)
    }

    /// The function around a place in the file: where it begins, and its bytes.
    fn function(&self, read: Read<'_>, offset: u64) -> Option<(u64, Vec<u8>)> {
        let (head, count) = self.table;
        let wanted = self.addr(offset)?;
        let entry = |index: u64| -> Option<[u64; 2]> {
            let bytes = self.read(read, head + 12 + 8 * index, 8)?;
            let relative = |at| Some(head.wrapping_add_signed(i64::from(half(&bytes, at)?.cast_signed())));
            Some([relative(0)?, relative(4)?])
        };
        let (mut low, mut high) = (0, count);
        while low < high {
            let middle = (low + high) / 2;
            match entry(middle)?[0] <= wanted {
                true => low = middle + 1,
                false => high = middle,
            }
        }
        let [start, frame] = entry(low.checked_sub(1)?)?;
        // Its length, what it belongs to, where the function begins, relative to this, and the function's length.
        let bytes = self.read(read, frame, 16)?;
        let begins = (frame + 8).wrapping_add_signed(i64::from(half(&bytes, 8)?.cast_signed()));
        let len = u64::from(half(&bytes, 12)?);
        if begins != start || !(start..start + len).contains(&wanted) || len > LONGEST {
            return None;
        }
        Some((self.offset(start)?, self.read(read, start, len as usize)?))
    }
}

fn half(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..at + 4)?.try_into().ok().map(u32::from_le_bytes)
}

fn word(bytes: &[u8], at: usize) -> Option<u64> {
    bytes.get(at..at + 8)?.try_into().ok().map(u64::from_le_bytes)
}

/// The instructions in the code of a function: where in it, and how long.
fn in_function(code: &[u8]) -> Vec<(usize, usize)> {
    let mut walk =
        Walk { code, decoder: Decoder::new(64, code, DecoderOptions::NONE), begun: vec![None; code.len()] };
    let mut found = Vec::new();
    if walk.along_branches(&mut found).is_none() {
        return Vec::new();
    }
    walk.between(&mut found);
    found.sort_unstable();
    found
}

/// Decodes a function.
struct Walk<'a> {
    code: &'a [u8],
    decoder: Decoder<'a>,
    /// Of each byte, where the instruction begins that it is a part of, if one is known.
    begun: Vec<Option<u32>>,
}

impl Walk<'_> {
    fn decode(&mut self, at: usize) -> Option<Instruction> {
        self.decoder.set_position(at).ok()?;
        self.decoder.set_ip(at as u64);
        let instruction = self.decoder.decode();
        (!instruction.is_invalid()).then_some(instruction)
    }

    /// From the start along direct branches. `None` if what is found so cannot all be instructions.
    fn along_branches(&mut self, found: &mut Vec<(usize, usize)>) -> Option<()> {
        let mut open = vec![0];
        while let Some(start) = open.pop() {
            let mut at = start;
            while at < self.code.len() {
                match self.begun[at] {
                    Some(begin) if begin as usize == at => break,
                    Some(_) => return None,
                    None => {}
                }
                let instruction = self.decode(at)?;
                let end = at + instruction.len();
                let place = self.begun.get_mut(at..end)?;
                if place.iter().any(Option::is_some) {
                    return None;
                }
                place.fill(Some(at as u32));
                if is_wanted(&instruction) {
                    found.push((at, instruction.len()));
                }
                let target = instruction.near_branch_target();
                let branches = matches!(
                    instruction.flow_control(),
                    FlowControl::ConditionalBranch
                        | FlowControl::UnconditionalBranch
                        | FlowControl::XbeginXabortXend
                );
                if branches && (target as usize) < self.code.len() {
                    open.push(target as usize);
                }
                if !goes_on(&instruction) {
                    break;
                }
                at = end;
            }
        }
        Some(())
    }

    /// What lies between that, as far as it is believed.
    fn between(&mut self, found: &mut Vec<(usize, usize)>) {
        let mut at = 0;
        while at < self.code.len() {
            if self.begun[at].is_some() {
                at += 1;
                continue;
            }
            let end =
                self.begun[at..].iter().position(Option::is_some).map_or(self.code.len(), |len| at + len);
            let mut row = Vec::new();
            while at < end
                && let Some(instruction) = self.decode(at)
            {
                at += instruction.len();
                row.push(instruction);
            }
            if at == end {
                let believed = (0..row.len()).filter(|&i| is_wanted(&row[i]) && is_asked(&row[i + 1..]));
                found.extend(believed.map(|i| (row[i].ip() as usize, row[i].len())));
            }
            at = end;
        }
    }
}

pub(super) fn is_wanted(instruction: &Instruction) -> bool {
    matches!(instruction.mnemonic(), Mnemonic::Rdrand | Mnemonic::Rdseed | Mnemonic::Rdpid)
}

/// Whether the next instruction runs after this one, or some time later.
fn goes_on(instruction: &Instruction) -> bool {
    match instruction.flow_control() {
        FlowControl::Next
        | FlowControl::ConditionalBranch
        | FlowControl::Call
        | FlowControl::IndirectCall
        | FlowControl::XbeginXabortXend => true,
        FlowControl::UnconditionalBranch
        | FlowControl::IndirectBranch
        | FlowControl::Return
        | FlowControl::Interrupt
        | FlowControl::Exception => false,
    }
}

/// Whether the carry flag is looked at soon.
fn is_asked(after: &[Instruction]) -> bool {
    const SOON: usize = 6;
    let soon = after.iter().take(SOON);
    let next = soon
        .map(|next| (next.rflags_read(), next.rflags_modified()))
        .find(|(read, modified)| (read | modified) & RflagsBits::CF != 0);
    next.is_some_and(|(read, _)| read & RflagsBits::CF != 0)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn copy(file: &[u8], at: u64, into: &mut [u8]) -> usize {
        let rest = file.get(at as usize..).unwrap_or_default();
        let len = into.len().min(rest.len());
        into[..len].copy_from_slice(&rest[..len]);
        len
    }

    #[track_caller]
    fn check(code: &[u8], expected: &[(usize, usize)]) {
        assert_eq!(in_function(code), expected, "{code:02x?}");
    }

    #[test]
    fn they_are_found_along_branches() {
        // rdrand eax; rdseed r9; rdpid rcx; rdrand dx; ret
        check(
            &[0x0f, 0xc7, 0xf0, 0x49, 0x0f, 0xc7, 0xf9, 0xf3, 0x0f, 0xc7, 0xf9, 0x66, 0x0f, 0xc7, 0xf2, 0xc3],
            &[(0, 3), (3, 4), (7, 4), (11, 4)],
        );
        // jmp over four bytes of data; rdrand eax; jae back to it; ret
        check(&[0xeb, 4, 0x0f, 0xc7, 0xf0, 0x90, 0x0f, 0xc7, 0xf0, 0x73, 0xfb, 0xc3], &[(6, 3)]);
        // In an immediate: mov rax, imm64; ret
        check(&[0x48, 0xb8, 0x0f, 0xc7, 0xf0, 0x73, 0, 0, 0, 0, 0xc3], &[]);
        // cmpxchg8b [rsi]; ret
        check(&[0x0f, 0xc7, 0x0e, 0xc3], &[]);
    }

    #[test]
    fn what_no_branch_leads_to_is_believed_if_the_answer_is_looked_at() {
        // jmp rax; rdrand eax; setb al; ret
        check(&[0xff, 0xe0, 0x0f, 0xc7, 0xf0, 0x0f, 0x92, 0xc0, 0xc3], &[(2, 3)]);
        // The same, but test eax, eax comes first.
        check(&[0xff, 0xe0, 0x0f, 0xc7, 0xf0, 0x85, 0xc0, 0x0f, 0x92, 0xc0, 0xc3], &[]);
        // jmp rax; what is no code; rdrand eax; setb al; ret
        check(&[0xff, 0xe0, 0x06, 0x0f, 0xc7, 0xf0, 0x0f, 0x92, 0xc0, 0xc3], &[]);
    }

    #[test]
    fn nothing_is_found_where_branches_disagree() {
        // jae into the middle of what follows; mov eax, imm32; rdrand eax; ret
        check(&[0x73, 1, 0xb8, 1, 2, 3, 4, 0x0f, 0xc7, 0xf0, 0xc3], &[]);
    }

    #[test]
    fn candidates_across_blocks_and_chunks() {
        let mut file = vec![0x0f; 300_000];
        let places = [0, 253, 254, 255, 256, 131_070, 131_071, 131_072, 262_142, 299_997];
        for at in [0, 254, 131_070, 262_142, 299_997] {
            file[at..at + 3].copy_from_slice(&[0x0f, 0xc7, 0xf8]);
        }
        let read = |at: u64, into: &mut [u8]| copy(&file, at, into);
        let found = candidates(&read, 0, 1 << 20);
        assert_eq!(
            found,
            places
                .into_iter()
                .filter(|at| file[*at as usize + 1] == 0xc7)
                .map(|at| at as u64)
                .collect::<Vec<_>>()
        );
    }

    /// Every file of code here whose code has them, against what the disassembler says; only where there are both.
    #[test]
    fn in_the_cpp_library_they_are_those_that_a_disassembler_shows() {
        let asked = std::process::Command::new("g++").arg("-print-file-name=libstdc++.so.6").output();
        let Some(path) = asked.ok().and_then(|output| String::from_utf8(output.stdout).ok()) else {
            eprintln!("skipped: there is no g++");
            return;
        };
        let shown =
            std::process::Command::new("objdump").args(["-d", "--no-show-raw-insn", path.trim()]).output();
        let Ok(shown) = shown else {
            eprintln!("skipped: there is no objdump");
            return;
        };
        let shown = String::from_utf8_lossy(&shown.stdout).into_owned();
        let expected: Vec<u64> = shown
            .lines()
            .filter(|line| ["rdrand", "rdseed", "rdpid"].iter().any(|name| line.contains(name)))
            .filter_map(|line| u64::from_str_radix(line.trim().split_once(':')?.0, 16).ok())
            .collect();
        let file = fs::read(path.trim()).unwrap();
        let read = |at: u64, into: &mut [u8]| copy(&file, at, into);
        let layout = Layout::of(&read).unwrap();
        let found = find(&read, 0, file.len() as u64);
        let found: Vec<u64> = found.iter().filter_map(|one| layout.addr(one.offset)).collect();
        assert_eq!(found, expected);
        assert!(!found.is_empty());
    }
}
