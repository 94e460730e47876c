//! Descriptors and file offsets, modelled over the syscall stream: what a call worked on, and where in the file.

use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap};
use std::rc::Rc;

use guest::TaskId;
use kernel::Kind;
use trace::{InheritedFd, SyscallInfo};

const CLONE_FILES: u64 = 0x400;
const O_CLOEXEC: u64 = 0o2_000_000;
const O_APPEND: u64 = 0o2_000;
const F_DUPFD: u64 = 0;
const F_SETFD: u64 = 2;
const F_DUPFD_CLOEXEC: u64 = 1030;
const CLOSE_RANGE_CLOEXEC: u64 = 4;

/// An open file: what several descriptors may share.
#[derive(Debug)]
struct File {
    path: String,
    /// Where the next read or write goes; `None` where it is not known or has no meaning.
    offset: Option<u64>,
}

#[derive(Clone, Debug)]
struct Descriptor {
    file: Rc<RefCell<File>>,
    closes_on_exec: bool,
}

type Table = Rc<RefCell<BTreeMap<i32, Descriptor>>>;

/// What a syscall worked on.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Use {
    pub(crate) fd: Option<i32>,
    pub(crate) path: Option<String>,
    pub(crate) offset: Option<u64>,
}

/// The descriptors of all tasks.
pub(crate) struct Files {
    tables: HashMap<TaskId, Table>,
    /// For naming pipes and the like.
    unnamed: u32,
}

/// A syscall and what the kernel wrote for it.
pub(crate) struct Finished<'a> {
    pub(crate) task: TaskId,
    pub(crate) info: &'a SyscallInfo,
    /// The path it names, if it names one.
    pub(crate) path: Option<&'a str>,
    /// The pair of descriptors it made, if it makes one.
    pub(crate) pair: Option<[i32; 2]>,
}

impl Files {
    /// What task 0 inherited.
    pub(crate) fn new(inherited: &[InheritedFd]) -> Self {
        let table = inherited.iter().map(|fd| {
            let file = File { path: fd.path.clone(), offset: seekable(&fd.path).then_some(fd.offset) };
            (fd.fd, Descriptor { file: Rc::new(RefCell::new(file)), closes_on_exec: false })
        });
        let table = Rc::new(RefCell::new(table.collect()));
        Self { tables: HashMap::from([(TaskId(0), table)]), unnamed: 0 }
    }

    /// A new task shares its parent's descriptors or has copies.
    pub(crate) fn spawn(&mut self, parent: TaskId, child: TaskId, flags: u64) {
        let Some(table) = self.tables.get(&parent) else { return };
        let shared = flags & CLONE_FILES != 0;
        let own = if shared { Rc::clone(table) } else { Rc::new(RefCell::new(table.borrow().clone())) };
        self.tables.insert(child, own);
    }

    /// A program was executed.
    pub(crate) fn exec(&mut self, task: TaskId) {
        let Some(table) = self.tables.get(&task) else { return };
        let mut kept = table.borrow().clone();
        kept.retain(|_, fd| !fd.closes_on_exec);
        self.tables.insert(task, Rc::new(RefCell::new(kept)));
    }

    /// A task is gone.
    pub(crate) fn exit(&mut self, task: TaskId) {
        self.tables.remove(&task);
    }

    /// A syscall is over: what it worked on, as it was when it began.
    pub(crate) fn finished(&mut self, call: &Finished<'_>) -> Use {
        let fd = self.descriptor(call.info);
        let file = fd.and_then(|fd| self.file(call.task, fd));
        let mut used = Use { fd, path: call.path.map(str::to_owned), offset: None };
        if used.path.is_none() {
            used.path = file.as_ref().map(|file| file.borrow().path.clone());
        }
        let Some(result) = call.info.result.filter(|result| *result >= 0) else {
            used.offset = self.position(call.info, file.as_ref());
            return used;
        };
        used.offset = self.position(call.info, file.as_ref());
        self.advance(call.info, file.as_ref(), result as u64);
        self.change(call, result as u64);
        used
    }

