//! The server's loop: packets from one gdb, movements in between, until it goes away.

use std::io;
use std::os::unix::net::UnixStream;

use gdbstub::common::Signal;
use gdbstub::conn::ConnectionExt;
use gdbstub::stub::state_machine::GdbStubStateMachine;
use gdbstub::stub::{GdbStub, GdbStubError, MultiThreadStopReason};
use gdbstub::target::ext::base::reverse_exec::ReplayLogPosition;

use crate::catch::Passage;
use crate::session::{Halt, Session, SessionError};
use crate::target::thread;
use crate::wire::{Wire, escaped, hex};

/// Bytes in a packet at most. gdb reads files and memory in pieces of it.
const PACKET: usize = 128 << 10;

/// Why serving gdb ended otherwise than by gdb's wish.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The protocol, the connection or the session failed.
    #[error("serving gdb")]
    Stub(#[from] Box<GdbStubError<SessionError, io::Error>>),
}

/// How gdb went away.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Parting {
    /// It detached or killed: it does not come back.
    Done,
    /// It closed the connection: it disconnected, or it is gone.
    Closed,
}

/// Serves one gdb on `stream` until it detaches, quits or kills.
pub fn serve(session: &mut Session, stream: UnixStream) -> Result<Parting, ServeError> {
    session.connected();
    match talk(session, Wire::new(stream)) {
        Ok(parting) => Ok(parting),
        Err(error) if error.is_connection_error() => Ok(Parting::Closed),
        Err(error) => Err(Box::new(error).into()),
    }
}

fn talk(session: &mut Session, wire: Wire) -> Result<Parting, GdbStubError<SessionError, io::Error>> {
    let stub = GdbStub::builder(wire).packet_buffer_size(PACKET).build();
    let Ok(stub) = stub else { return Ok(Parting::Closed) };
    let mut machine = stub.run_state_machine(session)?;
    loop {
        machine = match machine {
            GdbStubStateMachine::Idle(mut stub) => {
                if stub.borrow_conn().answer(|asked| own_answer(session, asked)).is_err() {
                    return Ok(Parting::Closed);
                }
                match stub.borrow_conn().read() {
                    Ok(byte) => stub.incoming_data(session, byte)?,
                    Err(_) => return Ok(Parting::Closed),
                }
            }
            GdbStubStateMachine::Running(mut stub) => {
                let motion = session.motion;
                let halt = session.go(motion, &mut || stub.borrow_conn().interrupted());
                match halt {
                    Ok(Halt::Exec) => {
                        let packet = exec_packet(session);
                        stub.borrow_conn().say_instead(packet);
                        stub.report_stop(session, signal(session, Signal::SIGTRAP))?
                    }
                    Ok(halt) => {
                        if let Some(remark) = session.remark(halt) {
                            stub.borrow_conn().say(&remark);
                        }
                        stub.report_stop(session, reason(session, halt))?
                    }
                    Err(error) => {
                        tracing::error!(error = %Chain(&error), "cannot go on");
                        stub.report_stop(session, signal(session, Signal::SIGABRT))?
                    }
                }
            }
            GdbStubStateMachine::CtrlCInterrupt(stub) => {
                // What it was meant for had stopped by itself. gdb may go on without asking anybody (a condition did not hold).
                session.interrupted = true;
                stub.interrupt_handled(session, None::<MultiThreadStopReason<u64>>)?
            }
            GdbStubStateMachine::Disconnected(_) => return Ok(Parting::Done),
        };
    }
}

/// The answers to what gdb asks and the library does not know: where a thread-local variable is; what a signal came with.
fn own_answer(session: &Session, asked: &str) -> Option<Vec<u8>> {
    if let Some(asked) = asked.strip_prefix("qGetTLSAddr:") {
        return Some(session.thread_local(asked).into_bytes());
    }
    let asked = asked.strip_prefix("qXfer:siginfo:read::")?;
    let bounds = asked
        .split_once(',')
        .map(|(offset, len)| [offset, len].map(|text| usize::from_str_radix(text, 16).unwrap_or_default()));
    let (Some(info), Some([offset, len])) = (session.siginfo(), bounds) else { return Some(b"E01".to_vec()) };
    let rest = info.get(offset..).unwrap_or_default();
    let mark = if rest.len() > len { b"m" } else { b"l" };
    Some([mark, &*escaped(&rest[..len.min(rest.len())])].concat())
}

/// What gdb is told about a halt.
fn reason(session: &Session, halt: Halt) -> MultiThreadStopReason<u64> {
    let tid = session.current_tid().and_then(thread).unwrap_or(session.pid);
    match halt {
        Halt::Done | Halt::Exec => signal(session, Signal::SIGTRAP),
        Halt::Breakpoint => MultiThreadStopReason::SwBreak(tid),
        Halt::Watchpoint(met) => {
            MultiThreadStopReason::Watch { tid, kind: met.kind, addr: met.watch.range.start.0 }
        }
        Halt::Signal(signo) => signal(session, gdb_signal(signo)),
        Halt::Call(Passage { number, position, .. }) => {
            MultiThreadStopReason::CatchSyscall { tid: Some(tid), number: u64::from(number), position }
        }
        Halt::Interrupted => signal(session, Signal::SIGINT),
        Halt::End => MultiThreadStopReason::ReplayLog { tid: Some(tid), pos: ReplayLogPosition::End },
        Halt::Start => MultiThreadStopReason::ReplayLog { tid: Some(tid), pos: ReplayLogPosition::Begin },
    }
}

/// The stop by which gdb learns that the process is another program from now on, and loads its symbols. The library does not have
/// it.
fn exec_packet(session: &Session) -> String {
    let exe = session.program().map_or("", |program| &program.exe);
    let tid = session.current_tid().and_then(thread).unwrap_or(session.pid);
    format!("T05exec:{};thread:p{:x}.{tid:x};", hex(exe), session.pid)
}

fn signal(session: &Session, signal: Signal) -> MultiThreadStopReason<u64> {
    let tid = session.current_tid().and_then(thread).unwrap_or(session.pid);
    MultiThreadStopReason::SignalWithThread { tid, signal }
}

/// A Linux signal by gdb's number (`include/gdb/signals.def`).
fn gdb_signal(signo: i32) -> Signal {
    let number = match signo {
        7 => 10,
        10 => 30,
        12 => 31,
        17 => 20,
        18 => 19,
        19 => 17,
        20 => 18,
        23 => 16,
        29 => 23,
        30 => 32,
        31 => 12,
        32 => 77,
        33..=63 => signo + 12,
        64 => 78,
        other => other,
    };
    Signal(u8::try_from(number).unwrap_or(0))
}

/// An error with its causes.
struct Chain<'a>(&'a dyn std::error::Error);

impl std::fmt::Display for Chain<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}", self.0)?;
        let mut cause = self.0.source();
        while let Some(error) = cause {
            write!(f, ": {error}")?;
            cause = error.source();
        }
        Ok(())
    }
}
