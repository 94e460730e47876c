//! Prints the project's figures: recording, replaying and indexing against a native run, side by side in one run.
//!
//! usage: `cargo run --release -p backstory-bench [-- [--runs N] [WORKLOAD...]]` after `cargo build --release`. All figures are
//! ratios of CPU time (user and system, of every process involved), the smallest of the runs; sizes are bytes.

mod measure;
mod workloads;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use measure::{Usage, median_of, run};
use workloads::Workload;

/// Figures of one workload.
struct Row {
    name: &'static str,
    native: f64,
    record: f64,
    replay: f64,
    instructions: u64,
    index_seconds: f64,
    index_bytes: u64,
    replay_rss_kib: u64,
    guest_rss_kib: u64,
    why_millis: f64,
    gdb_seconds: f64,
}

fn main() -> ExitCode {
    let mut runs = 3;
    let mut only = Vec::new();
    let mut args = std::env::args().skip(1);
    while let Some(arg) = args.next() {
        match arg.as_str() {
            "--runs" => runs = args.next().and_then(|n| n.parse().ok()).unwrap_or(runs),
            "--help" | "-h" => {
                println!("usage: backstory-bench [--runs N] [WORKLOAD...]");
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
    match bench(&binary, runs, &only) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("backstory-bench: {error}");
            ExitCode::FAILURE
        }
    }
}

fn bench(binary: &Path, runs: usize, only: &[String]) -> std::io::Result<()> {
    let scratch = tempfile::tempdir()?;
    println!(
        "{:<10} {:>8} {:>7} {:>7} {:>9} {:>9} {:>8} {:>9} {:>8} {:>7}",
        "workload",
        "native s",
        "record",
        "replay",
        "Minstr",
        "index M/s",
        "B/instr",
        "extra MiB",
        "why ms",
        "gdb s"
    );
    let mut rows = Vec::new();
    for workload in workloads::all(scratch.path())? {
        if !only.is_empty() && !only.iter().any(|name| name == workload.name) {
            continue;
        }
        let row = one(binary, &workload, scratch.path(), runs)?;
        print(&row);
        rows.push(row);
    }
    summary(&rows);
    Ok(())
}

fn print(row: &Row) {
    println!(
        "{:<10} {:>8.3} {:>7.2} {:>7.2} {:>9.1} {:>9.0} {:>8.3} {:>9.0} {:>8.1} {:>7.2}",
        row.name,
        row.native,
        row.record,
        row.replay,
        row.instructions as f64 / 1e6,
        row.instructions as f64 / 1e6 / row.index_seconds,
        row.index_bytes as f64 / row.instructions.max(1) as f64,
        row.replay_rss_kib.saturating_sub(row.guest_rss_kib) as f64 / 1024.0,
        row.why_millis,
        row.gdb_seconds,
    );
}

fn summary(rows: &[Row]) {
    if rows.is_empty() {
        return;
    }
    let geometric = |value: &dyn Fn(&Row) -> f64| {
        (rows.iter().map(|row| value(row).max(1e-9).ln()).sum::<f64>() / rows.len() as f64).exp()
    };
    println!(
        "geometric mean: record {:.2}, replay {:.2}, index {:.0} M instructions/s, {:.3} bytes per instruction",
        geometric(&|row| row.record),
        geometric(&|row| row.replay),
        geometric(&|row| row.instructions as f64 / 1e6 / row.index_seconds),
        geometric(&|row| row.index_bytes as f64 / row.instructions.max(1) as f64),
    );
}

fn arguments(parts: &[&str], trace: &Path, rest: &[&str]) -> Vec<String> {
    let trace = trace.to_string_lossy();
    parts.iter().map(|p| p.replace("TRACE", &trace)).chain(rest.iter().map(|r| (*r).to_owned())).collect()
}

fn one(binary: &Path, workload: &Workload, scratch: &Path, runs: usize) -> std::io::Result<Row> {
    let binary = binary.to_string_lossy();
    let command: Vec<&str> = workload.command.iter().map(String::as_str).collect();
    let (mut native, mut record, mut replay) = (Vec::new(), Vec::new(), Vec::new());
    let mut trace = PathBuf::new();
    for turn in 0..runs {
        native.push(run(&workload.command, scratch, workload.input.as_deref())?);
        trace = scratch.join(format!("{}-{turn}", workload.name));
        let args = arguments(&[&binary, "record", "-o", "TRACE", "--"], &trace, &command);
        record.push(run(&args, scratch, workload.input.as_deref())?);
        replay.push(run(&arguments(&[&binary, "replay", "TRACE"], &trace, &[]), scratch, None)?);
        if turn + 1 < runs {
            std::fs::remove_dir_all(&trace)?;
        }
    }
    let index = run(&arguments(&[&binary, "index", "-j", "1", "TRACE"], &trace, &[]), scratch, None)?;
    let least = |usages: &[Usage]| usages.iter().map(|u| u.cpu).fold(f64::INFINITY, f64::min);
    let instructions = measure::number(&binary, &trace, "SELECT max(moment) FROM events")?;
    let target = measure::text(&binary, &trace, "SELECT addr FROM writes ORDER BY moment DESC LIMIT 1")?;
    let why = |_| run(&arguments(&[&binary, "why", "-t", "TRACE", &target], &trace, &[]), scratch, None);
    let whys: Vec<Usage> = (0..5).map(why).collect::<Result<_, _>>()?;
    let gdb = ["-batch", "-ex", "info registers rip"];
    let gdb =
        run(&arguments(&[&binary, "gdb", "-t", "TRACE", "--at", "@90%", "--"], &trace, &gdb), scratch, None)?;
    let size = std::fs::metadata(trace.join("index.db"))?.len();
    let row = Row {
        name: workload.name,
        native: least(&native),
        record: least(&record) / least(&native),
        replay: least(&replay) / least(&native),
        instructions,
        index_seconds: index.cpu,
        index_bytes: size,
        replay_rss_kib: replay.iter().map(|u| u.peak_rss_kib).max().unwrap_or(0),
        guest_rss_kib: native.iter().map(|u| u.peak_rss_kib).max().unwrap_or(0),
        why_millis: median_of(&whys) * 1000.0,
        gdb_seconds: gdb.wall,
    };
    std::fs::remove_dir_all(&trace)?;
    Ok(row)
}
