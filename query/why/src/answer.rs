//! The answer as data. Serialized as it is for `--json`; addresses are `0x..` text, moments are numbers.

use serde::Serialize;
use symbols::Value;

use crate::text::Shown;

/// The answer to one question.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Answer {
    /// What was asked about.
    pub target: Target,
    /// The moment before which the last write was looked for.
    pub before: u64,
    /// Who wrote it last, or that nobody did.
    #[serde(flatten)]
    pub verdict: Verdict,
}

/// The memory that was asked about.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Target {
    /// Its address.
    pub addr: String,
    /// Its size in bytes.
    pub size: u64,
    /// The variable it belongs to (`ops+0x200`), where symbols know, or the part of one that was asked for (`u[7].field`).
    pub name: Option<String>,
    /// The space it is in.
    pub space: u32,
    /// Which bits of it, of a bit-field.
    pub field: Option<Field>,
    /// The program that runs there, where the recording has several spaces.
    pub program: Option<String>,
}

/// A bit-field.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Field {
    /// Its lowest bit, counted from the lowest one of the target's first byte.
    pub first: u64,
    /// How many bits it has.
    pub count: u64,
    /// Whether the write is the last one that changed it, not only the last one that wrote its bytes.
    pub changed: bool,
}

/// Who wrote. In JSON its fields stand beside the target, with `verdict` as the kind.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
#[serde(tag = "verdict", rename_all = "snake_case")]
pub enum Verdict {
    /// The last write that touched a byte of it.
    Written(Box<Hop>),
    /// Nothing wrote it since it was mapped.
    NeverWritten(Origin),
}

/// One write.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Hop {
    /// When: seeking there stops just before it happens.
    pub moment: u64,
    /// Who ran.
    pub task: u32,
    /// Thread id as the program saw it.
    pub tid: Option<i32>,
    /// The space that was written: the target's, the one it was forked from, or one that shares the memory.
    pub space: u32,
    /// Whether the memory is shared and was written through another mapping of it than the target's: in that space, at the
    /// address of `coverage`.
    pub aliased: bool,
    /// The program that wrote, where the memory is shared and that happened in another space.
    pub program: Option<String>,
    /// What wrote: an instruction or the kernel.
    pub writer: Writer,
    /// Which bytes of which write.
    pub coverage: Coverage,
    /// Where `old` and `new` begin: at the target, or, if it is large, at the first byte of it that was written.
    pub values_at: String,
    /// Bytes before, at most 16.
    pub old: Option<Bytes>,
    /// The same bytes after.
    pub new: Option<Bytes>,
    /// The calls in progress, innermost first; inlined functions and tail callers have frames of their own.
    pub stack: Vec<StackFrame>,
}

/// What wrote.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Writer {
    /// An instruction.
    Instruction {
        /// Where it is.
        place: Place,
        /// Its text, Intel syntax.
        text: Option<String>,
    },
    /// The kernel.
    Kernel {
        /// `read(3, 0x4060, 400) = 400 </tmp/storyX> offset 0`, `exec of /bin/true`, `signal 11 frame`.
        text: String,
        /// Descriptor, where the call has one.
        fd: Option<i32>,
        /// What it was open on.
        path: Option<String>,
        /// File offset of the target's first written byte, where known.
        offset: Option<u64>,
        /// Where the call was made.
        place: Option<Place>,
        /// Where the byte came into the file, where the recording shows it.
        source: Option<Source>,
    },
}

/// The call that wrote a byte to a file from which it was read later: the next thing to ask about.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Source {
    /// When.
    pub moment: u64,
    /// The call.
    pub text: String,
    /// Where the byte was in its buffer.
    pub addr: String,
}

/// A place in code.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize)]
pub struct Place {
    /// Its address.
    pub pc: String,
    /// The function, demangled.
    pub function: Option<String>,
    /// `libc.so.6+0x9d1f0`, where it comes from a file.
    pub module: Option<String>,
    /// Source file.
    pub file: Option<String>,
    /// Line in it.
    pub line: Option<u32>,
    /// Text of that line, where the file is on this machine.
    pub source: Option<String>,
    /// Whether that file was changed since the recording: the text may be of another line.
    pub source_changed: bool,
}

/// A frame of the call stack.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize)]
pub struct StackFrame {
    /// Where it is: the write for the innermost, the call for the others, the jump for one that is gone.
    pub place: Place,
    /// Whether it is inlined into the next frame.
    pub inlined: bool,
    /// The moment at which it jumped to the function of the frame before it (tail call) and so left the stack.
    pub jumped: Option<u64>,
    /// The moment at which what ran before went over to the stack on which this frame is the outermost that is known (goroutines,
    /// coroutines).
    pub switched: Option<u64>,
    /// The moment its function was called.
    pub entered: Option<u64>,
    /// No function but the delivery of a signal.
    pub signal: bool,
}

/// How a write and the target overlap.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Coverage {
    /// Address of the write.
    pub addr: String,
    /// Its length in bytes.
    pub len: u64,
    /// First byte of the target that it wrote, from 0.
    pub first: u64,
    /// How many bytes of the target it wrote.
    pub count: u64,
}

/// Some bytes, shown as a number where they fit in one.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Bytes {
    /// Hexadecimal digits, in memory order.
    pub hex: String,
    /// As a little-endian number, for 1, 2, 4 or 8 bytes.
    pub number: Option<u64>,
    /// What they say by the type of what was asked about, where that is known: `-7`, `0.5`, `"text"`.
    pub typed: Option<String>,
}

/// Where contents that nobody wrote come from.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Origin {
    /// The moment it was mapped.
    pub mapped_at: u64,
    /// By what: `mmap(...)`, `exec of ...`.
    pub mapped_by: String,
    /// Name of the mapping.
    pub name: String,
    /// The file it shows, with the offset of the target in it; `None` for zeroes.
    pub file: Option<(String, u64)>,
    /// The contents, at most 16 bytes.
    pub value: Option<Bytes>,
}

impl Bytes {
    /// From bytes that are all known and not too many; `None` otherwise.
    pub(crate) fn new(bytes: &[Option<u8>], value: Option<&Value>) -> Option<Self> {
        let bytes: Vec<u8> = bytes.iter().copied().collect::<Option<_>>()?;
        let hex = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        let number = matches!(bytes.len(), 1 | 2 | 4 | 8).then(|| {
            let mut word = [0; 8];
            word[..bytes.len()].copy_from_slice(&bytes);
            u64::from_le_bytes(word)
        });
        let typed = value.and_then(|value| value.shown(&bytes));
        Some(Self { hex, number, typed })
    }
}

impl Answer {
    /// The answer as text. What it says to type next is about the recording `trace`, or about the latest one.
    pub fn text(&self, trace: Option<&str>) -> String {
        Shown { answer: self, trace }.to_string()
    }

    /// The answer as one JSON object on one line.
    pub fn to_json(&self) -> String {
        serde_json::to_string(self).expect("plain data serializes")
    }
}
