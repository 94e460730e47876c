//! The `backstory` binary: parses the command line, runs one subcommand, turns its error into a line and an exit code.
//!
//! Holds no knowledge of recording, replaying or indexing: that lives in the crates. Results go to standard output,
//! diagnostics to standard error.
//!
//! - `args`: the command line
//! - `exit`: exit codes and the error that carries one
//! - `signals`: signal dispositions; `foreground`: a child and the signals that end it
//! - `traces`: finding and opening recordings
//! - `record`, `replay`, `indexing`, `query` and `shell`, `why`, `gdb`, `demo`: a subcommand each
//! - `logging`: what the libraries log
//! - `manage`: `ls`, `info`, `rm`, `check`
//! - `scratch`: temporary folders
//! - `text`: how numbers, times and bytes are shown

mod args;
mod demo;
mod dump;
mod exit;
mod foreground;
mod gdb;
mod indexing;
mod logging;
mod manage;
mod query;
mod record;
mod registers;
mod replay;
mod scratch;
mod shell;
mod signals;
mod text;
mod traces;
mod why;

use std::io::Write;
use std::process::ExitCode;

use crate::args::{Cli, Command};

fn main() -> ExitCode {
    let cli = match Cli::of_process() {
        Ok(cli) => cli,
        Err(error) => return usage(&error),
    };
    logging::start();
    signals::restore_for(&cli.command);
    run(cli.command).unwrap_or_else(|error| exit::report(&error))
}

fn run(command: Command) -> anyhow::Result<ExitCode> {
    match command {
        Command::Record(args) => record::record(&args),
        Command::Replay(args) => replay::replay(&args),
        Command::Index(args) => indexing::index(&args),
        Command::Query(args) => query::query(&args),
        Command::Why(args) => why::why(&args),
        Command::Gdb(args) => gdb::gdb(&args),
        Command::GdbServer(args) => gdb::server(&args),
        Command::Ls(args) => manage::ls(&args),
        Command::Info(args) => manage::info(&args),
        Command::Rm(args) => manage::rm(&args),
        Command::Check(args) => manage::check(&args),
        Command::Dump(args) => dump::dump(&args),
        Command::Demo(args) => demo::demo(&args),
    }
}

/// Help and version go to standard output; a mistake is one line that says what to change.
fn usage(error: &clap::Error) -> ExitCode {
    use clap::error::ErrorKind;
    if !error.use_stderr() || error.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand {
        return match error.print().and_then(|()| std::io::stdout().flush()) {
            _ if error.use_stderr() => ExitCode::from(exit::Class::Input.code()),
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => exit::report(&error.into()),
        };
    }
    let _ = writeln!(std::io::stderr(), "backstory: {}", first_line(&error.to_string()));
    ExitCode::from(exit::Class::Input.code())
}

/// What clap says in several lines, as one.
fn first_line(message: &str) -> String {
    let body = message.strip_prefix("error: ").unwrap_or(message);
    let body = body.split("\n\nUsage:").next().unwrap_or(body);
    let body = body.split("\n\nFor more information").next().unwrap_or(body);
    // Of what begins with a dash, such as a negative number, clap always thinks that it was meant as another argument.
    let tells = |line: &&str| !line.is_empty() && !line.starts_with("tip: to pass '-");
    let lines: Vec<&str> = body.lines().map(str::trim).filter(tells).collect();
    format!("{} (see --help)", lines.join(" "))
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[track_caller]
    fn check(line: &str, expected: &str) {
        let words = std::iter::once("backstory").chain(line.split_whitespace());
        let error = Cli::try_parse_from(words).expect_err(line);
        assert_eq!(first_line(&error.to_string()), expected);
    }

    #[test]
    fn mistakes_are_told_in_one_line() {
        check("why x --size -1", "unexpected argument '-1' found (see --help)");
        check("record", "the following required arguments were not provided: <CMD>... (see --help)");
        check(
            "replay --until noon",
            "invalid value 'noon' for '--until <MOMENT>': `noon` is not a moment: use @123456789, @50%, @start, \
             @end, @exit or @signal (see --help)",
        );
    }
}
