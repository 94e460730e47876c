//! A child in the foreground while this process waits for it: SIGTERM and SIGHUP end it, and leave no folder behind.

use std::io;
use std::process::{Command, ExitStatus};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::scratch::Scratch;
use crate::signals;

/// How long the child may take to end.
const GRACE: Duration = Duration::from_secs(2);

/// What there is to end, and what asked for it.
#[derive(Default)]
struct State {
    child: Option<u32>,
    ended: Option<i32>,
}

/// The child, once there is one.
pub(crate) struct Foreground(Arc<Mutex<State>>);

impl Foreground {
    /// From now on these signals end the child, or, before there is one, this process, but not before `scratch` is gone.
    pub(crate) fn new(scratch: &Scratch) -> io::Result<Self> {
        let state = Arc::new(Mutex::new(State::default()));
        let (shared, folder) = (Arc::clone(&state), scratch.path().to_owned());
        signals::on_end(move |signo| {
            // Held to the end where there is no child, so that there will be none.
            let mut state = lock(&shared);
            state.ended = Some(signo);
            let Some(child) = state.child else {
                let _ = std::fs::remove_dir_all(&folder);
                signals::die_of(signo);
            };
            signals::send(child, libc::SIGTERM);
            drop(state);
            std::thread::sleep(GRACE);
            if let Some(child) = lock(&shared).child {
                signals::send(child, libc::SIGKILL);
            }
        })?;
        Ok(Self(state))
    }

    /// Runs `command` to its end.
    pub(crate) fn run(&self, command: &mut Command) -> io::Result<ExitStatus> {
        let mut state = lock(&self.0);
        let mut child = command.spawn()?;
        state.child = Some(child.id());
        drop(state);
        signals::wait_to_end(child.id());
        // Its id may be another process's as soon as it was waited for.
        lock(&self.0).child = None;
        child.wait()
    }

    /// The signal that asked for the end, if one did.
    pub(crate) fn ended(&self) -> Option<i32> {
        lock(&self.0).ended
    }
}

fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}
