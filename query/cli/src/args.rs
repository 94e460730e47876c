//! The command line: subcommands, options and help texts. Does nothing with them.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use clap::{Args, Parser, Subcommand, ValueEnum};
use guest::When;

use crate::exit::TABLE;

/// Record a Linux x86-64 run once, replay it exactly, index every write and call of it, and ask.
#[derive(Parser, Debug)]
#[command(name = "backstory", version, propagate_version = true, max_term_width = 100, after_help = TABLE)]
#[command(subcommand_required = true, arg_required_else_help = true)]
pub(crate) struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub(crate) command: Command,
}

impl Cli {
    /// The command line of this process.
    pub(crate) fn of_process() -> Result<Self, clap::Error> {
        let words: Vec<OsString> = std::env::args_os().collect();
        match Recording::of(&words) {
            Some(record) => Ok(Self { command: Command::Record(record) }),
            None => Self::try_parse_from(words),
        }
    }
}

/// `record` by itself: to put together what is known of all the other subcommands, too, takes longer than to record a short program.
#[derive(Parser, Debug)]
struct Recording {
    #[command(flatten)]
    record: Record,
}

impl Recording {
    /// What a right command line asks to record. All others are the affair of [`Cli`], which knows what to say.
    fn of(words: &[OsString]) -> Option<Record> {
        let (_, rest) =
            words.split_first().filter(|(_, rest)| rest.first().is_some_and(|word| word == "record"))?;
        Self::try_parse_from(rest).ok().map(|recording| recording.record)
    }
}

const MOMENTS: &str = "A MOMENT counts retired instructions from the start: @123456789. Also accepted: @50% (a share of \
the recording), @start, @end, @exit (the command's exit) and @signal (the fatal one).";

fn query_help() -> String {
    let named = |table: &tables::Table| match table.hidden {
        [] => table.name.to_owned(),
        hidden => {
            let hidden: Vec<&str> = hidden.iter().map(|(name, _)| *name).collect();
            format!("{} ({})", table.name, hidden.join(", "))
        }
    };
    let names: Vec<String> = tables::TABLES.iter().map(named).collect();
    let functions: Vec<&str> = tables::FUNCTIONS.iter().map(|(name, _)| *name).collect();
    format!(
        "Tables: {}; `SELECT *` leaves out the columns in parentheses. Functions: {}. `.schema` instead of SQL describes \
         tables and columns, `.help` lists the other commands. A moment may be written \
         as elsewhere (but for shares): WHERE moment >= @123456789, or @end. With standard input redirected and no SQL, both are read \
         from there.",
        names.join(", "),
        functions.join(", ")
    )
}

/// The subcommands.
#[derive(Subcommand, Debug)]
pub(crate) enum Command {
    /// Run a command and record it, with all its child processes
    Record(Record),
    /// Run a recording again, exactly; its output is printed again
    Replay(Replay),
    /// Index every memory write, call and syscall of a recording
    Index(Index),
    /// Ask a recording in SQL; without SQL, an interactive shell
    Query(Query),
    /// Say who last wrote an address or a variable
    Why(Why),
    /// Open gdb inside a recording, at a moment, able to run backwards
    Gdb(Gdb),
    /// Serve a recording to one gdb on a socket
    #[command(hide = true)]
    GdbServer(GdbServer),
    /// Record a small buggy program, find its culprit, and show how
    Demo(Demo),
    /// List the recordings
    Ls(Ls),
    /// Describe a recording
    Info(Info),
    /// Remove recordings
    Rm(Rm),
    /// Check a recording for damage and violated invariants
    Check(Check),
    /// List the events of a recording
    Dump(Dump),
}

