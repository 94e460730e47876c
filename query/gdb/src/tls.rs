//! Where a thread has its own copy of a thread-local variable: by the program's headers, by the dynamic linker's list of libraries
//! and by what the C library says of its own structures, all as they lie in guest memory. Knows no protocol.
//!
//! Layouts: "ELF Handling For Thread-Local Storage" (variant II); `link_map` in glibc's `link.h`; the C library exports the
//! descriptions of its private structures (`_thread_db_*`) for debuggers, as glibc's `nptl_db/db_info.c` has them.

use guest::{GuestAddr, GuestMemory, Unmapped};

/// Auxiliary vector: address, size and number of the program's headers.
const AT_PHDR: u64 = 3;
const AT_PHENT: u64 = 4;
const AT_PHNUM: u64 = 5;
/// Kinds of program headers.
const PT_LOAD: u32 = 1;
const PT_DYNAMIC: u32 = 2;
const PT_PHDR: u32 = 6;
const PT_TLS: u32 = 7;
/// Kinds of entries in a dynamic section.
const DT_NULL: u64 = 0;
const DT_STRTAB: u64 = 5;
const DT_SYMTAB: u64 = 6;
const DT_GNU_HASH: u64 = 0x6fff_fef5;
/// Entries looked through at most where a list or table may be damaged.
const MANY: u64 = 10_000;

/// Why a thread has no such variable, or none that can be found.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub(crate) enum TlsError {
    /// Something could not be read.
    #[error(transparent)]
    Unmapped(#[from] Unmapped),
    /// The thread has no thread pointer yet.
    #[error("the thread has no variables of its own yet")]
    TooEarly,
    /// The program has no thread-local variables, by its headers.
    #[error("the program has no thread-local variables")]
    None,
    /// The C library does not say how it keeps them.
    #[error("no library describes how it keeps thread-local variables")]
    Unknown,
    /// The thread has not used one of this library's yet.
    #[error("the thread has no copy of them yet")]
    NotYet,
}

/// A thread of a process: where its variables are looked for.
pub(crate) struct Thread<'a, M> {
    /// The process's memory.
    pub(crate) memory: &'a M,
    /// The program's auxiliary vector.
    pub(crate) auxv: &'a [(u64, u64)],
    /// The thread pointer.
    pub(crate) pointer: u64,
}

/// A loaded library, or the program, in the dynamic linker's list.
#[derive(Clone, Copy)]
struct Library {
    /// What its addresses are off by.
    bias: u64,
    dynamic: u64,
    next: u64,
    previous: u64,
}

/// Where a structure has a member.
#[derive(Clone, Copy)]
struct Member {
    bytes: u64,
    offset: u64,
}

