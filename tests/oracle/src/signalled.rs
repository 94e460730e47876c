//! Recordings of programs that signals from outside stop, let go on and interrupt.
#![expect(clippy::unwrap_used, reason = "a test says what failed")]
#![expect(unsafe_code, reason = "kill(2)")]

use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use trace::{Fact, SignalAction, Trace};

use crate::command::{backstory, recorder_with};
use crate::programs;

/// Records a program of `tests/programs/points` that first prints its process id and goes on until SIGTERM: it is stopped, let go on and
/// sent SIGUSR1 so many times. What it printed, and its recording in `dir`, which has no violation.
pub fn record(program: &str, dir: &Path, times: u64) -> (String, Trace) {
    let source = programs::folder().join("points").join(format!("{program}.c"));
    let guest = programs::build_file(&source, dir);
    // Of signals that come too soon after one another the kernel makes one, and of a stop that is not yet seen to nothing.
    let recorded = [1, 4, 16, 64].into_iter().map(|patience| once(&guest, dir, times, patience));
    recorded.into_iter().find_map(Result::ok).expect("some stop it, and some are handled")
}

/// The same, with so many times the usual time between signals; how many stopped it and were handled if these are too few.
fn once(guest: &Path, dir: &Path, times: u64, patience: u64) -> Result<(String, Trace), (u32, u32)> {
    let trace = dir.join(format!("trace-{patience}"));
    let mut recorder = recorder_with(&["-q"], &trace).arg(guest).stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(recorder.stdout.take().unwrap());
    let mut printed = String::new();
    lines.read_line(&mut printed).unwrap();
    let pid: i32 = printed.trim().parse().unwrap();
    // SAFETY: kill takes numbers only; the process is alive until it is asked to end.
    let send = |signal| assert_eq!(unsafe { libc::kill(pid, signal) }, 0);
    for i in 0..times {
        for signal in [libc::SIGSTOP, libc::SIGCONT, libc::SIGUSR1] {
            send(signal);
            std::thread::sleep(Duration::from_micros(patience * (700 + 137 * (i % 11))));
        }
    }
    send(libc::SIGTERM);
    lines.read_to_string(&mut printed).unwrap();
    assert!(recorder.wait().unwrap().success() && printed.ends_with("\nended\n"), "{printed}");
    let trace = Trace::open(&trace).unwrap();
    assert_eq!(trace::check(&trace), []);
    let (mut stopped, mut handled) = (0, 0);
    for item in trace.events() {
        match item.unwrap().1.fact {
            Fact::Signal(info) if info.action == SignalAction::Stopped => stopped += 1,
            Fact::Signal(info) if matches!(info.action, SignalAction::Handler { .. }) => handled += 1,
            _ => {}
        }
    }
    if stopped > 2 && handled > 2 { Ok((printed, trace)) } else { Err((stopped, handled)) }
}

/// Replays the recording in `dir` twice; it prints this each time.
#[track_caller]
pub fn replays(dir: &Path, printed: &str) {
    for turn in ["first replay", "second replay"] {
        let output = backstory(["replay"]).arg(dir).output().unwrap();
        assert!(output.status.success(), "{turn}: {}", String::from_utf8_lossy(&output.stderr));
        assert_eq!(String::from_utf8_lossy(&output.stdout), printed, "{turn}");
    }
}
