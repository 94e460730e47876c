//! `index`; and the index as questions need it: built where there is none, finished where it is not.

use std::fs::{File, TryLockError};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context;
use index_build::{BuildError, BuildReport, Options, Progress, build};
use indicatif::{ProgressBar, ProgressStyle};
use store::{CommitError, INDEX_FILE};
use tables::{Database, OpenError};
use trace::Trace;

use crate::args::Index;
use crate::exit::{Class, Classify, Failure, one_line};
use crate::{replay, text, traces};

/// The file that whoever builds an index holds a lock on, with the id of that process in it.
const LOCK: &str = "index.lock";
/// How often it is tried to get the lock, and the time between: who only asks whether it is held holds it for a moment, too.
const TRIES: u32 = 5;
const BETWEEN: Duration = Duration::from_millis(10);

/// `backstory index`
pub(crate) fn index(args: &Index) -> anyhow::Result<ExitCode> {
    let trace = traces::open(args.which.named())?;
    let report = build_all(&trace, usize::from(args.jobs.unwrap_or(0)), args.quiet)?;
    if !args.quiet {
        eprintln!("backstory: {}", summary(&report));
    }
    traces::say_if_cut(&trace, None);
    Ok(ExitCode::SUCCESS)
}

/// Builds what is missing of an index.
pub(crate) fn build_all(trace: &Trace, jobs: usize, quiet: bool) -> anyhow::Result<BuildReport> {
    let Some(_lock) = lock(trace.dir())? else { return Err(busy(trace.dir())) };
    run(trace, jobs, quiet)
}

/// Another process builds an index of a recording.
pub(crate) fn busy(dir: &Path) -> anyhow::Error {
    let message = format!("{} is being indexed by {}", dir.display(), builder(dir));
    Failure::new(Class::Input, message).into()
}

/// Whoever holds the lock, in words.
fn builder(dir: &Path) -> String {
    let pid = std::fs::read_to_string(dir.join(LOCK)).ok().and_then(|text| text.trim().parse::<u32>().ok());
    pid.map_or_else(|| "another process".to_owned(), |pid| format!("process {pid}"))
}

/// Who builds an index of a recording now, in words; `None` if nobody does.
pub(crate) fn being_built(dir: &Path) -> Option<String> {
    let file = File::open(dir.join(LOCK)).ok()?;
    matches!(file.try_lock_shared(), Err(TryLockError::WouldBlock)).then(|| builder(dir))
}

/// Opens a recording for questions. Builds what is missing of its index, and says so, and says where the recording was cut.
pub(crate) fn database(named: Option<&Path>) -> anyhow::Result<Database> {
    let database = open(traces::find(named)?)?;
    traces::whole(database.trace())?;
    traces::say_if_cut(database.trace(), None);
    Ok(database)
}

fn open(dir: PathBuf) -> anyhow::Result<Database> {
    let why = match Database::open(&dir) {
        Ok(database) => match database.store().complete() {
            Ok(true) => return Ok(database),
            Ok(false) => "the building of its index was interrupted: going on with it",
            Err(error) => return Err(unreadable(database.store().path(), error)),
        },
        Err(OpenError::Index(store::OpenError::Absent { .. })) => "it has no index yet: building it",
        Err(error @ OpenError::Trace(_)) => return Err(error).class(Class::Trace),
        Err(error) => return Err(unreadable(&dir.join(INDEX_FILE), error)),
    };
    match lock(&dir)? {
        Some(_lock) => {
            eprintln!("backstory: {}: {why}", dir.display());
            run(&Trace::open(&dir).class(Class::Trace)?, 0, false)?;
        }
        None => {
            let (shown, builder) = (dir.display(), builder(&dir));
            eprintln!(
                "backstory: {shown} is being indexed by {builder}: answering from what there is so far"
            );
        }
    }
    match Database::open(&dir) {
        Err(OpenError::Index(store::OpenError::Absent { .. })) => {
            let message = format!("there is nothing yet of the index of {}: ask again later", dir.display());
            Err(Failure::new(Class::Input, message).into())
        }
        opened => opened.class(Class::Trace),
    }
}

/// Locks a recording for building its index; `None` if another process has it.
pub(crate) fn lock(dir: &Path) -> anyhow::Result<Option<File>> {
    let file = File::options().create(true).append(true).open(dir.join(LOCK));
    let mut file = file.map_err(|error| cannot_build(dir, &error))?;
    for _ in 0..TRIES {
        match file.try_lock() {
            Ok(()) => {
                let told = file.set_len(0).and_then(|()| writeln!(file, "{}", std::process::id()));
                told.map_err(|error| cannot_build(dir, &error))?;
                return Ok(Some(file));
            }
            Err(TryLockError::WouldBlock) => std::thread::sleep(BETWEEN),
            Err(TryLockError::Error(error)) => return Err(cannot_build(dir, &error)),
        }
    }
    Ok(None)
}

