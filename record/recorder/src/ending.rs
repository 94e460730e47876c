//! Requests to end a recording: the first goes to the recorded command, the second ends everything. Knows nothing of events.
#![expect(unsafe_code, reason = "kill(2)")]

use ptrace::{HostTid, Stopped};

/// Ticks within which one signal that was sent to a whole process group reaches both the recorder and the command.
const SETTLE: u32 = 2;

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
        if !matches!(signal, libc::SIGTERM | libc::SIGHUP) {
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

/// Sends a signal to a recorded process.
pub(crate) fn forward(process: HostTid, signal: i32) {
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
