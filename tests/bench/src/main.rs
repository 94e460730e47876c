//! Prints the project's figures: recording, replaying and indexing against a native run, side by side in one run.
//!
//! usage: `cargo run --release -p backstory-bench [-- [--record | --threads | --limits] [--runs N] [WORKLOAD...]]` after `cargo build --release`. Ratios are
//! of CPU time (user and system, of every process involved), the smallest of the runs. What is recorded runs for seconds, since starting
//! a recording has a figure of its own; what is replayed and indexed is shorter (`short s` natively). `trace KiB` is both streams, `kept KiB`
//! the kept files and pieces, which recordings share; `rec MiB` the recorder's own resident set. With `--record` nothing is replayed.
//! With `--threads`, programs with threads and signals instead, against native runs on one processor: what recording them costs;
//! execution points, what taking one takes at the median (also without 2 us for each page that was written), and the share of all of
//! them; the first replay, which searches, against a later one.
//! With `--limits`, what recording costs programs of many kinds on one processor, and the size of their recordings, each beside the most that
//! it may be and beside what rr without a counter (rr.soft) was measured to cost.

mod callers;
mod limits;
mod measure;
mod threads;
mod workloads;

use std::path::Path;
use std::process::ExitCode;

use measure::{Usage, least, median_of, run};
use workloads::{Length, Workload};

/// Figures of one workload.
struct Row {
    name: &'static str,
    native: f64,
    record: f64,
    trace_bytes: u64,
    kept_bytes: u64,
    record_rss_kib: u64,
    replayed: Option<Replayed>,
}

/// Figures of one workload's replay and index.
struct Replayed {
    native: f64,
    replay: f64,
    /// What the replay's largest process has resident beyond the native one's.
    extra_rss_kib: u64,
    index: Indexed,
}

/// Figures of one workload's index.
struct Indexed {
    instructions: u64,
    seconds: f64,
    bytes: u64,
    why_millis: f64,
    gdb_seconds: f64,
}

/// What is printed.
#[derive(Clone, Copy)]
enum Mode {
    Everything,
    Recording,
    Threads,
    Limits,
}

fn main() -> ExitCode {
    let (mut runs, mut mode) = (3, Mode::Everything);
    let mut only = Vec::new();
    let mut args = std::env::args().skip(1);
    while let Some(arg) = args.next() {
        match arg.as_str() {
            "--runs" => runs = args.next().and_then(|n| n.parse().ok()).unwrap_or(runs),
            "--record" => mode = Mode::Recording,
            "--threads" => mode = Mode::Threads,
            "--limits" => mode = Mode::Limits,
            "--help" | "-h" => {
                println!("usage: backstory-bench [--record | --threads | --limits] [--runs N] [WORKLOAD...]");
                return ExitCode::SUCCESS;
            }
            name => only.push(name.to_owned()),
        }
    }
    let binary = std::env::current_exe().map(|path| path.with_file_name("backstory")).unwrap_or_default();
    if !binary.exists() {
        eprintln!("backstory-bench: {} is missing: run `cargo build --release` first", binary.display());
        return ExitCode::from(2);
    }
    let done = tempfile::tempdir().and_then(|scratch| match mode {
        Mode::Everything => bench(&binary, scratch.path(), runs, true, &only),
        Mode::Recording => bench(&binary, scratch.path(), runs, false, &only),
        Mode::Threads => threads::print(&binary, scratch.path(), runs),
        Mode::Limits => limits::print(&binary, scratch.path(), runs, &only),
    });
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("backstory-bench: {error}");
            ExitCode::FAILURE
        }
    }
}

fn bench(binary: &Path, scratch: &Path, runs: usize, replays: bool, only: &[String]) -> std::io::Result<()> {
    print!("{:<10} {:>8} {:>7} ", "workload", "native s", "record");
    print!("{:>9} {:>8} {:>8}", "trace KiB", "kept KiB", "rec MiB");
    if replays {
        print!(
            " {:>8} {:>7} {:>9} {:>9} {:>8} {:>9} {:>8} {:>7}",
            "short s", "replay", "Minstr", "index M/s", "B/instr", "extra MiB", "why ms", "gdb s"
        );
    }
    println!();
    let mut rows = Vec::new();
    let short = workloads::all(scratch, Length::Short)?;
    for (long, short) in workloads::all(scratch, Length::Long)?.iter().zip(&short) {
        if !only.is_empty() && !only.iter().any(|name| name == long.name) {
            continue;
        }
        let mut row = recorded(binary, long, scratch, runs)?;
        row.replayed = if replays { Some(replayed(binary, short, scratch, runs)?) } else { None };
        print(&row);
        rows.push(row);
    }
    summary(&rows);
    println!("starting a recording: {:.1} ms", start_millis(binary, scratch, runs)?);
    Ok(())
}

/// What recording costs a program that does nothing.
fn start_millis(binary: &Path, scratch: &Path, runs: usize) -> std::io::Result<f64> {
    let command = vec!["true".to_owned()];
    let workload = Workload { name: "true", command, input: None };
    let row = recorded(binary, &workload, scratch, runs.max(10))?;
    Ok((row.record - 1.0) * row.native * 1000.0)
}

fn print(row: &Row) {
    let mib = |kib: u64| kib as f64 / 1024.0;
    print!(
        "{:<10} {:>8.3} {:>7.3} {:>9} {:>8} {:>8.0}",
        row.name,
        row.native,
        row.record,
        row.trace_bytes / 1024,
        row.kept_bytes / 1024,
        mib(row.record_rss_kib)
    );
    if let Some(Replayed { native, replay, extra_rss_kib, index }) = &row.replayed {
        print!(
            " {native:>8.3} {replay:>7.2} {:>9.1} {:>9.0} {:>8.3} {:>9.0} {:>8.1} {:>7.2}",
            index.instructions as f64 / 1e6,
            index.speed(),
            index.bytes_each(),
            mib(*extra_rss_kib),
            index.why_millis,
            index.gdb_seconds,
        );
    }
    println!();
}