    /// The descriptor in a call's first argument, where that is one.
    fn descriptor(&self, info: &SyscallInfo) -> Option<i32> {
        let row = kernel::row(info.nr)?;
        let is_fd = row.args.first().is_some_and(|arg| matches!(arg.kind, Kind::Fd));
        (is_fd || matches!(row.name, "close" | "dup" | "dup2" | "dup3")).then_some(info.args[0] as i32)
    }

    fn file(&self, task: TaskId, fd: i32) -> Option<Rc<RefCell<File>>> {
        let table = self.tables.get(&task)?.borrow();
        table.get(&fd).map(|fd| Rc::clone(&fd.file))
    }

    /// Where in the file a call reads or writes.
    fn position(&self, info: &SyscallInfo, file: Option<&Rc<RefCell<File>>>) -> Option<u64> {
        match kernel::name(info.nr)? {
            "read" | "write" | "readv" | "writev" | "getdents64" => file?.borrow().offset,
            "pread64" | "pwrite64" | "preadv" | "pwritev" => Some(info.args[3]),
            "mmap" => None,
            _ => None,
        }
    }

    fn advance(&self, info: &SyscallInfo, file: Option<&Rc<RefCell<File>>>, result: u64) {
        let Some(file) = file else { return };
        let mut file = file.borrow_mut();
        match kernel::name(info.nr) {
            Some("read" | "write" | "readv" | "writev") => {
                file.offset = file.offset.map(|offset| offset.saturating_add(result));
            }
            Some("lseek") => file.offset = Some(result),
            Some("sendfile" | "splice" | "copy_file_range" | "getdents64" | "getdents") => file.offset = None,
            _ => {}
        }
    }

    /// How a call changes the table.
    fn change(&mut self, call: &Finished<'_>, result: u64) {
        let Some(name) = kernel::name(call.info.nr) else { return };
        let args = &call.info.args;
        let made = result as i32;
        match name {
            "open" => self.open(call, made, args[1]),
            "openat" => self.open(call, made, args[2]),
            "openat2" => self.open(call, made, 0),
            "creat" => self.open(call, made, 0),
            "close" => self.close(call.task, args[0] as i32..=args[0] as i32),
            "close_range" if args[2] & CLOSE_RANGE_CLOEXEC == 0 => {
                let last = i32::try_from(args[1]).unwrap_or(i32::MAX);
                self.close(call.task, args[0] as i32..=last);
            }
            "dup" | "dup2" => self.dup(call.task, args[0] as i32, made, false),
            "dup3" => self.dup(call.task, args[0] as i32, made, args[2] & O_CLOEXEC != 0),
            "fcntl" => self.fcntl(call.task, args, made),
            "pipe" | "pipe2" | "socketpair" => self.pair(call, name, args),
            "socket" | "accept" | "accept4" | "eventfd" | "eventfd2" | "epoll_create" | "epoll_create1"
            | "timerfd_create" | "signalfd" | "signalfd4" | "inotify_init" | "inotify_init1"
            | "memfd_create" | "userfaultfd" | "pidfd_open" => {
                let path = self.fresh(name);
                self.put(call.task, made, path, (name == "memfd_create").then_some(0), false);
            }
            _ => {}
        }
    }

    fn fresh(&mut self, what: &str) -> String {
        self.unnamed += 1;
        format!("{}:[{}]", what.trim_end_matches(|c: char| c.is_ascii_digit()), self.unnamed)
    }

    fn open(&mut self, call: &Finished<'_>, fd: i32, flags: u64) {
        let path = call.path.unwrap_or("?").to_owned();
        let offset = (flags & O_APPEND == 0 && seekable(&path)).then_some(0);
        self.put(call.task, fd, path, offset, flags & O_CLOEXEC != 0);
    }

    fn put(&mut self, task: TaskId, fd: i32, path: String, offset: Option<u64>, closes_on_exec: bool) {
        let file = Rc::new(RefCell::new(File { path, offset }));
        let table = self.tables.entry(task).or_default();
        table.borrow_mut().insert(fd, Descriptor { file, closes_on_exec });
    }

    fn close(&mut self, task: TaskId, fds: std::ops::RangeInclusive<i32>) {
        if let Some(table) = self.tables.get(&task) {
            table.borrow_mut().retain(|fd, _| !fds.contains(fd));
        }
    }

