//! What `/proc` tells of a tracee. Reads and parses; knows nothing of events.

use std::collections::VecDeque;
use std::fs::{self, File};
use std::io::{self, Read};
use std::os::unix::fs::FileExt;

use guest::{GuestAddr, GuestRange, PAGE_SIZE, Prot};
use ptrace::HostTid;

/// One line of `/proc/PID/maps`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Mapping {
    pub(crate) range: GuestRange,
    pub(crate) prot: Prot,
    pub(crate) shared: bool,
    pub(crate) offset: u64,
    /// Major and minor number.
    pub(crate) device: (u32, u32),
    pub(crate) inode: u64,
    /// Path, `[stack]` and the like, or empty.
    pub(crate) name: String,
}

/// Which part of which file a mapping shows: device-less, as names and inodes tell enough apart; what is rewritten there is compared first.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) struct FilePart {
    name: String,
    inode: u64,
    offset: u64,
    len: u64,
}

impl Mapping {
    pub(crate) fn part(&self) -> FilePart {
        let Self { ref name, inode, offset, range, .. } = *self;
        FilePart { name: name.clone(), inode, offset, len: range.len() }
    }
}

/// Reads a file of the kernel's, which does not tell its length, in few calls. One that is made at once (`whole`) ends where a read does.
fn contents(path: &str, whole: bool) -> io::Result<Vec<u8>> {
    const ROOM: usize = 8192;
    let mut file = File::open(path)?;
    let (mut bytes, mut len) = (Vec::new(), 0);
    loop {
        bytes.resize(len + ROOM, 0);
        let read = file.read(&mut bytes[len..])?;
        len += read;
        if read == 0 || whole && read < ROOM {
            bytes.truncate(len);
            return Ok(bytes);
        }
    }
}

/// The text of a file that the kernel makes at once; empty if there is none.
pub(crate) fn text(path: &str) -> String {
    contents(path, true).map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).unwrap_or_default()
}

/// The mappings of a task.
pub(crate) fn maps(tid: HostTid) -> io::Result<Vec<Mapping>> {
    let text = contents(&format!("/proc/{tid}/maps"), false)?;
    let text = String::from_utf8_lossy(&text);
    text.lines()
        .map(|line| parse_mapping(line).ok_or_else(|| io::Error::other(format!("cannot parse `{line}`"))))
        .collect()
}

fn parse_mapping(line: &str) -> Option<Mapping> {
    let (range, rest) = line.split_once(' ')?;
    let (start, end) = range.split_once('-')?;
    let mut fields = rest.splitn(4, ' ');
    let (perms, offset, device) = (fields.next()?.as_bytes(), fields.next()?, fields.next()?);
    let tail = fields.next()?;
    let (inode, name) = tail.split_once(' ').unwrap_or((tail, ""));
    let address = |hex: &str| u64::from_str_radix(hex, 16).ok().map(GuestAddr);
    let (major, minor) = device.split_once(':')?;
    let number = |hex: &str| u32::from_str_radix(hex, 16).ok();
    Some(Mapping {
        range: GuestRange { start: address(start)?, end: address(end)? },
        prot: Prot {
            read: perms.first()? == &b'r',
            write: perms.get(1)? == &b'w',
            exec: perms.get(2)? == &b'x',
        },
        shared: perms.get(3)? == &b's',
        offset: u64::from_str_radix(offset, 16).ok()?,
        device: (number(major)?, number(minor)?),
        inode: inode.parse().ok()?,
        name: name.trim_start().to_owned(),
    })
}

/// The pages of `range` that hold contents of their own (written, or copied on write), merged into ranges.
pub(crate) fn own_pages(tid: HostTid, range: GuestRange) -> io::Result<Vec<GuestRange>> {
    Pagemap::open(tid)?.own(range)
}

/// What the kernel tells of a task's pages.
#[derive(Debug)]
pub(crate) struct Pagemap {
    tid: HostTid,
    file: File,
}

impl Pagemap {
    pub(crate) fn open(tid: HostTid) -> io::Result<Self> {
        Ok(Self { tid, file: File::open(format!("/proc/{tid}/pagemap"))? })
    }

