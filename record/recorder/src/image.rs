//! A program image as events have it: mappings, and the contents that their backings do not give.

use std::fs::{File, Metadata};
use std::io;
use std::rc::Rc;

use guest::{GuestAddr, GuestMemory, GuestRange, PAGE_SIZE, Prot};
use kernel::Call;
use ptrace::{HostTid, Memory};
use trace::{Backing, Data, ExecInfo, MapOp, MemWrite, TraceWriter, WriteError};

use crate::procfs::{self, Mapping, Pagemap};

/// Why an image cannot be taken.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ImageError {
    #[error("cannot read /proc of the tracee")]
    Proc(#[from] io::Error),
    #[error(transparent)]
    Write(#[from] WriteError),
    #[error("cannot read the new program's memory")]
    Memory(#[from] guest::Unmapped),
}

/// Auxiliary vector entries (`linux/auxvec.h`).
const AT_IGNORE: u64 = 1;
const AT_SYSINFO_EHDR: u64 = 33;
/// Bytes of one.
const ENTRY: u64 = 16;

/// The mappings and contents of a fresh program.
pub(crate) struct Image {
    pub(crate) maps: Vec<MapOp>,
    pub(crate) writes: Vec<MemWrite>,
}

impl Image {
    /// Adds the page of ours, which holds this from [`abi::RESOLVER`] on.
    pub(crate) fn show_page(&mut self, data: Data) {
        let map = MapOp::Map {
            range: GuestRange::new(GuestAddr(abi::PAGE), abi::PAGE_LEN),
            prot: Prot { read: true, write: false, exec: true },
            shared: false,
            grows_down: false,
            no_reserve: false,
            backing: Backing::Zero,
            name: "[backstory]".to_owned(),
        };
        self.maps.insert(1, map);
        self.writes.push(MemWrite { addr: GuestAddr(abi::RESOLVER), data });
    }
}

/// Whether a mapping is the kernel's, to be removed from a tracee.
pub(crate) fn is_kernels(name: &str) -> bool {
    name == "[vdso]" || name.starts_with("[vvar")
}

/// Takes the image of a stopped task from what it has mapped, without anything of ours or the kernel's.
pub(crate) fn take(
    files: &mut MappedFiles,
    mappings: Vec<Mapping>,
    memory: &Memory,
    writer: &mut TraceWriter,
) -> Result<Image, ImageError> {
    let mut image = Image { maps: vec![MapOp::UnmapAll], writes: Vec::new() };
    let pagemap = Pagemap::open(files.tid)?;
    // Those of one file lie side by side.
    let mut last = None;
    for mapping in mappings.into_iter().filter(|mapping| mapping.name != "[vsyscall]") {
        let backing = match last.take().filter(|(of, _)| is_same_file(of, &mapping)) {
            Some((_, Backing::File { file, .. })) => Backing::File { file, offset: mapping.offset },
            _ => backing(files, &mapping, writer)?,
        };
        last = Some((mapping.clone(), backing));
        if !mapping.shared {
            for pages in pagemap.own(mapping.range)? {
                copy(memory, pages, writer, &mut image.writes)?;
            }
        }
        image.maps.push(MapOp::Map {
            range: mapping.range,
            prot: mapping.prot,
            shared: mapping.shared,
            grows_down: mapping.name == "[stack]",
            no_reserve: false,
            backing,
            name: mapping.name,
        });
    }
    Ok(image)
}

/// A file, and what it was described as when it was opened.
pub(crate) type OpenedFile = Rc<(File, Metadata)>;

/// The files that a new program's mappings show, each opened once.
pub(crate) struct MappedFiles {
    tid: HostTid,
    opened: Vec<(Mapping, Option<OpenedFile>)>,
}

impl MappedFiles {
    pub(crate) fn of(tid: HostTid) -> Self {
        Self { tid, opened: Vec::new() }
    }

    /// The file itself, whatever has its name now, where this kernel and user may open that.
    pub(crate) fn get(&mut self, mapping: &Mapping) -> Option<OpenedFile> {
        if let Some((_, file)) = self.opened.iter().find(|(of, _)| is_same_file(of, mapping)) {
            return file.clone();
        }
        let open = || {
            let file = exactly(self.tid, mapping.range)?;
            let meta = file.metadata()?;
            io::Result::Ok(Rc::new((file, meta)))
        };
        let file = open().ok();
        self.opened.push((mapping.clone(), file.clone()));
        file
    }
}

/// The mapped file itself, whatever has its name now.
pub(crate) fn exactly(tid: HostTid, range: GuestRange) -> io::Result<File> {
    File::open(format!("/proc/{tid}/map_files/{:x}-{:x}", range.start.0, range.end.0))
}

fn is_same_file(a: &Mapping, b: &Mapping) -> bool {
    a.inode != 0 && (a.device, a.inode, &a.name) == (b.device, b.inode, &b.name)
}

fn backing(
    files: &mut MappedFiles,
    mapping: &Mapping,
    writer: &mut TraceWriter,
) -> Result<Backing, ImageError> {
    if mapping.inode == 0 || !mapping.name.starts_with('/') {
        return Ok(Backing::Zero);
    }
    let file = match files.get(mapping) {
        Some(opened) => writer.keep_file(&opened.0, &mapping.name)?,
        // Where it cannot be opened itself, what has its name, else the executable.
        None => {
            let tid = files.tid;
            let file = File::open(format!("/proc/{tid}/root{}", mapping.name))
                .or_else(|_| File::open(format!("/proc/{tid}/exe")))?;
            writer.keep_file(&file, &mapping.name)?
        }
    };
    Ok(Backing::File { file, offset: mapping.offset })
}

fn copy(
    memory: &Memory,
    range: GuestRange,
    writer: &mut TraceWriter,
    into: &mut Vec<MemWrite>,
) -> Result<(), ImageError> {
    const CHUNK: u64 = 256 * PAGE_SIZE;
    let mut at = range.start;
    while at < range.end {
        let len = CHUNK.min(range.end.0 - at.0);
        let bytes = memory.read_vec(at, len as usize)?;
        into.push(MemWrite { addr: at, data: writer.payload(&bytes)? });
        at = at.wrapping_add(len);
    }
    Ok(())
}

/// Bytes as event data: short ones in the event, long ones in the payload stream.
pub(crate) fn data(bytes: Vec<u8>, writer: &mut TraceWriter) -> Result<Data, WriteError> {
    const INLINE: usize = 64;
    if bytes.len() <= INLINE { Ok(Data::Inline(bytes)) } else { writer.payload(&bytes) }
}

/// What the kernel laid out above a new program's stack pointer (System V ABI, "Process Initialization").
pub(crate) struct StartStack {
    pub(crate) argv: Vec<Vec<u8>>,
    pub(crate) envp: Vec<Vec<u8>>,
    /// Where the auxiliary vector lies, and what it holds.
    auxv: (GuestAddr, Vec<(u64, u64)>),
}

/// The start of a stack, most of which was read at once.
struct Start<'a> {
    memory: &'a Memory,
    read: GuestRange,
    bytes: Vec<u8>,
}

impl<'a> Start<'a> {
    fn of(memory: &'a Memory, sp: GuestAddr) -> Self {
        const USUAL: usize = 16 << 10;
        let mut bytes = vec![0; USUAL];
        let len = memory.read_some(sp, &mut bytes);
        Self { memory, read: GuestRange::new(sp, len as u64), bytes }
    }
}

impl GuestMemory for Start<'_> {
    fn read(&self, addr: GuestAddr, into: &mut [u8]) -> Result<(), guest::Unmapped> {
        let asked = GuestRange::new(addr, into.len() as u64);
        if asked.start < self.read.start || asked.end > self.read.end {
            return self.memory.read(addr, into);
        }
        into.copy_from_slice(&self.bytes[(addr.0 - self.read.start.0) as usize..][..into.len()]);
        Ok(())
    }
}

