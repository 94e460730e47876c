//! What recording costs programs of many kinds, each beside the most that it may cost.

use std::io;
use std::path::Path;

use trace::Trace;

use crate::callers::{self, missing};
use crate::measure::{least, run_on_one};
use crate::workloads::Workload;

/// The recorder's own memory, MiB.
const MEMORY: f64 = 100.0;
/// What one exec may add, milliseconds of CPU time.
const EXEC: f64 = 3.0;
/// Native CPU time below which more runs are made, seconds, and how many.
const SHORT: (f64, usize) = (0.05, 10);

/// What is known of a program beforehand.
struct Limit {
    name: &'static str,
    /// The most CPU time, as a ratio to native.
    ratio: Option<f64>,
    /// The same as rr without a counter has it.
    rr: Option<f64>,
    /// The size of its recording there, in millions of bytes. Ours may be half of that.
    rr_size: Option<f64>,
}

const fn limit(name: &'static str, ratio: f64) -> Limit {
    Limit { name, ratio: Some(ratio), rr: None, rr_size: None }
}

const fn beside(name: &'static str, ratio: f64, rr: f64) -> Limit {
    Limit { rr: Some(rr), ..limit(name, ratio) }
}

const fn sized(name: &'static str, ratio: f64, rr: f64, size: f64) -> Limit {
    Limit { rr_size: Some(size), ..beside(name, ratio, rr) }
}

const LIMITS: &[Limit] = &[
    beside("read+write", 3.0, 13.1),
    beside("getppid", 3.0, 4.7),
    beside("clock_gettime", 8.0, 39.7),
    limit("rdtsc x 1e6", 40.0),
    beside("pipe", 3.0, 9.6),
    beside("dd bs=1", 3.0, 13.1),
    sized("gzip", 1.1, 10.8, 5.2),
    limit("xz", 1.1),
    sized("sqlite3", 1.1, 13.2, 8.1),
    limit("perl", 1.1),
    beside("python3", 1.1, 28.9),
    limit("cc1", 1.1),
    Limit { ratio: None, ..sized("gcc -c", 1.1, 12.2, 8.3) },
    beside("Rust", 1.1, 5.4),
    beside("node", 1.1, 8.8),
    beside("true", 5.0, 37.0),
    beside("200 forks", 6.0, 60.0),
    Limit { ratio: None, ..limit("100 execs", 0.0) },
    beside("make -j2", 2.0, 20.6),
    sized("redis", 2.0, 7.2, 15.2),
    limit("nginx", 2.5),
];

/// What a program cost natively and recorded.
pub(crate) struct Cost {
    /// CPU seconds.
    pub(crate) native: f64,
    pub(crate) recorded: f64,
    /// The recorder's own largest resident set, MiB.
    rss: f64,
    size: Size,
}

/// Millions of bytes of a recording without the mapped files.
#[derive(Clone, Copy, Default)]
struct Size {
    streams: f64,
    /// What calls read of files.
    pieces: f64,
}

/// Prints a table of all.
pub(crate) fn print(binary: &Path, scratch: &Path, runs: usize, only: &[String]) -> io::Result<()> {
    println!(
        "{:<13} {:>8} {:>7} {:>6} {:>5} {:>9} {:>9} {:>6} {:>5} {:>7}",
        "program", "native s", "record", "limit", "rr", "trace MB", "pieces MB", "limit", "rr", "rec MiB"
    );
    let (mut over, mut most) = (Vec::new(), 0.0f64);
    for caller in callers::all(scratch)? {
        let name = caller.workload.name;
        let Some(limit) = LIMITS.iter().find(|limit| limit.name == name) else { continue };
        if !only.is_empty() && !only.iter().any(|one| one == name) {
            continue;
        }
        if let Some(missing) = missing(&caller) {
            println!("{name:<13} skipped: {missing} is not installed");
            continue;
        }
        let cost = cost(binary, &caller.workload, scratch, runs)?;
        most = most.max(cost.rss);
        if row(limit, &cost) {
            over.push(name);
        }
    }
    println!("the recorder's own memory: at most {most:.0} MiB, limit {MEMORY:.0}");
    match over.is_empty() {
        true => println!("nothing is over its limit"),
        false => println!("over their limits: {}", over.join(", ")),
    }
    Ok(())
}

/// Prints a program's figures; whether they are over a limit.
fn row(limit: &Limit, cost: &Cost) -> bool {
    let ratio = cost.recorded / cost.native;
    let size = cost.size.streams + cost.size.pieces;
    let most = limit.rr_size.map(|size| size / 2.0);
    let or_nothing = |value: Option<f64>, digits| value.map_or(String::new(), |v| format!("{v:.digits$}"));
    print!(
        "{:<13} {:>8.4} {:>7.3} {:>6} {:>5} {:>9.2} {:>9.2} {:>6} {:>5} {:>7.0}",
        limit.name,
        cost.native,
        ratio,
        or_nothing(limit.ratio, 2),
        or_nothing(limit.rr, 1),
        cost.size.streams,
        cost.size.pieces,
        or_nothing(most, 2),
        or_nothing(limit.rr_size, 1),
        cost.rss,
    );
    let mut over = limit.ratio.is_some_and(|most| ratio > most) || most.is_some_and(|most| size > most);
    if limit.name == "100 execs" {
        let each = (cost.recorded - cost.native) * 1000.0 / 100.0;
        print!("  {each:.2} ms an exec, limit {EXEC:.0}");
        over |= each > EXEC;
    }
    println!("{}", if over { "  over" } else { "" });
    over
}

/// Runs a program natively and recorded in turns, all of it on one processor.
pub(crate) fn cost(binary: &Path, workload: &Workload, scratch: &Path, runs: usize) -> io::Result<Cost> {
    let trace = scratch.join("trace");
    let (binary, dir) = (binary.to_string_lossy(), trace.to_string_lossy());
    let natively = &workload.command;
    let before = [&*binary, "record", "-q", "-o", &dir, "--"];
    let recording: Vec<String> =
        before.into_iter().map(str::to_owned).chain(natively.iter().cloned()).collect();
    let (mut native, mut recorded, mut size) = (Vec::new(), Vec::new(), Size::default());
    let mut left = runs.max(1);
    while left > 0 {
        native.push(run_on_one(natively, scratch, workload.input.as_deref())?);
        recorded.push(run_on_one(&recording, scratch, workload.input.as_deref())?);
        if native.len() == 1 && native[0].cpu < SHORT.0 {
            left = left.max(SHORT.1);
        }
        left -= 1;
        size = self::size(&trace)?;
        std::fs::remove_dir_all(&trace)?;
    }
    let rss = recorded.iter().map(|usage| usage.own_rss_kib).max().unwrap_or(0) as f64 / 1024.0;
    Ok(Cost { native: least(&native), recorded: least(&recorded), rss, size })
}

fn size(trace: &Path) -> io::Result<Size> {
    const MILLION: f64 = 1e6;
    let read = Trace::open(trace).map_err(io::Error::other)?;
    let pieces: u64 = read.pieces().iter().map(|piece| u64::from(piece.len)).sum();
    Ok(Size { streams: read.stream_bytes() as f64 / MILLION, pieces: pieces as f64 / MILLION })
}