    /// As [`own_pages`].
    pub(crate) fn own(&self, range: GuestRange) -> io::Result<Vec<GuestRange>> {
        const CHUNK: u64 = 8192;
        let mut found: Vec<GuestRange> = Vec::new();
        let mut page = range.start.0 / PAGE_SIZE;
        let end = range.end.0 / PAGE_SIZE;
        let mut bytes = vec![0; (CHUNK.min(end - page) * 8) as usize];
        while page < end {
            let want = (CHUNK.min(end - page) * 8) as usize;
            let got = self.file.read_at(&mut bytes[..want], page * 8)? / 8;
            if got == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            for entry in bytes[..got * 8].as_chunks::<8>().0 {
                if self.is_own(page, u64::from_le_bytes(*entry)) {
                    let here = GuestRange::new(GuestAddr(page * PAGE_SIZE), PAGE_SIZE);
                    match found.last_mut() {
                        Some(last) if last.end == here.start => last.end = here.end,
                        _ => found.push(here),
                    }
                }
                page += 1;
            }
        }
        Ok(found)
    }

    /// Whether a page with this entry is a private copy. Write tracking leaves entries for pages of files that are not there, which look as
    /// if they were swapped out: reading the page brings in what it is.
    fn is_own(&self, page: u64, entry: u64) -> bool {
        const PRESENT: u64 = 1 << 63;
        const SWAPPED: u64 = 1 << 62;
        const FILE_OR_SHARED: u64 = 1 << 61;
        let own = |entry: u64| entry & (PRESENT | SWAPPED) != 0 && entry & FILE_OR_SHARED == 0;
        if !own(entry) || entry & PRESENT != 0 {
            return own(entry);
        }
        let mut word = [0; 8];
        let brought_in = File::open(format!("/proc/{}/mem", self.tid))
            .and_then(|memory| memory.read_exact_at(&mut word[..1], page * PAGE_SIZE))
            .and_then(|()| self.file.read_exact_at(&mut word, page * 8));
        brought_in.is_ok() && own(u64::from_le_bytes(word))
    }
}

/// The states of tasks that are asked for again and again: opening the file costs more than reading it.
#[derive(Debug, Default)]
pub(crate) struct States(VecDeque<(HostTid, File)>);

impl States {
    /// Files that stay open.
    const MOST: usize = 16;

    /// Whether a task sleeps in the kernel (states S and D of `/proc/PID/stat`). A task that is gone does not.
    pub(crate) fn is_sleeping(&mut self, tid: HostTid) -> bool {
        matches!(self.state(tid), Some(b'S' | b'D'))
    }

    fn state(&mut self, tid: HostTid) -> Option<u8> {
        if let Some(at) = self.0.iter().position(|(known, _)| *known == tid) {
            if let Some(state) = state(&self.0[at].1) {
                return Some(state);
            }
            // Of a task that is gone, whose id may be another one's now.
            self.0.remove(at);
        }
        let file = File::open(format!("/proc/{tid}/stat")).ok()?;
        let state = state(&file);
        if self.0.len() == Self::MOST {
            self.0.pop_front();
        }
        self.0.push_back((tid, file));
        state
    }
}

/// The state in an open `/proc/PID/stat`.
fn state(stat: &File) -> Option<u8> {
    // More than the id and the longest name of a task take.
    let mut start = [0; 128];
    let len = stat.read_at(&mut start, 0).ok()?;
    let name_ends = start[..len].windows(2).rposition(|two| two == b") ")?;
    start[..len].get(name_ends + 2).copied()
}

/// Whether a task is dead but for its status (states Z and X), or gone.
pub(crate) fn is_dead(tid: HostTid) -> bool {
    stat_field(tid, 0).is_none_or(|state| matches!(state.as_str(), "Z" | "X"))
}

/// How a task that is dead ended, as `wait` encodes it.
pub(crate) fn exit_status(tid: HostTid) -> Option<i32> {
    const EXIT_CODE: usize = 49;
    stat_field(tid, EXIT_CODE)?.parse().ok()
}

/// Whether a task runs, or would if it were its turn (state R).
pub(crate) fn is_runnable(tid: HostTid) -> bool {
    stat_field(tid, 0).as_deref() == Some("R")
}

/// The CPU time a task has used, in nanoseconds; 0 where the kernel does not tell.
pub(crate) fn cpu_nanos(tid: HostTid) -> u64 {
    let text = text(&format!("/proc/{tid}/schedstat"));
    text.split(' ').next().and_then(|nanos| nanos.parse().ok()).unwrap_or(0)
}

/// A field of `/proc/PID/stat`, counted from the state, which is 0.
fn stat_field(tid: HostTid, index: usize) -> Option<String> {
    field_of(&stat(tid), index).map(str::to_owned)
}

fn stat(tid: HostTid) -> String {
    text(&format!("/proc/{tid}/stat"))
}

fn field_of(stat: &str, index: usize) -> Option<&str> {
    let (_, rest) = stat.rsplit_once(") ")?;
    rest.trim_end().split(' ').nth(index)
}