/// `backstory record`
#[derive(Args, Debug)]
#[command(
    after_help = "The exit status is the command's (128 + N when signal N killed it), 127 if it was not found, 126 if \
it cannot be executed. If recording itself fails, the status is that of the table in `backstory --help`, and a line \
on standard error says so."
)]
pub(crate) struct Record {
    /// Folder to write the recording to; it must not exist or be empty [default: a fresh one under $BACKSTORY_TRACE_DIR,
    /// else $XDG_DATA_HOME/backstory, else ~/.local/share/backstory]
    #[arg(short, long, value_name = "DIR")]
    pub(crate) output: Option<PathBuf>,
    /// Compare all memory around system calls that stop (with --no-buffer: around all) with what they should have changed (slow)
    #[arg(long)]
    pub(crate) paranoid: bool,
    /// Draw at random which task runs and for how long, and let tasks starve, to make races show
    #[arg(long)]
    pub(crate) chaos: bool,
    /// Draw from this seed; with --until-fail, the first run's [default: a random one, which is printed]
    #[arg(long, requires = "chaos", value_name = "N")]
    pub(crate) seed: Option<u64>,
    /// Record up to N times until the command fails, and keep only that recording
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) until_fail: Option<u32>,
    /// Whether the processor's counter of branches is to help to locate where tasks were interrupted: auto (where there is one that
    /// passes a test), pmu (or do not record, exit status 2), state (no; memory and registers tell all the same, only later)
    #[arg(long, value_enum, default_value_t, value_name = "WHICH")]
    pub(crate) counter: Counter,
    /// Kill what the command leaves running S seconds after its first process ended [default: record that to its end]
    #[arg(long, value_name = "S")]
    pub(crate) linger: Option<u64>,
    /// Stop programs at every system call and rdtsc, also where they could do without (slower); --chaos and --counter pmu do so, too
    #[arg(long, overrides_with = "no_buffer")]
    pub(crate) no_buffer: bool,
    /// Let programs make calls without a stop as soon as can be, also where that is not worth it
    #[arg(long, hide = true, conflicts_with = "no_buffer")]
    pub(crate) buffer_soon: bool,
    /// Do not say where the recording went
    #[arg(short, long)]
    pub(crate) quiet: bool,
    /// The command and its arguments
    #[arg(required = true, trailing_var_arg = true, value_name = "CMD")]
    pub(crate) command: Vec<OsString>,
}

/// `record --counter`
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug, Default)]
#[value(rename_all = "lower")]
pub(crate) enum Counter {
    #[default]
    Auto,
    Pmu,
    State,
}

/// A recording named on the command line.
#[derive(Args, Debug)]
pub(crate) struct Which {
    /// The recording: a name that `backstory ls` shows, or a folder (what has a `/` is one) [default: the latest]
    #[arg(value_name = "TRACE")]
    trace: Option<PathBuf>,
    /// The same, as an option
    #[arg(short = 't', long = "trace", value_name = "TRACE", conflicts_with = "trace")]
    option: Option<PathBuf>,
}

impl Which {
    /// The recording that is named, if one is.
    pub(crate) fn named(&self) -> Option<&Path> {
        self.trace.as_deref().or(self.option.as_deref())
    }
}

/// A recording named by an option, where arguments mean something else.
#[derive(Args, Debug)]
pub(crate) struct WhichOption {
    /// The recording: a name that `backstory ls` shows, or a folder (what has a `/` is one) [default: the latest]
    #[arg(short, long, value_name = "TRACE")]
    pub(crate) trace: Option<PathBuf>,
}

/// `backstory replay`
#[derive(Args, Debug)]
#[command(after_help = MOMENTS)]
pub(crate) struct Replay {
    #[command(flatten)]
    pub(crate) which: Which,
    /// Stop at this moment
    #[arg(long, value_name = "MOMENT")]
    pub(crate) until: Option<When>,
    /// Do not print the recorded output again
    #[arg(short, long)]
    pub(crate) quiet: bool,
}

/// `backstory index`
#[derive(Args, Debug)]
#[command(after_help = "Building can be interrupted; run again, it goes on where it was.")]
pub(crate) struct Index {
    #[command(flatten)]
    pub(crate) which: Which,
    /// Number of workers [default: one per core]
    #[arg(short, long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub(crate) jobs: Option<u16>,
    /// Show no progress
    #[arg(short, long)]
    pub(crate) quiet: bool,
}