fn cannot_build(dir: &Path, error: &std::io::Error) -> anyhow::Error {
    let dir = dir.display();
    let message = format!(
        "cannot build an index in {dir}: {error}; make the folder writable, or copy the recording to one that is"
    );
    Failure::new(Class::System, message).into()
}

/// An index that is there but is of no use, and what to do about it.
pub(crate) fn unreadable(index: &Path, error: impl Into<anyhow::Error>) -> anyhow::Error {
    let said = one_line(&error.into());
    Failure::new(Class::Trace, format!("{said}; remove {} to have it built again", index.display())).into()
}

fn run(trace: &Trace, jobs: usize, quiet: bool) -> anyhow::Result<BuildReport> {
    // Hidden where standard error is no terminal.
    let bar = if quiet { ProgressBar::hidden() } else { ProgressBar::new(0) };
    let style = |template| ProgressStyle::with_template(template).context("progress bar");
    // Before the first replay nobody knows how long it is: a bar would say that it is done.
    let (open, closed) = (style("{msg}")?, style("{wide_bar} {msg}")?);
    let show = |progress: &Progress| {
        bar.set_style(if progress.total.is_some() { closed.clone() } else { open.clone() });
        bar.set_length(progress.total.unwrap_or(0));
        bar.set_position(progress.instructions);
        bar.set_message(status(progress));
    };
    let built = build(trace, &Options { jobs, progress: Some(&show), ..Options::default() });
    bar.finish_and_clear();
    match built {
        Err(error) if is_unreadable(&error) => Err(unreadable(&trace.dir().join(INDEX_FILE), error)),
        built => built.class_by(class_of),
    }
}

/// Whether the index that is there is the reason.
fn is_unreadable(error: &BuildError) -> bool {
    match error {
        BuildError::Commit(CommitError::Open(error)) => {
            !matches!(error, store::OpenError::Sqlite { .. } | store::OpenError::Read { .. })
        }
        BuildError::Resume(_) | BuildError::Decode(_) => true,
        _ => false,
    }
}

/// `45%  120 M instructions/s  7 s left`
fn status(progress: &Progress) -> String {
    let done = progress.instructions.saturating_sub(progress.resumed);
    let rate = done as f64 / progress.elapsed.as_secs_f64().max(0.001);
    let speed = format!("{:.0} M instructions/s", rate / 1e6);
    let Some(total) = progress.total.filter(|&total| total > 0) else {
        return format!("{} instructions  {speed}", text::grouped(progress.instructions));
    };
    if done == 0 {
        return speed;
    }
    let share = progress.instructions.saturating_mul(100) / total;
    let left = total.saturating_sub(progress.instructions) as f64 / rate.max(1.0);
    let left = Duration::try_from_secs_f64(left).map_or_else(|_| "?".to_owned(), text::duration);
    format!("{share}%  {speed}  {left} left")
}

/// `indexed 107,948 instructions in 61 ms: 40.0 KiB, 0.38 bytes per instruction`
pub(crate) fn summary(report: &BuildReport) -> String {
    let instructions = text::grouped(report.instructions);
    let resumed = match report.resumed {
        0 => String::new(),
        resumed => format!(" ({} of them before)", text::grouped(resumed)),
    };
    let each = report.bytes as f64 / report.instructions.max(1) as f64;
    format!(
        "indexed {instructions} instructions{resumed} in {}: {}, {each:.2} bytes per instruction",
        text::duration(report.elapsed),
        text::size(report.bytes)
    )
}

fn class_of(error: &anyhow::Error) -> Class {
    match error.downcast_ref::<BuildError>() {
        Some(BuildError::Commit(_) | BuildError::Pool(_)) => Class::System,
        Some(BuildError::Read(_) | BuildError::Ticks(_)) => Class::Trace,
        _ => replay::class_of(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn progress_tells_share_rate_and_time_left() {
        let progress = Progress {
            instructions: 600_000_000,
            total: Some(1_000_000_000),
            elapsed: Duration::from_secs(4),
            resumed: 200_000_000,
        };
        assert_eq!(status(&progress), "60%  100 M instructions/s  4.0 s left");
        assert_eq!(
            status(&Progress { total: None, ..progress }),
            "600,000,000 instructions  100 M instructions/s"
        );
        assert_eq!(status(&Progress { instructions: 200_000_000, ..progress }), "0 M instructions/s");
    }

    #[test]
    fn one_process_indexes_at_a_time() {
        let scratch = tempfile::tempdir().unwrap();
        let held = lock(scratch.path()).unwrap();
        assert!(held.is_some());
        assert!(lock(scratch.path()).unwrap().is_none());
        drop(held);
        assert!(lock(scratch.path()).unwrap().is_some());
    }
}
