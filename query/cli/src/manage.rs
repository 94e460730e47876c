//! `ls`, `info`, `rm`, `check`: recordings as things on disk.

use std::io::Write;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use guest::{EventId, TaskId};
use serde_json::{Value, json};
use store::{INDEX_FILE, Store};
use trace::{Fact, Moments, Status, Trace};

use crate::args::{Check, Info, Ls, Rm};
use crate::exit::{Class, Classify};
use crate::{indexing, text, traces};

/// How many of the last events are looked through for the end of the command.
const LAST_EVENTS: u64 = 1000;

/// When a recording started, in seconds since 1970, and when its last event was written.
type Age = (u64, (i64, i64));

/// `backstory ls`: one line per recording, the oldest first, on a terminal as long as it is wide.
pub(crate) fn ls(args: &Ls) -> anyhow::Result<ExitCode> {
    let root = trace::root().class(Class::Input)?;
    // Started in the same second, the one that ended first is taken for the older.
    let ended =
        |dir: &Path| std::fs::metadata(dir.join("events")).map_or((0, 0), |m| (m.mtime(), m.mtime_nsec()));
    let mut rows: Vec<(Age, Value)> = trace::list(&root)
        .class(Class::System)?
        .iter()
        .map(|dir| match Trace::open(dir) {
            Ok(trace) => ((trace.header().started, ended(dir)), describe(&trace)),
            Err(error) => ((0, ended(dir)), unreadable(dir, &error.to_string())),
        })
        .collect();
    rows.extend(trace::unlisted(&root).iter().map(|(dir, why)| ((0, ended(dir)), unreadable(dir, why))));
    rows.sort_by_key(|(age, _)| *age);
    let mut out = std::io::stdout().lock();
    if args.json {
        let rows: Vec<&Value> = rows.iter().map(|(_, row)| row).collect();
        writeln!(out, "{}", serde_json::to_string_pretty(&rows)?)?;
        return Ok(ExitCode::SUCCESS);
    }
    let width = rows.iter().map(|(_, row)| shown(row, "trace").len()).max().unwrap_or(0);
    let columns =
        terminal_size::terminal_size_of(std::io::stdout()).map(|(columns, _)| usize::from(columns.0));
    for (_, row) in &rows {
        let trace = shown(row, "trace");
        if row["error"].is_string() {
            writeln!(out, "{trace:width$}  unreadable: {}", shown(row, "error"))?;
            continue;
        }
        let size = text::size(row["bytes"].as_u64().unwrap_or(0));
        let index = match shown(row, "index") {
            "there" => "indexed",
            "none" => "-",
            other => other,
        };
        let (started, command) = (shown(row, "started"), shown(row, "command"));
        let line = format!("{trace:width$}  {started}  {size:>10}  {index:10}  {command}");
        writeln!(out, "{}", columns.map_or_else(|| line.clone(), |columns| text::cut(&line, columns)))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// `backstory info`: what is known of a recording without replaying it.
pub(crate) fn info(args: &Info) -> anyhow::Result<ExitCode> {
    let trace = traces::open(args.which.named())?;
    traces::say_if_cut(&trace, None);
    let row = describe(&trace);
    let mut out = std::io::stdout().lock();
    if args.json {
        writeln!(out, "{}", serde_json::to_string_pretty(&row)?)?;
        return Ok(ExitCode::SUCCESS);
    }
    let number = |key: &str| row[key].as_u64().map_or("unknown".to_owned(), text::grouped);
    let mut line = |key: &str, value: &str| writeln!(out, "{key:13} {value}");
    line("trace", &trace.dir().display().to_string())?;
    line("command", shown(&row, "command"))?;
    line("directory", shown(&row, "cwd"))?;
    line("started", shown(&row, "started"))?;
    line("ended", &ended(&trace))?;
    line("events", &number("events"))?;
    line("tasks", &number("tasks"))?;
    line("instructions", &instructions(&row))?;
    line("size", &text::size(row["bytes"].as_u64().unwrap_or(0)))?;
    line("index", &index_line(trace.dir(), shown(&row, "index")))?;
    line("machine", &format!("{}, Linux {}", shown(&row, "cpu"), shown(&row, "kernel")))?;
    line("points by", located(&row))?;
    line("uuid", shown(&row, "uuid"))?;
    Ok(ExitCode::SUCCESS)
}

/// `backstory rm`
pub(crate) fn rm(args: &Rm) -> anyhow::Result<ExitCode> {
    for named in args.traces.iter().chain(&args.option) {
        let dir = traces::find(Some(named))?;
        // Held until it is gone. Where there can be no lock, nobody builds an index.
        let is_whole = trace::is_trace(&dir);
        let lock = is_whole.then(|| indexing::lock(&dir));
        if let Some(Ok(None)) = lock {
            return Err(indexing::busy(&dir));
        }
        let removed = trace::remove(&dir);
        let class = match &removed {
            Err(trace::DirError::NotATrace { .. }) => Class::Trace,
            _ => Class::System,
        };
        removed.class(class)?;
        if !is_whole {
            let dir = dir.display();
            eprintln!(
                "backstory: {dir} held no event, as a recorder leaves it that is killed at its start: removed"
            );
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// `backstory check`: one line per violated invariant.
pub(crate) fn check(args: &Check) -> anyhow::Result<ExitCode> {
    let trace = traces::open(args.which.named())?;
    let violations = trace::check(&trace);
    let mut out = std::io::stdout().lock();
    for violation in &violations {
        writeln!(out, "{violation}")?;
    }
    traces::say_if_cut(&trace, None);
    if violations.is_empty() {
        writeln!(out, "{}: {} events, no violation", trace.dir().display(), text::grouped(trace.len()))?;
        return Ok(ExitCode::SUCCESS);
    }
    Ok(ExitCode::from(Class::No.code()))
}

/// What `ls` shows of a recording that cannot be opened.
fn unreadable(dir: &Path, why: &str) -> Value {
    json!({ "trace": name(dir), "error": why })
}

/// Everything `ls` and `info` show of a recording.
fn describe(trace: &Trace) -> Value {
    let header = trace.header();
    let summary = trace.summary();
    let moments = Moments::load(trace).ok().flatten();
    let index = index(trace);
    let uuid: String = header.uuid.iter().map(|byte| format!("{byte:02x}")).collect();
    json!({
        "trace": name(trace.dir()),
        "dir": trace.dir().display().to_string(),
        "uuid": uuid,
        "command": text::command_line(&header.argv),
        "argv": header.argv.iter().map(|arg| String::from_utf8_lossy(arg)).collect::<Vec<_>>(),
        "cwd": header.cwd,
        "started": text::date(header.started),
        "started_epoch": header.started,
        "complete": trace.is_complete(),
        "exit_code": summary.map(|s| s.exit_code),
        "refused": summary.and_then(|s| s.refused.clone()),
        "stopped": trace.stopped(),
        "seconds": summary.map(|s| Duration::from_nanos(s.nanos).as_secs_f64()),
        "events": trace.len(),
        "tasks": summary.map(|s| s.tasks),
        "spaces": summary.map(|s| s.spaces),
        "instructions": moments.map(|moments| moments.total().0),
        "bytes": folder_size(trace.dir()),
        "indexed": index == "there",
        "index": index,
        "kernel": header.machine.kernel,
        "cpu": header.machine.cpu,
        "points": header.machine.located().word(),
    })
}

/// What there is of an index.
fn index(trace: &Trace) -> &'static str {
    let built = || indexing::being_built(trace.dir()).map(|_| "building");
    match finished(trace) {
        part @ ("none" | "unfinished") => built().unwrap_or(part),
        other => other,
    }
}

/// What there is of an index, whoever builds it.
fn finished(trace: &Trace) -> &'static str {
    if !std::fs::metadata(trace.dir().join(INDEX_FILE)).is_ok_and(|file| file.len() > 0) {
        return "none";
    }
    match Store::open(trace.dir(), &trace.uuid()).map(|store| store.complete()) {
        Ok(Ok(true)) => "there",
        Ok(Ok(false)) => "unfinished",
        Ok(Err(_)) | Err(_) => "unreadable",
    }
}

/// How execution points are located.
fn located(row: &Value) -> &'static str {
    if row["points"] == "state" { "state" } else { "state, and a count of conditional branches" }
}

fn ended(trace: &Trace) -> String {
    let Some(summary) = trace.summary() else { return format!("not known: {}", text::incomplete(trace)) };
    let after = text::duration(Duration::from_nanos(summary.nanos));
    match &summary.refused {
        Some(reason) => format!("recording stopped after {after}: {reason}"),
        None => match killed(trace) {
            Some(signal) => format!("killed by {signal} after {after}"),
            None => format!("exit status {} after {after}", summary.exit_code),
        },
    }
}

/// The signal that killed the command's process, by its last events.
fn killed(trace: &Trace) -> Option<String> {
    let last = EventId(trace.len().saturating_sub(LAST_EVENTS));
    let exit = trace.events_from(last).filter_map(Result::ok).find_map(|(_, event)| match event.fact {
        Fact::Exit(status) if event.task == TaskId(0) => Some(status),
        _ => None,
    });
    let Some(Status::Killed(killed)) = exit else { return None };
    let name = kernel::signal_name(killed.signo).map_or(String::new(), |name| format!(" ({name})"));
    Some(format!("signal {}{name}", killed.signo))
}

fn index_line(dir: &Path, index: &str) -> String {
    match index {
        "none" => "none: `backstory index` builds it".to_owned(),
        "unfinished" => "unfinished, for it was interrupted: `backstory index` goes on with it".to_owned(),
        "building" => {
            // Its builder may have gone since.
            let builder =
                indexing::being_built(dir).unwrap_or_else(|| "a process that has just ended".to_owned());
            format!("being built by {builder}")
        }
        other => other.to_owned(),
    }
}

fn instructions(row: &Value) -> String {
    row["instructions"].as_u64().map_or("counted by the first replay".to_owned(), text::grouped)
}

fn shown<'a>(row: &'a Value, key: &str) -> &'a str {
    row[key].as_str().unwrap_or("")
}

/// How a recording is called: its folder's name.
fn name(dir: &Path) -> String {
    dir.file_name().map_or_else(|| dir.display().to_string(), |name| name.to_string_lossy().into_owned())
}

/// Bytes of disk below `dir`; what cannot be read counts nothing.
fn folder_size(dir: &Path) -> u64 {
    let Ok(entries) = std::fs::read_dir(dir) else { return 0 };
    let size = |entry: std::fs::DirEntry| match entry.metadata() {
        Ok(meta) if meta.is_dir() => folder_size(&entry.path()),
        Ok(meta) => meta.blocks() * 512,
        Err(_) => 0,
    };
    entries.flatten().map(size).sum()
}
