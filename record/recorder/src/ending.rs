//! Requests to end a recording: the first goes to the recorded command, the second ends everything. Knows nothing of events.
#![expect(unsafe_code, reason = "kill(2)")]

use guest::TaskId;
use ptrace::{HostTid, Report, Stopped, Waited};

use crate::api::RecordError;
use crate::session::Session;
use crate::task::Run;
use crate::{ptracing, timer, tsc};

/// Ticks within which one signal that was sent to a whole process group reaches both the recorder and the command.
const SETTLE: u32 = 2;

/// Ticks in which what was killed must be gone.
const DEATH: u32 = 1000;

/// What is to be done about a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Ending {
    /// The command gets this signal.
    Forward(i32),
    /// Everything is killed.
    Kill,
}

/// Requests so far.
#[derive(Default, Debug)]
pub(crate) struct Requests {
    /// The signal that asks, and the tick at which it was seen.
    asked: Option<(i32, u32)>,
    /// A signal that the command got from others, and when.
    met: Option<(i32, u32)>,
    forwarded: bool,
}

impl Requests {
    /// The command's first process is about to get a signal.
    pub(crate) fn met(&mut self, signal: i32, stopped: &Stopped, now: u32) {
        if !timer::REQUESTS.contains(&signal) {
            return;
        }
        let ours = |info: [u8; 128]| info[16..20] == std::process::id().to_le_bytes();
        if !stopped.siginfo().is_ok_and(ours) {
            self.met = Some((signal, now));
        }
    }

    /// The request that is now due: one that came a while ago, and did not reach the command by itself.
    pub(crate) fn due(&mut self, came: Option<i32>, now: u32) -> Option<Ending> {
        if let Some(signal) = came {
            self.asked.get_or_insert((signal, now));
        }
        let (signal, since) = self.asked.filter(|(_, since)| now.wrapping_sub(*since) >= SETTLE)?;
        self.asked = None;
        let earliest = since.wrapping_sub(SETTLE);
        let met = |(met, at): (i32, u32)| met == signal && now.wrapping_sub(at) <= now.wrapping_sub(earliest);
        if self.met.is_some_and(met) {
            return None;
        }
        Some(if std::mem::replace(&mut self.forwarded, true) {
            Ending::Kill
        } else {
            Ending::Forward(signal)
        })
    }
}

impl Session {
    /// Passes a request to end on to the command's first process; where that is gone, or was asked before, kills all.
    pub(crate) fn heed_requests(&mut self, now: u32) {
        let asked = self.core.timer.take_request();
        let first = self.tasks.values().find(|task| task.id == TaskId(0)).map(|task| task.host);
        match (self.core.requests.due(asked, now), first) {
            (None, _) => {}
            (Some(Ending::Forward(signal)), Some(first)) => forward(first, signal),
            (Some(_), _) => self.kill_all(),
        }
    }

    /// Kills what the first process left behind, when its time is over.
    pub(crate) fn end_the_rest(&mut self) {
        let over = |limit| self.ended.is_some_and(|ended| tsc::clock().saturating_sub(ended) >= limit);
        if !self.ending && self.linger.is_some_and(over) {
            self.kill_all();
        }
    }

    /// Kills every task. Those that stand at their own end already are let go: killing does not wake them.
    pub(crate) fn kill_all(&mut self) {
        self.ending = true;
        self.killed.get_or_insert(self.core.timer.now());
        self.ready.clear();
        for task in self.tasks.values_mut() {
            task.host.kill();
            ptracing::let_go(task);
            match std::mem::replace(&mut task.run, Run::Running) {
                Run::Ready(stopped, _) => drop(stopped.cont(0)),
                Run::Waits(report) => finish_off(task.host, report),
                Run::Running | Run::Halted | Run::Traced(_) => {}
            }
        }
        for (tid, report) in std::mem::take(&mut self.core.early) {
            finish_off(tid, report);
        }
    }

    /// Killed tasks that do not go are given up: they end with this process at the latest.
    pub(crate) fn check_dying(&self, now: u32) -> Result<(), RecordError> {
        match self.killed {
            Some(since) if now.wrapping_sub(since) > DEATH => {
                let left: Vec<_> = self.tasks.keys().map(HostTid::to_string).collect();
                Err(RecordError::Bug { what: format!("killed tasks that do not end: {}", left.join(", ")) })
            }
            _ => Ok(()),
        }
    }

    /// Waits a while until every task is gone, recording nothing.
    pub(crate) fn reap(&mut self) {
        let since = self.core.timer.now();
        while !self.tasks.is_empty() && self.core.timer.now().wrapping_sub(since) <= DEATH {
            match ptrace::wait_any_or_signal() {
                Ok(Some(Waited { tid, report: Report::Exited(_) | Report::Killed(..) })) => {
                    self.tasks.remove(&tid);
                }
                Ok(Some(Waited { tid, report })) => finish_off(tid, report),
                Ok(None) => {}
                Err(_) => return,
            }
        }
    }
}

/// Kills what was reported, also where it stands at its own end already and would wait there.
pub(crate) fn finish_off(tid: HostTid, report: Report) {
    // The id of one that is gone may be another's by now.
    if !matches!(report, Report::Exited(_) | Report::Killed(..)) {
        tid.kill();
    }
    match report {
        Report::Seccomp(stopped)
        | Report::Syscall(stopped)
        | Report::Event(_, stopped)
        | Report::Signal(_, stopped)
        | Report::Group(_, stopped) => drop(stopped.cont(0)),
        Report::Exited(_) | Report::Killed(..) => {}
    }
}

/// Sends a signal to a recorded process.
fn forward(process: HostTid, signal: i32) {
    // SAFETY: kill takes numbers only. The id is a tracee's, which is not reused before it is waited for.
    unsafe { libc::kill(process.0, signal) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_request_is_forwarded_and_the_second_kills() {
        let mut requests = Requests::default();
        assert_eq!(requests.due(None, 5), None);
        assert_eq!(requests.due(Some(15), 10), None);
        assert_eq!(requests.due(Some(15), 11), None, "one request so far");
        assert_eq!(requests.due(None, 12), Some(Ending::Forward(15)));
        assert_eq!(requests.due(None, 20), None);
        assert_eq!(requests.due(Some(1), 21), None);
        assert_eq!(requests.due(None, 23), Some(Ending::Kill));
    }

    #[test]
    fn what_the_command_gets_by_itself_is_not_forwarded() {
        let due = |met| {
            let mut requests = Requests { met: Some(met), ..Requests::default() };
            assert_eq!(requests.due(Some(15), 10), None);
            requests.due(None, 12)
        };
        assert_eq!(due((15, 9)), None);
        assert_eq!(due((15, 12)), None);
        assert_eq!(due((15, 7)), Some(Ending::Forward(15)), "long ago");
        assert_eq!(due((1, 11)), Some(Ending::Forward(15)), "another signal");
    }
}
