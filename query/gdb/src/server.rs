//! The server's loop: packets from one gdb, movements in between, until it goes away.

use std::io;
use std::os::unix::net::UnixStream;

use gdbstub::common::Signal;
use gdbstub::conn::{Connection, ConnectionExt};
use gdbstub::stub::state_machine::GdbStubStateMachine;
use gdbstub::stub::{GdbStub, GdbStubError, MultiThreadStopReason};
use gdbstub::target::ext::base::reverse_exec::ReplayLogPosition;

use crate::session::{Halt, Session, SessionError};
use crate::target::thread;

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
            GdbStubStateMachine::Idle(mut stub) => match stub.borrow_conn().read() {
                Ok(byte) => stub.incoming_data(session, byte)?,
                Err(_) => return Ok(Parting::Closed),
            },
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
                // It came too late: what it was meant for had stopped by itself.
                stub.interrupt_handled(session, None::<MultiThreadStopReason<u64>>)?
            }
            GdbStubStateMachine::Disconnected(_) => return Ok(Parting::Done),
        };
    }
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

/// Bytes of text as the protocol has them.
fn hex(text: &str) -> String {
    text.bytes().map(|byte| format!("{byte:02x}")).collect()
}

/// A packet with its checksum.
fn packet(body: &str) -> Vec<u8> {
    let sum = body.bytes().fold(0u8, u8::wrapping_add);
    format!("${body}#{sum:02x}").into_bytes()
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

/// The connection, buffered both ways.
struct Wire {
    stream: UnixStream,
    out: Vec<u8>,
    read: Vec<u8>,
    at: usize,
    /// Where in `out` a packet begins that goes in another form, and which.
    instead: Option<(usize, String)>,
}

/// How the reply begins in which a server says what it can do.
const CAPABILITIES: &[u8] = b"$PacketSize=";

/// What gdb sends to interrupt.
const INTERRUPT: u8 = 3;

impl Wire {
    fn new(stream: UnixStream) -> Self {
        Self { stream, out: Vec::new(), read: Vec::new(), at: 0, instead: None }
    }

    /// Waits for bytes; `Ok(false)` if there are none and it must not wait.
    fn fill(&mut self, wait: bool) -> io::Result<bool> {
        self.stream.set_nonblocking(!wait)?;
        self.read.resize(1 << 16, 0);
        self.at = 0;
        let got = loop {
            match io::Read::read(&mut self.stream, &mut self.read) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                other => break other,
            }
        };
        self.read.truncate(*got.as_ref().unwrap_or(&0));
        match got {
            Ok(0) => Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(_) => Ok(true),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Has gdb print `text`: an `O` packet, which it takes while it waits for a stop.
    fn say(&mut self, text: &str) {
        self.out.extend_from_slice(&packet(&format!("O{}", hex(text))));
    }

    /// The next packet goes as this one.
    fn say_instead(&mut self, body: String) {
        self.instead = Some((self.out.len(), body));
    }

    /// Puts in what the library cannot say: execs as stops, and that we have them.
    fn amend(&mut self) {
        if let Some((at, body)) = self.instead.take() {
            self.out.truncate(at);
            self.out.extend_from_slice(&packet(&body));
        }
        // Behind acknowledgements at most.
        let at = self.out.iter().take_while(|&&byte| byte == b'+').count();
        let body = self.out.get(at..).filter(|packet| packet.starts_with(CAPABILITIES));
        let body = body.and_then(|packet| std::str::from_utf8(&packet[1..]).ok()?.split_once('#'));
        if let Some((body, _)) = body {
            let amended = packet(&format!("{body};exec-events+"));
            self.out.truncate(at);
            self.out.extend_from_slice(&amended);
        }
    }

    /// Whether gdb has interrupted, or gone, since it was asked last. Takes the interrupt.
    fn interrupted(&mut self) -> bool {
        match self.peek() {
            Ok(Some(INTERRUPT)) => {
                self.at += 1;
                true
            }
            Ok(_) => false,
            Err(_) => true,
        }
    }
}

impl Connection for Wire {
    type Error = io::Error;

    fn write(&mut self, byte: u8) -> io::Result<()> {
        self.out.push(byte);
        Ok(())
    }

    fn write_all(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.out.extend_from_slice(bytes);
        Ok(())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.amend();
        self.stream.set_nonblocking(false)?;
        io::Write::write_all(&mut self.stream, &self.out)?;
        self.out.clear();
        Ok(())
    }
}

impl ConnectionExt for Wire {
    fn read(&mut self) -> io::Result<u8> {
        if self.at == self.read.len() {
            // An acknowledgement is written without a flush of its own.
            self.flush()?;
            self.fill(true)?;
        }
        self.at += 1;
        Ok(self.read[self.at - 1])
    }

    fn peek(&mut self) -> io::Result<Option<u8>> {
        if self.at == self.read.len() && !self.fill(false)? {
            return Ok(None);
        }
        Ok(self.read.get(self.at).copied())
    }
}
