//! Figures of programs with threads: recording them, execution points, and replays that search for these.

use std::io;
use std::path::Path;
use std::process::Command;

use crate::callers;
use crate::limits;
use crate::measure::{least, run, run_logged, run_on_one};

/// What a recorder logs of each execution point it takes.
const CAPTURES: &str = "backstory_recorder::point=debug";

/// One execution point, as the log has it.
struct Capture {
    micros: f64,
    pages: f64,
}

/// Prints a table of all.
pub(crate) fn print(binary: &Path, scratch: &Path, runs: usize) -> io::Result<()> {
    println!(
        "{:<10} {:>8} {:>7} {:>7} {:>10} {:>10} {:>7} {:>11}",
        "workload", "native s", "record", "points", "median us", "less pages", "share", "first/later"
    );
    for (name, argument) in [("workers", "400000"), ("compute", "150"), ("ticks", "")] {
        let guest = build(name, scratch)?;
        let mut command = vec![guest];
        command.extend((!argument.is_empty()).then(|| argument.to_owned()));
        one(binary, name, &command, scratch, runs)?;
    }
    redis(binary, scratch, runs)
}

fn build(name: &str, scratch: &Path) -> io::Result<String> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../programs/threaded");
    let out = scratch.join(name);
    let source = folder.join(format!("{name}.c"));
    let status = Command::new("gcc").args(["-O2", "-pthread", "-o"]).arg(&out).arg(source).status()?;
    if status.success() {
        Ok(out.to_string_lossy().into_owned())
    } else {
        Err(io::Error::other(format!("gcc failed on {name}.c")))
    }
}

fn words(words: &[&str], rest: &[String]) -> Vec<String> {
    words.iter().map(|word| (*word).to_owned()).chain(rest.iter().cloned()).collect()
}

fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

fn one(binary: &Path, name: &str, command: &[String], scratch: &Path, runs: usize) -> io::Result<()> {
    let binary = binary.to_string_lossy();
    let trace = scratch.join("trace");
    let dir = trace.to_string_lossy();
    let (mut native, mut record, mut logged) = (Vec::new(), Vec::new(), Vec::new());
    let (mut first, mut later) = (Vec::new(), Vec::new());
    for _ in 0..runs {
        native.push(run_on_one(command, scratch, None)?);
        let recorder = [&*binary, "record", "-q", "-o", &dir, "--"];
        record.push(run_on_one(&words(&recorder, command), scratch, None)?);
        for replays in [&mut first, &mut later] {
            replays.push(run(&words(&[&binary, "replay", "-q", &dir], &[]), scratch, None)?);
        }
        std::fs::remove_dir_all(&trace)?;
        logged.push(run_logged(&words(&recorder, command), scratch, CAPTURES)?);
        std::fs::remove_dir_all(&trace)?;
    }
    let captures: Vec<Vec<Capture>> = logged.iter().map(|(_, log)| captures(log)).collect();
    let spent = |run: &Vec<Capture>| run.iter().map(|capture| capture.micros).sum::<f64>() * 1e-6;
    let shares = captures.iter().zip(&logged).map(|(run, (usage, _))| spent(run) / usage.cpu);
    let all = || captures.iter().flatten();
    println!(
        "{name:<10} {:>8.3} {:>7.3} {:>7} {:>10.0} {:>10.0} {:>6.1}% {:>11.2}",
        least(&native),
        least(&record) / least(&native),
        all().count() / runs.max(1),
        median(all().map(|capture| capture.micros)),
        median(all().map(|capture| (capture.micros - 2.0 * capture.pages).max(0.0))),
        100.0 * shares.fold(f64::INFINITY, f64::min),
        least(&first) / least(&later),
    );
    Ok(())
}

/// The points that a log tells of.
fn captures(log: &str) -> Vec<Capture> {
    let field = |line: &str, name: &str| {
        let value = line.split(name).nth(1)?.split_whitespace().next()?;
        value.parse().ok()
    };
    let capture =
        |line: &str| Some(Capture { micros: field(line, "micros=")?, pages: field(line, "pages=")? });
    log.lines().filter_map(capture).collect()
}

fn redis(binary: &Path, scratch: &Path, runs: usize) -> io::Result<()> {
    let redis = callers::redis();
    if let Some(missing) = callers::missing(&redis) {
        println!("{:<10} skipped: {missing} is not installed", redis.workload.name);
        return Ok(());
    }
    let cost = limits::cost(binary, &redis.workload, scratch, runs)?;
    println!("{:<10} {:>8.3} {:>7.3}", redis.workload.name, cost.native, cost.recorded / cost.native);
    Ok(())
}