/// `backstory query`
#[derive(Args, Debug)]
#[command(after_help = query_help())]
pub(crate) struct Query {
    #[command(flatten)]
    pub(crate) which: WhichOption,
    /// Print rows as JSON objects, one array
    #[arg(long, conflicts_with = "csv")]
    pub(crate) json: bool,
    /// Print rows as CSV with a header line; an empty line between the rows of two statements
    #[arg(long)]
    pub(crate) csv: bool,
    /// The SQL to run, several statements separated by `;`, or a command of the shell
    #[arg(value_name = "SQL")]
    pub(crate) sql: Option<String>,
}

/// `backstory why`
#[derive(Args, Debug)]
#[command(after_help = format!("{MOMENTS}\n\nParts of variables are found by the types in the debug information (what of it lies in .dwo or .dwp files is read from there, if they are still those of the program), and pointers followed as \
     they were just before the moment. The last part of a qualified name (G for t::G) is enough where only one ends so; where several \
     have one name, put the source file or the function before it (b.c:state, run::calls). Local and thread-local variables have no name here: \
     `print &NAME` in `backstory gdb --at MOMENT` gives the address, in the thread that is selected, to ask about with `--at` the same moment; so for \
     what containers hold that are no arrays underneath (maps, Rust's Vec). Quote what the shell would take for itself: '*p', 'p->field', \
     'u[7]'."))]
pub(crate) struct Why {
    #[command(flatten)]
    pub(crate) which: WhichOption,
    /// The address (0x7fff1234), or a variable or function, a part of a variable (ops.draw, u[7].field) or what a pointer
    /// in one points to (*p, p->field, p[2]), with an offset if need be (buffer+16)
    #[arg(value_name = "ADDR|VARIABLE")]
    pub(crate) what: String,
    /// Number of bytes to explain [default: the size of the variable or part; for an address, as many as the last write of its
    /// first byte wrote, at most 8]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) size: Option<u32>,
    /// Explain the value it had at this moment, in the process that ran then [default: @end]
    #[arg(long, value_name = "MOMENT")]
    pub(crate) at: Option<When>,
    /// Look only in this address space, numbered as in the column `space` of the tables [default: the one that runs at the
    /// moment given, else the one written last]
    #[arg(long, value_name = "N")]
    pub(crate) space: Option<u32>,
    /// Print one JSON object
    #[arg(long)]
    pub(crate) json: bool,
}

/// `backstory gdb`
#[derive(Args, Debug)]
#[command(after_help = format!("{MOMENTS}\n\nIn gdb, all of `reverse-*` works, and stops at breakpoints of all threads and at signals; \
     `when` says the moment, `goto MOMENT` goes to one, `monitor ps` lists the processes and \
     when they ran (the one that runs at the moment gone to is shown, one at a time; gdb connects again to see another), \
     `monitor help` the rest. A process is followed over its execs, both ways; `catch exec` stops there. `catch syscall` stops \
     before the instruction of a call and after it, both ways (`catch fork` cannot be: say `catch syscall clone fork vfork`). A watchpoint sees what \
     the process shown does at the watched address, not what happens to memory that it shares through other mappings or in other processes (`backstory why` does). Nothing can be changed: a recording is what it is. The exit status is gdb's."))]
pub(crate) struct Gdb {
    #[command(flatten)]
    pub(crate) which: Which,
    /// Open at this moment [default: @start]
    #[arg(long, value_name = "MOMENT")]
    pub(crate) at: Option<When>,
    /// Arguments for gdb, for example -batch -ex bt
    #[arg(last = true, value_name = "GDB ARGS")]
    pub(crate) gdb_args: Vec<OsString>,
}

/// `backstory gdb-server`
#[derive(Args, Debug)]
pub(crate) struct GdbServer {
    #[command(flatten)]
    pub(crate) which: WhichOption,
    /// Open at this moment
    #[arg(long, value_name = "MOMENT", default_value = "@start")]
    pub(crate) at: When,
    /// After each `monitor` command write there what gdb has to do to see the process shown, by this sysroot; and serve until
    /// gdb detaches or quits
    #[arg(long, num_args = 2, value_names = ["FILE", "SYSROOT"])]
    pub(crate) after: Option<Vec<PathBuf>>,
    /// The Unix socket to listen on
    #[arg(value_name = "SOCKET")]
    pub(crate) socket: PathBuf,
}

/// `backstory demo`
#[derive(Args, Debug)]
pub(crate) struct Demo {
    /// Folder to write the recording to [default: a fresh one, as for `backstory record`]
    #[arg(short, long, value_name = "DIR")]
    pub(crate) output: Option<PathBuf>,
}

/// `backstory ls`
#[derive(Args, Debug)]
pub(crate) struct Ls {
    /// Print one JSON array
    #[arg(long)]
    pub(crate) json: bool,
}

/// `backstory info`
#[derive(Args, Debug)]
pub(crate) struct Info {
    #[command(flatten)]
    pub(crate) which: Which,
    /// Print one JSON object
    #[arg(long)]
    pub(crate) json: bool,
}

/// `backstory rm`
#[derive(Args, Debug)]
pub(crate) struct Rm {
    /// The recordings to remove: names that `backstory ls` shows, or folders (what has a `/` is one)
    #[arg(required_unless_present = "option", value_name = "TRACE")]
    pub(crate) traces: Vec<PathBuf>,
    /// Another one, as an option
    #[arg(short = 't', long = "trace", value_name = "TRACE")]
    pub(crate) option: Option<PathBuf>,
}

/// `backstory check`
#[derive(Args, Debug)]
#[command(
    after_help = "Exits with 0 if the recording is sound, 1 if a part of it is damaged or missing or an invariant is violated (each is \
a line on standard output), 3 if it cannot be opened at all. The index is not looked at: its pages are checked as they are read; \
removed, it is built again."
)]
pub(crate) struct Check {
    #[command(flatten)]
    pub(crate) which: Which,
}

