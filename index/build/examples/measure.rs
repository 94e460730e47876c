//! Builds the index of a trace and prints what it cost: `measure TRACE [JOBS] [plain]`.

use std::path::Path;
use std::time::Instant;

use backstory_index_build::{Options, Progress, build};
use guest::{GuestRange, Moment};
use store::{Order, Store, WriteQuery};
use trace::Trace;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let args: Vec<String> = std::env::args().collect();
    let trace = Trace::open(Path::new(args.get(1).ok_or("usage: measure TRACE [JOBS]")?))?;
    let jobs = args.get(2).map_or(Ok(1), |jobs| jobs.parse())?;
    if args.get(3).is_some_and(|arg| arg == "plain") {
        let began = Instant::now();
        let mut replay = replayer::Replay::open(&trace, &replayer::Options::default())?;
        replay.run(replayer::Until::End, &mut replayer::Silent)?;
        let (all, took) = (replay.position().moment.0, began.elapsed());
        println!("plain replay: {all} instructions in {took:.2?}: {:.1} M/s", rate(all, took));
    }
    let tell = |progress: &Progress| {
        eprint!("\r{} of {:?} in {:.1?}   ", progress.instructions, progress.total, progress.elapsed);
    };
    let before = cpu();
    let report = build(&trace, &Options { jobs, progress: Some(&tell), ..Options::default() })?;
    eprintln!();
    let new = report.instructions - report.resumed;
    println!(
        "{} instructions ({} resumed), {} events, {} bytes ({:.4} a instruction) in {:.2?}: {:.1} M/s",
        report.instructions,
        report.resumed,
        report.events,
        report.bytes,
        report.bytes as f64 / report.instructions.max(1) as f64,
        report.elapsed,
        rate(new, report.elapsed)
    );
    let cpu = cpu() - before;
    println!("CPU time {cpu:.2} s: {:.1} M/s", new as f64 / cpu / 1e6);
    queries(&trace)
}

/// CPU seconds of this process and of children that are gone.
fn cpu() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let fields = stat.rsplit(')').next().unwrap_or_default().split_whitespace().skip(11).take(4);
    fields.filter_map(|field| field.parse::<f64>().ok()).sum::<f64>() / 100.0
}

fn rate(instructions: u64, took: std::time::Duration) -> f64 {
    instructions as f64 / took.as_secs_f64() / 1e6
}

/// Times last writes of words that were written at moments all over the recording.
fn queries(trace: &Trace) -> Result<(), Box<dyn std::error::Error>> {
    let began = Instant::now();
    let store = Store::open(trace.dir(), &trace.uuid())?;
    println!("opened in {:.2?}; {} at the end", began.elapsed(), store.end()?);
    let end = store.end()?.0;
    let mut samples = Vec::new();
    for step in 1..60 {
        let from = Moment(end / 60 * step);
        let query =
            WriteQuery { moments: from..Moment(u64::MAX), order: Order::Ascending, ..WriteQuery::default() };
        if let Some(row) = store.writes(&query)?.next() {
            samples.push(row?);
        }
    }
    for warm in [false, true] {
        let store = Store::open(trace.dir(), &trace.uuid())?;
        let (mut times, mut decoded) = (Vec::new(), 0);
        for row in &samples {
            for before in [row.moment, Moment(end)] {
                if warm {
                    store.last_write(row.space, GuestRange::new(row.addr, row.len), before)?;
                }
                let (began, granules) = (Instant::now(), store.granules_decoded());
                let found = store.last_write(row.space, GuestRange::new(row.addr, row.len), before)?;
                if let Some(found) = found {
                    store.value(&found)?;
                }
                times.push(began.elapsed());
                if store.granules_decoded() - granules > 5 {
                    println!("{} granules for {row:?} before {before}", store.granules_decoded() - granules);
                }
                decoded = decoded.max(store.granules_decoded() - granules);
            }
        }
        times.sort_unstable();
        if let (Some(median), Some(worst)) = (times.get(times.len() / 2), times.last()) {
            println!(
                "last write, {}: median {median:.2?}, worst {worst:.2?}, most granules {decoded}",
                if warm { "again" } else { "first" }
            );
        }
    }
    let began = Instant::now();
    let moment = Moment(end / 2);
    println!("at {moment}: {:?}", store.at(moment)?);
    let stack = store.stack_at(moment)?;
    println!("stack of {} calls in {:.2?}", stack.len(), began.elapsed());
    Ok(())
}