/// How a task is to be ranked among those that could run, the lowest first: by its nice value, real-time policies before and idle ones
/// after all of these.
pub(crate) fn rank(tid: HostTid) -> i32 {
    const NICE: usize = 16;
    const POLICY: usize = 38;
    let stat = stat(tid);
    let number = |index| field_of(&stat, index).and_then(|field| field.parse().ok());
    match number(POLICY) {
        Some(libc::SCHED_FIFO | libc::SCHED_RR | libc::SCHED_DEADLINE) => -100,
        Some(libc::SCHED_IDLE) => 100,
        _ => number(NICE).unwrap_or(0),
    }
}

/// The parent process, 0 if it cannot be told.
pub(crate) fn parent(tid: HostTid) -> i32 {
    stat_field(tid, 1).and_then(|field| field.parse().ok()).unwrap_or(0)
}

/// The same, and where the heap begins.
pub(crate) fn parent_and_brk(tid: HostTid) -> (i32, Option<GuestAddr>) {
    let stat = stat(tid);
    let parent = field_of(&stat, 1).and_then(|field| field.parse().ok());
    (parent.unwrap_or(0), field_of(&stat, 44).and_then(|field| field.parse().ok()).map(GuestAddr))
}

/// The process group, -1 if it cannot be told.
pub(crate) fn group(tid: HostTid) -> i32 {
    stat_field(tid, 2).and_then(|field| field.parse().ok()).unwrap_or(-1)
}

/// The CPU times used in user mode and in the kernel, in microseconds (as fine as the clock tick).
pub(crate) fn times_micros(tid: HostTid) -> [u64; 2] {
    const TICK_MICROS: u64 = 10_000; // USER_HZ is 100
    [11, 12]
        .map(|field| stat_field(tid, field).and_then(|field| field.parse().ok()).unwrap_or(0) * TICK_MICROS)
}

/// Whether there is such a thread.
pub(crate) fn exists(tid: HostTid) -> bool {
    stat_field(tid, 0).is_some()
}

/// The threads of a process.
pub(crate) fn threads(process: HostTid) -> Vec<HostTid> {
    let Ok(entries) = fs::read_dir(format!("/proc/{process}/task")) else { return Vec::new() };
    let names = entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    names.map(HostTid).collect()
}

/// The children that a thread of a process made.
pub(crate) fn children(process: HostTid, thread: HostTid) -> Vec<HostTid> {
    let bytes = contents(&format!("/proc/{process}/task/{thread}/children"), false).unwrap_or_default();
    let text = String::from_utf8_lossy(&bytes);
    text.split_ascii_whitespace().filter_map(|pid| pid.parse().ok()).map(HostTid).collect()
}

/// The process that a descriptor of a task's stands for.
pub(crate) fn of_pidfd(tid: HostTid, fd: i32) -> Option<i32> {
    line_of(&fdinfo(tid, fd), "Pid")?.parse().ok()
}

/// The user and group ids of a task: each the real, effective, saved and file-system one.
pub(crate) fn credentials(tid: HostTid) -> [Vec<u32>; 2] {
    ["Uid", "Gid"].map(|name| status_numbers(tid, name))
}

/// A task's real user id.
pub(crate) fn uid(tid: HostTid) -> u32 {
    credentials(tid)[0].first().copied().unwrap_or(0)
}

/// The target of a link such as `/proc/PID/exe`, empty if it cannot be read.
pub(crate) fn link(tid: HostTid, name: &str) -> String {
    fs::read_link(format!("/proc/{tid}/{name}"))
        .map(|path| path.to_string_lossy().into_owned())
        .unwrap_or_default()
}

/// A signal set of `/proc/PID/status` (`SigCgt`, `SigIgn`, ...), bit `n - 1` for signal `n`.
pub(crate) fn signal_set(tid: HostTid, name: &str) -> u64 {
    status_set(tid, name)
}

/// Two of them, of one moment.
pub(crate) fn signal_sets(tid: HostTid, names: [&str; 2]) -> [u64; 2] {
    let text = status(tid);
    names.map(|name| line_of(&text, name).map_or(0, set))
}

/// Whether a task has `CAP_SYS_ADMIN`.
pub(crate) fn may_administer(tid: HostTid) -> bool {
    const SYS_ADMIN: u32 = 21;
    status_set(tid, "CapEff") & 1 << SYS_ADMIN != 0
}

/// A line of `/proc/PID/status` that holds a set, 0 if there is none.
fn status_set(tid: HostTid, name: &str) -> u64 {
    line_of(&status(tid), name).map_or(0, set)
}

fn set(hex: &str) -> u64 {
    u64::from_str_radix(hex, 16).unwrap_or(0)
}

/// `/proc/PID/status`.
pub(crate) fn status(tid: HostTid) -> String {
    text(&format!("/proc/{tid}/status"))
}