impl<M: GuestMemory> Thread<'_, M> {
    /// The address of what lies at `offset` among the thread-local variables of the library whose `link_map` is at `map`; 0 is a
    /// program without a dynamic linker.
    pub(crate) fn address(&self, map: u64, offset: u64) -> Result<GuestAddr, TlsError> {
        if self.pointer == 0 {
            return Err(TlsError::TooEarly);
        }
        let own = map == 0 || self.program_dynamic()? == Some(self.library(map)?.dynamic);
        let start = if own { self.of_program()? } else { self.of_library(map)? };
        Ok(GuestAddr(start.wrapping_add(offset)))
    }

    /// The program's lie right below the thread pointer.
    fn of_program(&self) -> Result<u64, TlsError> {
        let Some((_, size, align)) = self.header(PT_TLS)? else { return Err(TlsError::None) };
        Ok(self.pointer.wrapping_sub(size.checked_next_multiple_of(align.max(1)).ok_or(TlsError::None)?))
    }

    /// A library's lie at a fixed distance from the thread pointer, if it was loaded early; else each thread has them where it first
    /// used them.
    fn of_library(&self, map: u64) -> Result<u64, TlsError> {
        let fixed = self.word(map, self.member(map, "link_map_l_tls_offset")?.offset)?;
        if fixed != 0 && fixed != u64::MAX {
            return Ok(self.pointer.wrapping_sub(fixed));
        }
        let (number, generation) = self.slot(map)?;
        let table = self.word(self.pointer, self.member(map, "pthread_dtvp")?.offset)?;
        let entry = self.member(map, "dtv_dtv")?.bytes;
        if self.word(table, self.member(map, "dtv_t_counter")?.offset)? < generation {
            return Err(TlsError::NotYet);
        }
        let entry = table.wrapping_add(number * entry);
        let start = self.word(entry, self.member(map, "dtv_t_pointer_val")?.offset)?;
        if start & 1 == 1 { Err(TlsError::NotYet) } else { Ok(start) }
    }

    /// The number of a library among those with thread-local variables, and since which generation it has it.
    fn slot(&self, map: u64) -> Result<(u64, u64), TlsError> {
        let list = self.member(map, "rtld_global__dl_tls_dtv_slotinfo_list")?.offset;
        let mut list = self.word(self.symbol(map, "_rtld_global")?, list)?;
        let [len, next, first] = ["len", "next", "slotinfo"].map(|name| format!("dtv_slotinfo_list_{name}"));
        let (len, next) = (self.member(map, &len)?.offset, self.member(map, &next)?.offset);
        let first = self.member(map, &first)?.offset;
        let slot = u64::from(self.half(self.symbol(map, "_thread_db_sizeof_dtv_slotinfo")?, 0)?);
        let [generation, of] = ["dtv_slotinfo_gen", "dtv_slotinfo_map"].map(|name| self.member(map, name));
        let (generation, of) = (generation?.offset, of?.offset);
        let mut number = 0;
        while list != 0 && number < MANY {
            for at in (0..self.word(list, len)?.min(MANY)).map(|i| first + i * slot) {
                if self.word(list, at + of)? == map {
                    return Ok((number, self.word(list, at + generation)?));
                }
                number += 1;
            }
            list = self.word(list, next)?;
        }
        Err(TlsError::None)
    }

    /// What the C library says of a structure's member: its bits, how many there are, and where they begin.
    fn member(&self, map: u64, name: &str) -> Result<Member, TlsError> {
        let at = self.symbol(map, &format!("_thread_db_{name}"))?;
        Ok(Member { bytes: u64::from(self.half(at, 0)? / 8), offset: self.half(at, 8)?.into() })
    }

    /// The address of a symbol that some library of the list exports.
    fn symbol(&self, map: u64, name: &str) -> Result<u64, TlsError> {
        let mut library = self.library(map)?;
        for _ in 0..MANY {
            if library.previous == 0 {
                break;
            }
            library = self.library(library.previous)?;
        }
        for _ in 0..MANY {
            if let Some(found) = self.exported(library, name)? {
                return Ok(found);
            }
            if library.next == 0 {
                break;
            }
            library = self.library(library.next)?;
        }
        Err(TlsError::Unknown)
    }

    /// The address of a symbol that a library exports, by its hash table.
    fn exported(&self, library: Library, name: &str) -> Result<Option<u64>, TlsError> {
        let (mut strings, mut symbols, mut hashes) = (None, None, None);
        for at in (0..MANY).map(|i| 16 * i) {
            let (kind, value) = (self.word(library.dynamic, at)?, self.word(library.dynamic, at + 8)?);
            // The dynamic linker makes addresses of them, but not in what the kernel maps.
            let value = if value < library.bias { value.wrapping_add(library.bias) } else { value };
            match kind {
                DT_NULL => break,
                DT_STRTAB => strings = Some(value),
                DT_SYMTAB => symbols = Some(value),
                DT_GNU_HASH => hashes = Some(value),
                _ => {}
            }
        }
        let (Some(strings), Some(symbols), Some(hashes)) = (strings, symbols, hashes) else {
            return Ok(None);
        };
        let (buckets, first) = (self.half(hashes, 0)?, self.half(hashes, 4)?);
        let bucket_at = 16 + 8 * u64::from(self.half(hashes, 8)?);
        let chain_at = bucket_at + 4 * u64::from(buckets);
        let hash = name.bytes().fold(5381u32, |hash, byte| hash.wrapping_mul(33).wrapping_add(byte.into()));
        let Some(bucket) = hash.checked_rem(buckets) else { return Ok(None) };
        let mut number = self.half(hashes, bucket_at + 4 * u64::from(bucket))?;
        for _ in 0..MANY {
            let Some(place) = number.checked_sub(first) else { break };
            let found = self.half(hashes, chain_at + 4 * u64::from(place))?;
            let symbol = 24 * u64::from(number);
            if found | 1 == hash | 1 {
                let at = GuestAddr(strings).wrapping_add(self.half(symbols, symbol)?.into());
                if self.memory.read_cstr(at, name.len() + 1)? == name.as_bytes() {
                    return Ok(Some(library.bias.wrapping_add(self.word(symbols, symbol + 8)?)));
                }
            }
            if found & 1 == 1 {
                break;
            }
            number = number.wrapping_add(1);
        }
        Ok(None)
    }

    fn library(&self, map: u64) -> Result<Library, TlsError> {
        let [bias, dynamic, next, previous] = [0, 16, 24, 32].map(|offset| self.word(map, offset));
        Ok(Library { bias: bias?, dynamic: dynamic?, next: next?, previous: previous? })
    }

    /// Where the program's dynamic section lies, if it has one.
    fn program_dynamic(&self) -> Result<Option<u64>, TlsError> {
        // Where they do not say where they are themselves, they are in the first page loaded.
        let headers = GuestAddr(self.auxiliary(AT_PHDR));
        let bias = match (self.header(PT_PHDR)?, self.header(PT_LOAD)?) {
            (Some((addr, _, _)), _) => headers.0.wrapping_sub(addr),
            (None, Some((addr, _, _))) => headers.page().0.wrapping_sub(GuestAddr(addr).page().0),
            (None, None) => 0,
        };
        Ok(self.header(PT_DYNAMIC)?.map(|(addr, _, _)| bias.wrapping_add(addr)))
    }

    /// Link-time address, size in memory and alignment of a part of the program.
    fn header(&self, wanted: u32) -> Result<Option<(u64, u64, u64)>, TlsError> {
        let (start, size, count) =
            (self.auxiliary(AT_PHDR), self.auxiliary(AT_PHENT), self.auxiliary(AT_PHNUM));
        for at in (0..count.min(MANY)).map(|i| i.wrapping_mul(size)) {
            if self.half(start, at)? == wanted {
                return Ok(Some((
                    self.word(start, at + 16)?,
                    self.word(start, at + 40)?,
                    self.word(start, at + 48)?,
                )));
            }
        }
        Ok(None)
    }

    fn auxiliary(&self, kind: u64) -> u64 {
        self.auxv.iter().find(|(key, _)| *key == kind).map_or(0, |(_, value)| *value)
    }

    fn word(&self, start: u64, offset: u64) -> Result<u64, Unmapped> {
        self.memory.read_u64(GuestAddr(start).wrapping_add(offset))
    }

    fn half(&self, start: u64, offset: u64) -> Result<u32, Unmapped> {
        self.memory.read_u32(GuestAddr(start).wrapping_add(offset))
    }
}
