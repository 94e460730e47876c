//! What the tables hold, for people: the reference that the shell and the documentation show. Tested against the tables.

/// One table or view: its name, what a row is, and its columns with their meanings.
#[derive(Clone, Copy, Debug)]
pub struct Table {
    /// Its name.
    pub name: &'static str,
    /// What a row is.
    pub row: &'static str,
    /// Columns in order. Those after `hidden` are not in `SELECT *`.
    pub columns: &'static [(&'static str, &'static str)],
    /// Columns that must be named to be seen.
    pub hidden: &'static [(&'static str, &'static str)],
}

/// The SQL functions, with their arguments.
pub const FUNCTIONS: &[(&str, &str)] = &[
    ("hex(n)", "a number as 0x..; the bytes of text and blobs as in SQLite"),
    ("sym(pc [, moment [, space]])", "the function at a pc and the offset in it"),
    ("line(pc [, moment [, space]])", "source file and line of a pc"),
    ("arg(entry, n)", "argument n of a call (0 to 5: rdi, rsi, rdx, rcx, r8, r9), by replaying to its entry"),
    (
        "reg(moment, name)",
        "a register (rax, rip, rsp, ..) of the task that runs at a moment, by replaying to it",
    ),
];

/// The tables. In the first three, address, pc, moment, task and space conditions, equality of function names and
/// `ORDER BY` the first column (in `calls` `moment` is another name of it) are answered by the index; `EXPLAIN QUERY PLAN` shows which.
pub const TABLES: &[Table] = &[
    Table {
        name: "writes",
        row: "a write to memory, by an instruction or by the kernel",
        columns: &[
            ("moment", "when: seeking there stops just before it"),
            ("task", "who ran"),
            ("space", "in which address space"),
            ("addr", "first byte written, as the writer addressed it"),
            ("size", "how many bytes"),
            ("value", "a number for up to 8 bytes, else a blob"),
            ("pc", "the instruction; NULL for the kernel"),
            ("event", "the event in which the kernel wrote; NULL for instructions"),
        ],
        hidden: &[
            (
                "touches",
                "touches = ADDR asks for the writes that cover that byte (ranges, too), in any space; of shared memory not those \
                 through other mappings, which `mappings` names by object",
            ),
            ("function", "the function, or `name()` of the syscall"),
            ("line", "source file and line"),
        ],
    },
    Table {
        name: "calls",
        row: "a call, from the first instruction of the function to its return; a function that is jumped to has none",
        columns: &[
            ("entry", "the moment of the first instruction"),
            (
                "exit",
                "the moment after the return, or after an exception or longjmp left it; NULL if neither happened",
            ),
            ("task", "who ran"),
            ("space", "in which address space"),
            ("depth", "how many calls were around it"),
            ("callee", "address of the function"),
            ("caller", "address of the call instruction"),
            ("kind", "call, or handler for a signal's"),
        ],
        hidden: &[
            ("moment", "the same as entry"),
            ("ret", "the return address"),
            ("sp", "the stack pointer on entry"),
            ("function", "the function's name"),
            ("caller_function", "the caller's name"),
        ],
    },
    Table {
        name: "executions",
        row: "an instruction that ran",
        columns: &[
            ("moment", "when"),
            ("task", "who ran"),
            ("space", "in which address space"),
            ("pc", "the instruction's address"),
        ],
        hidden: &[("function", "its function"), ("line", "source file and line")],
    },
    Table {
        name: "syscalls",
        row: "a system call",
        columns: &[
            ("moment", "when it returned: that of its instruction, which retires then"),
            ("task", "by whom"),
            ("space", "in which address space"),
            ("name", "its name"),
            ("call", "the call with its arguments and result"),
            ("result", "what it returned; negative for an error"),
            ("fd", "the descriptor it worked on"),
            ("path", "what that was open on, or the path it names"),
            ("offset", "the file offset it worked at"),
            ("nr", "its number"),
            ("a0", "first argument"),
            ("a1", ""),
            ("a2", ""),
            ("a3", ""),
            ("a4", ""),
            ("a5", "sixth argument"),
            ("event", "its event"),
        ],
        hidden: &[],
    },
    Table {
        name: "signals",
        row: "a signal acted upon",
        columns: &[
            ("moment", "when"),
            ("task", "whom it hit"),
            ("space", "in which address space"),
            ("signo", "its number"),
            ("name", "its name"),
            ("action", "handler, fatal, ignored, stopped or traced (its tracer decides)"),
            ("handler", "the handler's address"),
            ("pc", "where it hit"),
            ("code", "si_code"),
            ("addr", "si_addr, for faults"),
            ("event", "its event"),
        ],
        hidden: &[],
    },
    Table {
        name: "switches",
        row: "a change of the task that runs: one runs at a time",
        columns: &[
            ("moment", "the first instruction of the task that goes on"),
            ("task", "who stopped running"),
            ("next", "who went on"),
            ("reason", "preempted, syscall, signal, traced or exit"),
            ("pc", "where the one that stopped stood"),
            ("event", "its last event before"),
        ],
        hidden: &[],
    },
    Table {
        name: "tasks",
        row: "a task (thread)",
        columns: &[
            ("task", "its number"),
            ("tid", "thread id as it saw it"),
            ("pid", "process id as it saw it"),
            ("parent", "the task that made it"),
            ("first", "when it began"),
            ("last", "when it ended"),
            ("exit_code", "its exit code"),
            ("signal", "the signal that killed it"),
            ("command", "the last program it ran, with arguments"),
        ],
        hidden: &[],
    },
    Table {
        name: "images",
        row: "a program that was loaded by exec",
        columns: &[
            ("moment", "when"),
            ("task", "by whom"),
            ("space", "into which address space"),
            ("exe", "the file"),
            ("argv", "its arguments"),
            ("cwd", "working directory"),
            ("event", "its event"),
        ],
        hidden: &[],
    },
    Table {
        name: "mappings",
        row: "a range of memory, mapped in one way for a while",
        columns: &[
            ("space", "in which address space"),
            ("start", "its first address"),
            ("end", "the address past it"),
            ("prot", "rwx, and s(hared) or p(rivate)"),
            ("file_offset", "offset of its first byte in its file"),
            ("name", "path, [heap], [stack]"),
            ("since", "from when"),
            ("until", "until when; NULL if it stayed"),
            ("mapped_at", "when it was first mapped"),
            ("event", "by which event"),
            (
                "object",
                "what a shared mapping shows: the same bytes of one object are the same memory; NULL if private",
            ),
            ("object_offset", "offset of its first byte in that object"),
        ],
        hidden: &[],
    },
    Table {
        name: "output",
        row: "a piece of the run's standard output or error",
        columns: &[
            ("moment", "when"),
            ("task", "by whom"),
            ("stream", "stdout or stderr"),
            ("text", "what was written"),
            ("fd", "through which descriptor"),
            ("len", "how many bytes"),
            ("event", "its syscall's event"),
        ],
        hidden: &[],
    },
];
