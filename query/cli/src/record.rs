//! `record`: where the trace goes, what is said about it, and whose exit status is returned.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use recorder::{Buffer, CounterChoice, ErrorClass, Options, Outcome};
use trace::Trace;

use crate::args::{Counter, Record};
use crate::exit::{Class, Classify, Failure};
use crate::text;

/// `backstory record`
pub(crate) fn record(args: &Record) -> anyhow::Result<ExitCode> {
    let output = match &args.output {
        Some(dir) => dir.clone(),
        None => fresh_folder(args.command.first().map(|name| name.to_string_lossy()).as_deref())?,
    };
    let first = args.seed.unwrap_or_else(random_seed);
    let runs = args.until_fail.unwrap_or(1);
    for run_number in 0..u64::from(runs) {
        let seed = args.chaos.then(|| first.wrapping_add(run_number));
        let outcome = run(&Options {
            command: args.command.clone(),
            output: output.clone(),
            paranoid: args.paranoid,
            linger: args.linger.map(Duration::from_secs),
            chaos: seed,
            buffer: match (args.no_buffer, args.buffer_soon) {
                (true, _) => Buffer::Never,
                (false, true) => Buffer::Soon,
                (false, false) => Buffer::Worthwhile,
            },
            counter: match args.counter {
                Counter::Auto => CounterChoice::Auto,
                Counter::Pmu => CounterChoice::Pmu,
                Counter::State => CounterChoice::State,
            },
        })?;
        let failed = outcome.exit_code != 0 || outcome.refused.is_some();
        if args.until_fail.is_some() && !failed {
            trace::remove(&output).class(Class::System)?;
            continue;
        }
        if !args.quiet {
            if args.until_fail.is_some() {
                eprintln!("backstory: run {} of {runs} failed", run_number + 1);
            }
            if let Some(seed) = seed {
                eprintln!("backstory: chaos with --seed {seed}");
            }
            eprintln!("backstory: {}", summary(&outcome.trace));
        }
        return finish(&outcome);
    }
    eprintln!("backstory: none of {runs} runs failed; nothing is kept");
    Ok(ExitCode::SUCCESS)
}

/// A seed that no earlier recording had.
fn random_seed() -> u64 {
    use std::hash::{BuildHasher, RandomState};
    // Small enough to type.
    RandomState::new().hash_one(std::process::id()) >> 32
}

/// Records a command, and makes that the latest recording.
pub(crate) fn run(options: &Options) -> anyhow::Result<Outcome> {
    let output = &options.output;
    let recorded = recorder::record(options);
    match recorded {
        Ok(outcome) => {
            // Only a convenience: the recording is found by its name without it.
            if let Ok(root) = trace::root() {
                let pointed = trace::set_latest(&root, output);
                if pointed.is_err() {
                    let _ = std::fs::create_dir_all(&root).map(|()| trace::set_latest(&root, output));
                }
            }
            Ok(outcome)
        }
        Err(error) => {
            // Nothing was recorded: leave no empty folder behind.
            let _ = std::fs::remove_dir(output);
            let class = class_of(error.class());
            Err(error).class(class)
        }
    }
}

/// A new folder for a recording of `program` where recordings live.
pub(crate) fn fresh_folder(program: Option<&str>) -> anyhow::Result<PathBuf> {
    let root = trace::root().class(Class::Input)?;
    trace::fresh(&root, program.unwrap_or("trace")).class(Class::System)
}

fn finish(outcome: &Outcome) -> anyhow::Result<ExitCode> {
    for line in &outcome.unexplained {
        eprintln!("backstory: {line}");
    }
    if let Some(reason) = &outcome.refused {
        return Err(Failure::new(Class::Unsupported, format!("recording stopped: {reason}")).into());
    }
    if !outcome.unexplained.is_empty() {
        return Err(Failure::new(Class::Bug, "memory changed that no system call explains").into());
    }
    Ok(ExitCode::from(u8::try_from(outcome.exit_code & 0xff).unwrap_or(u8::MAX)))
}

/// `recorded N events to DIR`
pub(crate) fn summary(dir: &Path) -> String {
    match Trace::open(dir) {
        Ok(trace) => format!("recorded {} events to {}", text::grouped(trace.len()), dir.display()),
        Err(error) => format!("recorded to {}, which cannot be read back: {error}", dir.display()),
    }
}

fn class_of(class: ErrorClass) -> Class {
    match class {
        ErrorClass::NotFound => Class::NotFound,
        ErrorClass::NotExecutable => Class::NotExecutable,
        ErrorClass::Input => Class::Input,
        ErrorClass::Disk => Class::System,
        ErrorClass::Bug => Class::Bug,
    }
}