impl Indexed {
    /// Millions of instructions indexed in a second.
    fn speed(&self) -> f64 {
        self.instructions as f64 / 1e6 / self.seconds
    }

    /// Bytes of index for an instruction.
    fn bytes_each(&self) -> f64 {
        self.bytes as f64 / self.instructions.max(1) as f64
    }
}

fn geometric(values: impl Iterator<Item = f64>) -> f64 {
    let (sum, count) = values.fold((0.0, 0), |(sum, count), value| (sum + value.max(1e-9).ln(), count + 1));
    (sum / f64::from(count)).exp()
}

fn summary(rows: &[Row]) {
    if rows.is_empty() {
        return;
    }
    print!("geometric mean: record {:.3}", geometric(rows.iter().map(|row| row.record)));
    let replayed: Vec<&Replayed> = rows.iter().filter_map(|row| row.replayed.as_ref()).collect();
    if !replayed.is_empty() {
        print!(
            ", replay {:.2}, index {:.0} M instructions/s, {:.3} bytes per instruction",
            geometric(replayed.iter().map(|r| r.replay)),
            geometric(replayed.iter().map(|r| r.index.speed())),
            geometric(replayed.iter().map(|r| r.index.bytes_each())),
        );
    }
    println!();
}

fn arguments(parts: &[&str], trace: &Path, rest: &[&str]) -> Vec<String> {
    let trace = trace.to_string_lossy();
    parts.iter().map(|p| p.replace("TRACE", &trace)).chain(rest.iter().map(|r| (*r).to_owned())).collect()
}

/// Records a workload to `trace`.
fn record(binary: &Path, workload: &Workload, scratch: &Path, trace: &Path) -> std::io::Result<Usage> {
    let command: Vec<&str> = workload.command.iter().map(String::as_str).collect();
    let args = arguments(&[&binary.to_string_lossy(), "record", "-o", "TRACE", "--"], trace, &command);
    run(&args, scratch, workload.input.as_deref())
}

/// Measures recording.
fn recorded(binary: &Path, workload: &Workload, scratch: &Path, runs: usize) -> std::io::Result<Row> {
    let trace = scratch.join("trace");
    let (mut native, mut recorded) = (Vec::new(), Vec::new());
    let (mut trace_bytes, mut kept_bytes) = (0, 0);
    for _ in 0..runs {
        native.push(run(&workload.command, scratch, workload.input.as_deref())?);
        recorded.push(record(binary, workload, scratch, &trace)?);
        let size = |stream: &str| std::fs::metadata(trace.join(stream)).map(|meta| meta.len());
        trace_bytes = size("events")? + size("payload")?;
        kept_bytes = std::fs::read_dir(trace.join("files"))?
            .map(|file| Ok(file?.metadata()?.len()))
            .sum::<std::io::Result<u64>>()?;
        std::fs::remove_dir_all(&trace)?;
    }
    let native = least(&native);
    Ok(Row {
        name: workload.name,
        native,
        record: least(&recorded) / native,
        trace_bytes,
        kept_bytes,
        record_rss_kib: recorded.iter().map(|usage| usage.own_rss_kib).max().unwrap_or(0),
        replayed: None,
    })
}

/// Measures replaying, each time the first replay of a recording, and indexing.
fn replayed(binary: &Path, workload: &Workload, scratch: &Path, runs: usize) -> std::io::Result<Replayed> {
    let trace = scratch.join("trace");
    let name = binary.to_string_lossy();
    let (mut native, mut replay) = (Vec::new(), Vec::new());
    for turn in 0..runs {
        if turn > 0 {
            std::fs::remove_dir_all(&trace)?;
        }
        native.push(run(&workload.command, scratch, workload.input.as_deref())?);
        record(binary, workload, scratch, &trace)?;
        replay.push(run(&arguments(&[&name, "replay", "TRACE"], &trace, &[]), scratch, None)?);
    }
    let peak = |usages: &[Usage]| usages.iter().map(|usage| usage.peak_rss_kib).max().unwrap_or(0);
    let replayed = Replayed {
        native: least(&native),
        replay: least(&replay) / least(&native),
        extra_rss_kib: peak(&replay).saturating_sub(peak(&native)),
        index: index(&name, &trace, scratch)?,
    };
    std::fs::remove_dir_all(&trace)?;
    Ok(replayed)
}

/// Indexes a recording and asks it.
fn index(binary: &str, trace: &Path, scratch: &Path) -> std::io::Result<Indexed> {
    let built = run(&arguments(&[binary, "index", "-j", "1", "TRACE"], trace, &[]), scratch, None)?;
    let target = measure::text(binary, trace, "SELECT addr FROM writes ORDER BY moment DESC LIMIT 1")?;
    let why = |_| run(&arguments(&[binary, "why", "-t", "TRACE", &target], trace, &[]), scratch, None);
    let whys: Vec<Usage> = (0..5).map(why).collect::<Result<_, _>>()?;
    let gdb = ["-batch", "-ex", "info registers rip"];
    let gdb =
        run(&arguments(&[binary, "gdb", "-t", "TRACE", "--at", "@90%", "--"], trace, &gdb), scratch, None)?;
    Ok(Indexed {
        instructions: measure::number(binary, trace, "SELECT max(moment) FROM events")?,
        seconds: built.cpu,
        bytes: std::fs::metadata(trace.join("index.db"))?.len(),
        why_millis: median_of(&whys) * 1000.0,
        gdb_seconds: gdb.wall,
    })
}
