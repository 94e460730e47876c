//! Frames on their way to the files: packed and written by a thread of their own, in the order in which they are handed over.
//!
//! So packing takes no time from what is being recorded, where there is another processor. Only so many frames wait; then whoever
//! hands over the next one waits, too. The thread begins with the first frame; a recording that has none before its end does without.
//! Knows nothing of what frames of others hold; those that name pieces are its own.

use std::cell::RefCell;
use std::io;
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};
use std::sync::{Arc, OnceLock, PoisonError};
use std::thread::JoinHandle;

use guest::PieceId;

use crate::files::Shelf;
use crate::frame::{FrameWriter, Kind};
use crate::pieces::{KeptPiece, Origin, Written};
use crate::writer::WriteError;

/// Frames that wait at most.
const QUEUE: usize = 8;

/// A frame to be written.
pub(crate) struct Frame {
    pub(crate) kind: Kind,
    /// Position of the first item in its stream.
    pub(crate) first: u64,
    /// Number of items.
    pub(crate) count: u32,
    /// The body as it is before it is packed.
    pub(crate) raw: Vec<u8>,
}

enum Job {
    Write(Frame),
    Keep(PieceId, Vec<u8>, Option<Origin>),
    /// Everything before it was written, or cannot be.
    Tell(SyncSender<()>),
}

/// The files of a trace.
pub(crate) struct Files {
    pub(crate) events: FrameWriter,
    pub(crate) payload: FrameWriter,
    pub(crate) shelf: Shelf,
    /// The pieces on the shelf.
    pub(crate) kept: Written,
}

impl Files {
    fn of(&mut self, kind: Kind) -> &mut FrameWriter {
        if kind == Kind::Payload { &mut self.payload } else { &mut self.events }
    }

    fn write(&mut self, frame: &Frame) -> Result<(), Failed> {
        let file = self.of(frame.kind);
        let written = file.frame(frame.kind, frame.first, frame.count, &frame.raw);
        written.map_err(|source| Failed { path: file.path().to_owned(), source })
    }

    /// Writes a piece, and says so in the event stream.
    fn keep(&mut self, id: PieceId, bytes: &[u8], origin: Option<Origin>) -> Result<(), Failed> {
        let hash = self.shelf.put(bytes, origin).map_err(|(path, source)| Failed { path, source })?;
        self.kept.lock().unwrap_or_else(PoisonError::into_inner).push(hash);
        let failed = |source| Failed { path: self.events.path().to_owned(), source };
        let raw = postcard::to_stdvec(&KeptPiece { hash, len: bytes.len() as u32 });
        let raw = raw.map_err(|error| failed(io::Error::other(error)))?;
        self.write(&Frame { kind: Kind::Pieces, first: u64::from(id.0), count: 1, raw })
    }
}

/// Why nothing is written any more.
struct Failed {
    path: PathBuf,
    source: io::Error,
}

impl Failed {
    fn error(&self) -> WriteError {
        let source = match self.source.raw_os_error() {
            Some(code) => io::Error::from_raw_os_error(code),
            None => io::Error::new(self.source.kind(), self.source.to_string()),
        };
        WriteError::Io { path: self.path.clone(), source }
    }
}

enum State {
    /// Nothing was handed over yet.
    Idle(Box<Idle>),
    Running {
        jobs: SyncSender<Job>,
        thread: JoinHandle<Files>,
    },
    Ended(Box<Files>),
    /// The thread is gone and has taken the files with it.
    Lost,
}

/// What the thread begins with.
struct Idle {
    files: Files,
    /// What it does first.
    first: Box<dyn FnOnce() + Send>,
}

/// Writes frames in the background.
pub(crate) struct Packer {
    state: RefCell<State>,
    failed: Arc<OnceLock<Failed>>,
    /// Bodies that were written, for the next ones.
    spare: Receiver<Vec<u8>>,
    back: Sender<Vec<u8>>,
    path: PathBuf,
}

impl Packer {
    /// Writes to these files.
    pub(crate) fn new(files: Files) -> Self {
        let (back, spare) = channel();
        let path = files.events.path().to_owned();
        let idle = Idle { files, first: Box::new(|| ()) };
        Self { state: RefCell::new(State::Idle(Box::new(idle))), failed: Arc::default(), spare, back, path }
    }

    /// What the thread is to do first, where it has not begun.
    pub(crate) fn first(&mut self, first: impl FnOnce() + Send + 'static) {
        if let State::Idle(idle) = self.state.get_mut() {
            idle.first = Box::new(first);
        }
    }