    fn dup(&mut self, task: TaskId, from: i32, to: i32, closes_on_exec: bool) {
        let Some(table) = self.tables.get(&task) else { return };
        let mut table = table.borrow_mut();
        if from != to
            && let Some(file) = table.get(&from).map(|fd| Rc::clone(&fd.file))
        {
            table.insert(to, Descriptor { file, closes_on_exec });
        }
    }

    fn fcntl(&mut self, task: TaskId, args: &[u64; 6], made: i32) {
        match args[1] {
            F_DUPFD => self.dup(task, args[0] as i32, made, false),
            F_DUPFD_CLOEXEC => self.dup(task, args[0] as i32, made, true),
            F_SETFD => {
                if let Some(table) = self.tables.get(&task)
                    && let Some(fd) = table.borrow_mut().get_mut(&(args[0] as i32))
                {
                    fd.closes_on_exec = args[2] & 1 != 0;
                }
            }
            _ => {}
        }
    }

    fn pair(&mut self, call: &Finished<'_>, name: &str, args: &[u64; 6]) {
        let Some(pair) = call.pair else { return };
        let closes = matches!(name, "pipe2" | "socketpair") && args[1] & O_CLOEXEC != 0;
        let path = self.fresh(if name == "socketpair" { "socket" } else { "pipe" });
        for fd in pair {
            self.put(call.task, fd, path.clone(), None, closes);
        }
    }
}

/// Whether offsets mean something in what a path names.
fn seekable(path: &str) -> bool {
    let plain = path.starts_with('/') || !path.contains(":[");
    plain && !path.starts_with("/dev/") && !path.starts_with("/proc/self/fd")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn number(name: &str) -> u32 {
        kernel::all().find(|row| row.name == name).unwrap().nr
    }

    struct Script(Files);

    impl Script {
        fn call(&mut self, task: u32, name: &str, args: &[u64], result: i64, path: Option<&str>) -> Use {
            let mut all = [0; 6];
            all[..args.len()].copy_from_slice(args);
            let nr = number(name);
            let info = SyscallInfo { nr, args: all, result: Some(result), output: None, output_crc: 0 };
            self.0.finished(&Finished { task: TaskId(task), info: &info, path, pair: Some([7, 8]) })
        }
    }

    #[test]
    fn offsets_are_shared_by_copies_and_forgotten_on_close() {
        let mut script = Script(Files::new(&[]));
        let used = |fd, path: &str, offset| Use { fd: Some(fd), path: Some(path.into()), offset };
        script.call(0, "openat", &[u64::MAX, 1, O_CLOEXEC], 3, Some("/tmp/x"));
        assert_eq!(script.call(0, "read", &[3, 0, 100], 100, None), used(3, "/tmp/x", Some(0)));
        script.call(0, "dup2", &[3, 5], 5, None);
        script.0.spawn(TaskId(0), TaskId(1), 0);
        assert_eq!(script.call(1, "read", &[5, 0, 100], 50, None), used(5, "/tmp/x", Some(100)));
        assert_eq!(script.call(0, "read", &[3, 0, 9], 9, None), used(3, "/tmp/x", Some(150)));
        script.call(0, "lseek", &[3, 7, 0], 7, None);
        assert_eq!(script.call(1, "pread64", &[5, 0, 9, 4000], 9, None), used(5, "/tmp/x", Some(4000)));
        assert_eq!(script.call(1, "write", &[5, 0, 9], -5, None), used(5, "/tmp/x", Some(7)));
        script.0.exec(TaskId(1));
        assert_eq!(script.call(1, "read", &[3, 0, 9], -9, None).path, None, "closed by exec");
        assert_eq!(script.call(1, "read", &[5, 0, 9], 1, None), used(5, "/tmp/x", Some(7)));
        script.call(0, "pipe2", &[0, 0], 0, None);
        assert_eq!(script.call(0, "read", &[7, 0, 9], 9, None), used(7, "pipe:[1]", None));
        script.call(0, "close", &[7], 0, None);
        assert_eq!(script.call(0, "read", &[7, 0, 9], -9, None).path, None);
    }
}
