//! Runs a folder of programs natively, recorded, checked and replayed, and holds what fails against the list of known gaps.
//!
//! usage: `cargo run --release -p backstory-conformance -- FOLDER` after `cargo build --release`. Exits with 0 if all that failed are
//! known gaps and none of these passed, 1 if not, 2 if it cannot run.

mod gaps;
mod process;
mod trial;

use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;
use gaps::Gaps;
use regex_lite::Regex;
use trial::{Verdict, try_program};

/// Run every executable of a folder natively, recorded, checked and replayed, and compare
#[derive(Parser)]
struct Args {
    /// The folder of executables; each is run without arguments
    folder: PathBuf,
    /// The list of known gaps: NAME<TAB>REASON on each line
    #[arg(long, value_name = "FILE", default_value = concat!(env!("CARGO_MANIFEST_DIR"), "/gaps.txt"))]
    gaps: PathBuf,
    /// Seconds that each run may take
    #[arg(long, value_name = "S", default_value_t = 30)]
    timeout: u64,
    /// Take only programs whose names match
    #[arg(long, value_name = "REGEX")]
    only: Option<Regex>,
}

/// How many programs came to what, and the surprises.
#[derive(Default)]
struct Totals {
    passed: usize,
    unfit: usize,
    known: usize,
    new_failures: Vec<String>,
    closed_gaps: Vec<String>,
}

fn main() -> ExitCode {
    match conform(&Args::parse()) {
        Ok(totals) if totals.new_failures.is_empty() && totals.closed_gaps.is_empty() => ExitCode::SUCCESS,
        Ok(_) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("backstory-conformance: {error}");
            ExitCode::from(2)
        }
    }
}

fn conform(args: &Args) -> io::Result<Totals> {
    let gaps = gaps::read(&args.gaps)?;
    let mut totals = Totals::default();
    println!("{:32} {:>6} {:>8} {:>8}  verdict", "name", "native", "recorded", "replayed");
    for (name, program) in executables(&args.folder, args.only.as_ref())? {
        let trial = try_program(&program, Duration::from_secs(args.timeout))?;
        let verdict = totals.count(&name, &trial.verdict, &gaps);
        println!("{name:32} {:>6} {:>8} {:>8}  {verdict}", trial.native, trial.recorded, trial.replayed);
        io::stdout().flush()?;
    }
    totals.print();
    Ok(totals)
}

/// The executables in `folder` by name, in the order of their names.
fn executables(folder: &Path, only: Option<&Regex>) -> io::Result<Vec<(String, PathBuf)>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder.canonicalize()?)? {
        let path = entry?.path();
        let name = path.file_name().expect("an entry has a name").to_string_lossy().into_owned();
        let metadata = fs::metadata(&path)?;
        if metadata.is_file()
            && metadata.permissions().mode() & 0o111 != 0
            && only.is_none_or(|only| only.is_match(&name))
        {
            found.push((name, path));
        }
    }
    found.sort();
    Ok(found)
}

impl Totals {
    /// Counts one verdict; it in words.
    fn count(&mut self, name: &str, verdict: &Verdict, gaps: &Gaps) -> String {
        match (verdict, gaps.get(name)) {
            (Verdict::Unfit(why), _) => {
                self.unfit += 1;
                format!("unfit: {why}")
            }
            (Verdict::Passed, None) => {
                self.passed += 1;
                "passed".to_owned()
            }
            (Verdict::Passed, Some(reason)) if gaps::varies(reason) => {
                self.passed += 1;
                "passed this time".to_owned()
            }
            (Verdict::Passed, Some(reason)) => {
                self.closed_gaps.push(name.to_owned());
                format!("PASSED, a known gap: {reason}")
            }
            (Verdict::Failed(cause), Some(_)) => {
                self.known += 1;
                format!("known gap: {cause}")
            }
            (Verdict::Failed(cause), None) => {
                self.new_failures.push(name.to_owned());
                format!("FAILED: {cause}")
            }
        }
    }

    fn print(&self) {
        println!(
            "{} passed, {} known gaps, {} unfit, {} failed, {} known gaps passed",
            self.passed,
            self.known,
            self.unfit,
            self.new_failures.len(),
            self.closed_gaps.len()
        );
        for (what, names) in
            [("failed", &self.new_failures), ("passed, strike from the list", &self.closed_gaps)]
        {
            if !names.is_empty() {
                println!("{what}: {}", names.join(" "));
            }
        }
    }
}