    /// From here on nothing is gained by a thread that has not begun.
    pub(crate) fn last(&mut self) {
        self.state.replace_with(|state| match std::mem::replace(state, State::Lost) {
            State::Idle(idle) => State::Ended(Box::new(idle.files)),
            other => other,
        });
    }

    /// An empty body with room.
    pub(crate) fn body(&self) -> Vec<u8> {
        self.spare.try_recv().unwrap_or_default()
    }

    /// Has a frame written after those before it. An error may be that of an earlier one.
    pub(crate) fn hand_over(&self, frame: Frame) -> Result<(), WriteError> {
        self.send(Job::Write(frame))
    }

    /// Has a piece kept, the one after those before it.
    pub(crate) fn keep(&self, id: PieceId, bytes: Vec<u8>, origin: Option<Origin>) -> Result<(), WriteError> {
        self.send(Job::Keep(id, bytes, origin))
    }

    /// Waits until everything that was handed over is written.
    pub(crate) fn wait(&self) -> Result<(), WriteError> {
        if let State::Idle(_) = *self.state.borrow() {
            return Ok(());
        }
        let (tell, told) = sync_channel(1);
        self.send(Job::Tell(tell))?;
        told.recv().map_err(|_| self.lost())?;
        self.check()
    }

    /// Writes what was handed over and ends the thread. Tells, too, what could not be written before.
    pub(crate) fn end(&mut self) -> Result<(), WriteError> {
        self.join();
        self.check()?;
        self.files().map(drop).ok_or_else(|| self.lost())
    }

    /// The files, once the thread has ended.
    pub(crate) fn files(&mut self) -> Option<&Files> {
        match self.state.get_mut() {
            State::Ended(files) => Some(files),
            State::Idle(_) | State::Running { .. } | State::Lost => None,
        }
    }

    /// The error that keeps everything after it from being written, if there was one.
    pub(crate) fn check(&self) -> Result<(), WriteError> {
        self.failed.get().map_or(Ok(()), |failed| Err(failed.error()))
    }

    fn send(&self, job: Job) -> Result<(), WriteError> {
        self.check()?;
        let mut state = self.state.borrow_mut();
        if let State::Idle(_) = *state {
            *state = match std::mem::replace(&mut *state, State::Lost) {
                State::Idle(idle) => self.begun(*idle)?,
                other => other,
            };
        }
        match &mut *state {
            State::Running { jobs, .. } => jobs.send(job).map_err(|_| self.lost()),
            State::Ended(files) => {
                do_job(files, job, &self.back, &self.failed);
                self.check()
            }
            State::Idle(_) | State::Lost => Err(self.lost()),
        }
    }

    fn begun(&self, Idle { mut files, first }: Idle) -> Result<State, WriteError> {
        let (jobs, todo) = sync_channel(QUEUE);
        let (back, failed) = (self.back.clone(), Arc::clone(&self.failed));
        let thread = std::thread::Builder::new().name("packer".into()).spawn(move || {
            first();
            todo.iter().for_each(|job| do_job(&mut files, job, &back, &failed));
            files
        });
        let thread = thread.map_err(|source| WriteError::Io { path: self.path.clone(), source })?;
        Ok(State::Running { jobs, thread })
    }

    fn join(&mut self) {
        self.last();
        self.state.replace_with(|state| match std::mem::replace(state, State::Lost) {
            State::Running { jobs, thread } => {
                drop(jobs);
                thread.join().map_or(State::Lost, |files| State::Ended(Box::new(files)))
            }
            other => other,
        });
    }

    fn lost(&self) -> WriteError {
        let source = io::Error::other("the thread that writes it is gone");
        WriteError::Io { path: self.path.clone(), source }
    }
}

impl Drop for Packer {
    fn drop(&mut self) {
        self.join();
    }
}

/// Does what was handed over. After an error nothing more is written, for that would leave a gap.
fn do_job(files: &mut Files, job: Job, back: &Sender<Vec<u8>>, failed: &OnceLock<Failed>) {
    let (mut raw, done) = match job {
        Job::Tell(tell) => {
            let _ = tell.send(());
            return;
        }
        Job::Write(frame) if failed.get().is_some() => (frame.raw, Ok(())),
        Job::Keep(_, bytes, _) if failed.get().is_some() => (bytes, Ok(())),
        Job::Write(frame) => {
            let done = files.write(&frame);
            (frame.raw, done)
        }
        Job::Keep(id, bytes, origin) => {
            let done = files.keep(id, &bytes, origin);
            (bytes, done)
        }
    };
    if let Err(error) = done {
        let _ = failed.set(error);
    }
    raw.clear();
    let _ = back.send(raw);
}