/// What a line says that begins with a name and a colon.
fn line_of<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).map(str::trim)
}

/// The thread ids of a task, from ours to that of its own process id namespace.
pub(crate) fn ids(tid: HostTid) -> Vec<i32> {
    ids_in(&status(tid))
}

/// Those that the text of a status tells, of a `/proc` that may be an inner namespace's.
pub(crate) fn ids_in(text: &str) -> Vec<i32> {
    numbers(text, "NSpid")
}

/// The process of a task, named by its leader.
pub(crate) fn process(tid: HostTid) -> Option<HostTid> {
    status_numbers(tid, "Tgid").first().copied().map(HostTid)
}

/// A task's id as another one's namespace has it; 0 where that does not know it.
pub(crate) fn seen_by(by: HostTid, tid: HostTid) -> i32 {
    match ids(by).len() {
        0 | 1 => tid.0,
        depth => ids(tid).get(depth - 1).copied().unwrap_or(0),
    }
}

/// Whether a task belongs to the first process of a process id namespace, which signals that it has no handler for do not kill.
pub(crate) fn is_init(tid: HostTid) -> bool {
    status_numbers::<i32>(tid, "NStgid").last() == Some(&1)
}

fn numbers<N: std::str::FromStr>(text: &str, name: &str) -> Vec<N> {
    let numbers = |line: &str| line.split_whitespace().filter_map(|number| number.parse().ok()).collect();
    line_of(text, name).map_or(Vec::new(), numbers)
}

fn status_numbers<N: std::str::FromStr>(tid: HostTid, name: &str) -> Vec<N> {
    numbers(&status(tid), name)
}

/// The open-file flags of a descriptor, as in `open(2)`.
pub(crate) fn fd_flags(tid: HostTid, fd: i32) -> Option<i32> {
    Descriptor::of(tid, fd).map(|descriptor| descriptor.flags)
}

/// The file offset of a descriptor.
pub(crate) fn fd_offset(tid: HostTid, fd: i32) -> Option<u64> {
    Descriptor::of(tid, fd).map(|descriptor| descriptor.offset)
}

/// What `/proc/PID/fdinfo` tells of any descriptor.
pub(crate) struct Descriptor {
    pub(crate) flags: i32,
    pub(crate) offset: u64,
}

impl Descriptor {
    pub(crate) fn of(tid: HostTid, fd: i32) -> Option<Self> {
        let text = fdinfo(tid, fd);
        let flags = i32::from_str_radix(line_of(&text, "flags")?, 8).ok()?;
        Some(Self { flags, offset: line_of(&text, "pos")?.parse().ok()? })
    }
}

fn fdinfo(tid: HostTid, fd: i32) -> String {
    text(&format!("/proc/{tid}/fdinfo/{fd}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mappings_parse() {
        let line = "7f0000001000-7f0000003000 r-xp 00001000 fe:00 1234                       /a dir/lib x.so (deleted)";
        let mapping = parse_mapping(line).unwrap();
        assert_eq!(mapping.range, GuestRange::new(GuestAddr(0x7f00_0000_1000), 0x2000));
        assert_eq!(mapping.prot, Prot { read: true, write: false, exec: true });
        assert!(!mapping.shared);
        assert_eq!((mapping.offset, mapping.device, mapping.inode), (0x1000, (0xfe, 0), 1234));
        assert_eq!(mapping.name, "/a dir/lib x.so (deleted)");
        assert_eq!(parse_mapping("1000-2000 rw-s 00000000 00:00 0 ").unwrap().name, "");
        assert_eq!(parse_mapping("rubbish"), None);
    }

    #[test]
    fn states_are_those_of_now() {
        let mut states = States::default();
        let me = HostTid(std::process::id() as i32);
        let mut child = std::process::Command::new("sleep").arg("1000").spawn().unwrap();
        let tid = HostTid(child.id() as i32);
        while !states.is_sleeping(tid) {
            std::thread::yield_now();
        }
        assert!(states.is_sleeping(tid) && states.state(me).is_some());
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(states.state(tid), None);
        assert!(!states.0.iter().any(|(known, _)| *known == tid));
    }

    #[test]
    fn this_process_can_be_read() {
        let me = HostTid(std::process::id() as i32);
        assert!(maps(me).unwrap().iter().any(|mapping| mapping.name == "[stack]"));
        assert!(parent_and_brk(me).1.is_some() && parent(me) == parent_and_brk(me).0);
        let stack = maps(me).unwrap().into_iter().find(|m| m.name == "[stack]").unwrap();
        assert!(!own_pages(me, stack.range).unwrap().is_empty());
    }
}