/// What the lines of `backstory dump` mean.
pub(crate) const DUMP: &str = "\
One line per event: `EVENT [@MOMENT] task N space N STOP PC: WHAT`. The moment is there once a replay has learned it. It is that \
after the event: a system call has one more there than everywhere else, where its moment is when its instruction is about to run. STOP is \
what the task had to reach by running: `syscall`, an instruction that is answered (`rdtsc`, `rdtscp`, `cpuid`, `rdrand`, `rdseed`, `rdpid`; the first two mostly without a stop, and of such \
a one only the result's registers are known), `fault`, `point` \
(an arbitrary instruction, where it was interrupted), `buffered` (a system call made without a stop), `int 0x80` (one of the \
32-bit table), or `-` (nothing: the event follows the task's last one). WHAT is `exec`, \
`syscall` (whole), `syscall enter` and `syscall leave`, `spawn`, `answered`, `signal`, `exit` or `point`.

With --verbose lines with four spaces before them follow: changes of the address space (`map FROM-TO PROT zero|file N offset X \
(PATH) [as NAME]`, `unmap`, `protect`, `remap`, `discard`), `write ADDR of N bytes`, and each register, with the \
value after `->` where the event changed it.";

/// `backstory dump`
#[derive(Args, Debug)]
#[command(after_help = DUMP)]
pub(crate) struct Dump {
    #[command(flatten)]
    pub(crate) which: Which,
    /// First event
    #[arg(long, default_value_t = 0, value_name = "EVENT")]
    pub(crate) from: u64,
    /// Number of events
    #[arg(long, value_name = "N")]
    pub(crate) count: Option<u64>,
    /// Registers, mapping changes and places written, too
    #[arg(short, long)]
    pub(crate) verbose: bool,
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;
    use clap::error::ErrorKind;
    use guest::Moment;

    use super::*;

    fn parse(line: &str) -> Result<Command, clap::Error> {
        Cli::try_parse_from(std::iter::once("backstory").chain(line.split_whitespace()))
            .map(|cli| cli.command)
    }

    #[test]
    fn the_definition_is_consistent() {
        Cli::command().debug_assert();
    }

    #[track_caller]
    fn check_record(line: &str, output: Option<&str>, command: &[&str]) {
        let Ok(Command::Record(got)) = parse(line) else { panic!("{line}: not a record command") };
        assert_eq!(got.output, output.map(PathBuf::from), "{line}");
        assert_eq!(got.command, command, "{line}");
    }

