//! The connection, and what the library cannot say: packets of other forms, and those that it does not know.

use std::io;
use std::os::unix::net::UnixStream;

use gdbstub::conn::{Connection, ConnectionExt};

/// Bytes of text as the protocol has them.
pub(crate) fn hex(text: &str) -> String {
    text.bytes().map(|byte| format!("{byte:02x}")).collect()
}

/// A packet with its checksum.
fn packet(body: &[u8]) -> Vec<u8> {
    let sum = body.iter().fold(0u8, |sum, byte| sum.wrapping_add(*byte));
    [b"$", body, format!("#{sum:02x}").as_bytes()].concat()
}

/// Bytes as the protocol has them where it does not have them in hexadecimal.
pub(crate) fn escaped(bytes: &[u8]) -> Vec<u8> {
    let escape = |&byte: &u8| match byte {
        b'#' | b'$' | b'}' | b'*' => vec![b'}', byte ^ 0x20],
        _ => vec![byte],
    };
    bytes.iter().flat_map(escape).collect()
}

/// The connection, buffered both ways.
pub(crate) struct Wire {
    stream: UnixStream,
    out: Vec<u8>,
    read: Vec<u8>,
    at: usize,
    /// Whether gdb wants to be told that a packet came.
    acknowledges: bool,
    /// Where in `out` a packet begins that goes in another form, and which.
    instead: Option<(usize, String)>,
}

/// How the reply begins in which a server says what it can do.
const CAPABILITIES: &[u8] = b"$PacketSize=";

/// What we can do and the library does not know.
const MORE_CAPABILITIES: &str = ";exec-events+;qXfer:siginfo:read+";

/// What gdb sends to interrupt.
const INTERRUPT: u8 = 3;

/// What gdb sends to be no longer told that packets came.
const NO_ACKNOWLEDGEMENTS: &[u8] = b"$QStartNoAckMode#b0";

impl Wire {
    pub(crate) fn new(stream: UnixStream) -> Self {
        Self { stream, out: Vec::new(), read: Vec::new(), at: 0, acknowledges: true, instead: None }
    }

    /// Waits for more bytes; `Ok(false)` if there are none and it must not wait.
    fn fill(&mut self, wait: bool) -> io::Result<bool> {
        self.stream.set_nonblocking(!wait)?;
        self.read.drain(..self.at);
        self.at = 0;
        let held = self.read.len();
        self.read.resize(held + (1 << 16), 0);
        let got = loop {
            match io::Read::read(&mut self.stream, &mut self.read[held..]) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                other => break other,
            }
        };
        self.read.truncate(held + *got.as_ref().unwrap_or(&0));
        match got {
            Ok(0) => Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(_) => Ok(true),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Sends what `answer` says to each packet that comes next, until it does not know one.
    pub(crate) fn answer(&mut self, mut answer: impl FnMut(&str) -> Option<Vec<u8>>) -> io::Result<()> {
        while let Some(whole) = self.whole_packet()? {
            let unread = &self.read[self.at..self.at + whole];
            if unread == NO_ACKNOWLEDGEMENTS {
                self.acknowledges = false;
            }
            let body = std::str::from_utf8(&unread[1..whole - 3]);
            let Some(reply) = body.ok().and_then(&mut answer) else { return Ok(()) };
            self.at += whole;
            self.out.extend(self.acknowledges.then_some(b'+'));
            self.out.extend_from_slice(&packet(&reply));
            self.flush()?;
        }
        Ok(())
    }

    /// The length of the packet that comes next, once it is here; `None` if something else comes.
    fn whole_packet(&mut self) -> io::Result<Option<usize>> {
        loop {
            let unread = &self.read[self.at..];
            match (unread.first(), unread.iter().position(|&byte| byte == b'#')) {
                (Some(b'$'), Some(end)) if unread.len() >= end + 3 => return Ok(Some(end + 3)),
                (None | Some(b'$'), _) => {
                    // An acknowledgement is written without a flush of its own.
                    self.flush()?;
                    self.fill(true)?;
                }
                _ => return Ok(None),
            }
        }
    }

    /// Has gdb print `text`: an `O` packet, which it takes while it waits for a stop.
    pub(crate) fn say(&mut self, text: &str) {
        self.out.extend_from_slice(&packet(format!("O{}", hex(text)).as_bytes()));
    }

    /// The next packet goes as this one.
    pub(crate) fn say_instead(&mut self, body: String) {
        self.instead = Some((self.out.len(), body));
    }

    /// Puts in what the library cannot say: execs as stops, and that we have them.
    fn amend(&mut self) {
        if let Some((at, body)) = self.instead.take() {
            self.out.truncate(at);
            self.out.extend_from_slice(&packet(body.as_bytes()));
        }
        // Behind acknowledgements at most.
        let at = self.out.iter().take_while(|&&byte| byte == b'+').count();
        let body = self.out.get(at..).filter(|packet| packet.starts_with(CAPABILITIES));
        let body = body.and_then(|packet| std::str::from_utf8(&packet[1..]).ok()?.split_once('#'));
        if let Some((body, _)) = body {
            let amended = packet(format!("{body}{MORE_CAPABILITIES}").as_bytes());
            self.out.truncate(at);
            self.out.extend_from_slice(&amended);
        }
    }

    /// Whether gdb has interrupted, or gone, since it was asked last. Takes the interrupt.
    pub(crate) fn interrupted(&mut self) -> bool {
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