/// Reads the start of a new program's stack.
pub(crate) fn start_stack(memory: &Memory, sp: GuestAddr) -> Result<StartStack, guest::Unmapped> {
    const LONGEST: usize = 128 * 1024;
    let start = Start::of(memory, sp);
    let argc = start.read_u64(sp)?;
    let mut at = sp.wrapping_add(8);
    let mut lists = [Vec::new(), Vec::new()];
    for list in &mut lists {
        loop {
            let string = start.read_u64(at)?;
            at = at.wrapping_add(8);
            if string == 0 {
                break;
            }
            list.push(start.read_cstr(GuestAddr(string), LONGEST)?);
        }
    }
    let [mut argv, envp] = lists;
    argv.truncate(argc as usize);
    let mut entries = Vec::new();
    loop {
        let entry = at.wrapping_add(entries.len() as u64 * ENTRY);
        match (start.read_u64(entry)?, start.read_u64(entry.wrapping_add(8))?) {
            (0, _) => return Ok(StartStack { argv, envp, auxv: (at, entries) }),
            entry => entries.push(entry),
        }
    }
}

/// Hides the vDSO from a new program and returns the auxiliary vector it then sees.
pub(crate) fn hide_vdso(memory: &Memory, stack: &StartStack) -> Result<Vec<(u64, u64)>, guest::Unmapped> {
    let (mut at, mut entries) = (stack.auxv.0, stack.auxv.1.clone());
    for entry in &mut entries {
        if entry.0 == AT_SYSINFO_EHDR {
            *entry = (AT_IGNORE, 0);
            memory.write(at, &AT_IGNORE.to_le_bytes())?;
            memory.write(at.wrapping_add(8), &0u64.to_le_bytes())?;
        }
        at = at.wrapping_add(ENTRY);
    }
    Ok(entries)
}

/// Hides it from a copy of the vector that a finished call made: whole entries only.
pub(crate) fn hide_vdso_from(memory: &Memory, call: &Call) -> Result<(), guest::Unmapped> {
    let [_, start, room, ..] = call.args;
    let entries = room.min(call.result.max(0) as u64) / ENTRY;
    for at in (0..entries).map(|entry| GuestAddr(start).wrapping_add(entry * ENTRY)) {
        if memory.read_u64(at)? == AT_SYSINFO_EHDR {
            memory.write(at, &AT_IGNORE.to_le_bytes())?;
            memory.write(at.wrapping_add(8), &0u64.to_le_bytes())?;
        }
    }
    Ok(())
}

/// What an exec event says about the program.
pub(crate) fn describe(tid: HostTid, guest_tid: i32, stack: StartStack, auxv: Vec<(u64, u64)>) -> ExecInfo {
    let (ppid, brk) = procfs::parent_and_brk(tid);
    ExecInfo {
        tid: guest_tid,
        ppid,
        exe: procfs::link(tid, "exe"),
        argv: stack.argv,
        envp: stack.envp,
        cwd: procfs::link(tid, "cwd"),
        auxv,
        brk: brk.unwrap_or_default(),
    }
}