    #[test]
    fn the_recorded_command_keeps_its_own_options() {
        check_record("record true", None, &["true"]);
        check_record("record ls -lR /usr/lib", None, &["ls", "-lR", "/usr/lib"]);
        check_record("record -o d -- ls -o x", Some("d"), &["ls", "-o", "x"]);
        check_record("record -o d ls -q -- --help", Some("d"), &["ls", "-q", "--", "--help"]);
        check_record("record -- --odd-name", None, &["--odd-name"]);
    }

    #[test]
    fn gdb_arguments_come_after_the_dashes() {
        let Ok(Command::Gdb(got)) = parse("gdb -t d --at @50% -- -batch -ex bt") else { panic!() };
        assert_eq!(got.at, Some(When::Share(50_000)));
        assert_eq!(got.gdb_args, ["-batch", "-ex", "bt"]);
        assert!(parse("gdb -batch").is_err());
    }

    #[test]
    fn a_recording_is_an_argument_or_an_option() {
        for line in ["gdb d", "gdb -t d", "gdb d -- -batch", "gdb --trace d --at @end"] {
            let Ok(Command::Gdb(got)) = parse(line) else { panic!("{line}") };
            assert_eq!(got.which.named(), Some(Path::new("d")), "{line}");
        }
        for line in [
            "replay -t d",
            "index -t d",
            "info -t d",
            "check -t d",
            "dump -t d",
            "rm -t d",
            "query -t d x",
            "why -t d x",
        ] {
            assert!(parse(line).is_ok(), "{line}");
        }
        check_refused("replay d -t e", ErrorKind::ArgumentConflict);
        check_refused("rm", ErrorKind::MissingRequiredArgument);
    }

    #[test]
    fn moments_are_parsed_by_the_command_line() {
        let Ok(Command::Replay(got)) = parse("replay d --until 1_000 --quiet") else { panic!() };
        assert_eq!(got.until, Some(When::Exactly(Moment(1000))));
        assert!(got.quiet);
        let error = parse("why x --at yesterday").expect_err("no moment");
        assert!(error.to_string().contains("`yesterday` is not a moment"), "{error}");
    }

    #[track_caller]
    fn check_refused(line: &str, kind: ErrorKind) {
        assert_eq!(parse(line).expect_err(line).kind(), kind, "{line}");
    }

    #[test]
    fn bad_command_lines_are_refused() {
        check_refused("", ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand);
        check_refused("rewind", ErrorKind::InvalidSubcommand);
        check_refused("record", ErrorKind::MissingRequiredArgument);
        check_refused("why", ErrorKind::MissingRequiredArgument);
        check_refused("rm", ErrorKind::MissingRequiredArgument);
        check_refused("index -j 0", ErrorKind::ValueValidation);
        check_refused("why x --size 0", ErrorKind::ValueValidation);
        check_refused("query --json --csv x", ErrorKind::ArgumentConflict);
        check_refused("replay a b", ErrorKind::UnknownArgument);
    }

    #[track_caller]
    fn check_by_itself(line: &str, right: bool) {
        let words: Vec<OsString> = line.split_whitespace().map(OsString::from).collect();
        let record = Recording::of(&words).map(|record| format!("{:?}", Command::Record(record)));
        assert_eq!(record.is_some(), right, "{line}");
        let among_all = Cli::try_parse_from(&words).ok().map(|cli| format!("{:?}", cli.command));
        assert_eq!(record, among_all.filter(|all| all.starts_with("Record")), "{line}");
    }

    #[test]
    fn record_by_itself_is_what_it_is_among_all() {
        check_by_itself("backstory record true", true);
        check_by_itself(
            "backstory record -q -o dir --chaos --seed 7 --until-fail 3 -- ls -V --help -q",
            true,
        );
        check_by_itself("backstory record --linger 2 --counter state --no-buffer ls record", true);
        for wrong in
            ["record", "record -h", "record -V x", "record --seed 1 x", "record --until-fail 0 x", "ls", ""]
        {
            check_by_itself(&format!("backstory {wrong}"), false);
        }
    }
}
