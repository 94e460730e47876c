//! The programs that are measured, and their inputs, made on the spot.

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::Command;

/// One command to measure.
#[derive(Debug)]
pub(crate) struct Workload {
    /// Short name.
    pub(crate) name: &'static str,
    /// Program and arguments.
    pub(crate) command: Vec<String>,
    /// Standard input, if not empty.
    pub(crate) input: Option<PathBuf>,
}

/// How long the programs run.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Length {
    /// As long as one waits for an index of it.
    Short,
    /// Natively two seconds or more, beside which it takes little to start a recording.
    Long,
}

pub(crate) fn source(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("workloads").join(name)
}

pub(crate) fn words(text: &str) -> Vec<String> {
    text.split_whitespace().map(str::to_owned).collect()
}

/// The interpreter itself: a `python3` found by name may be a shell script that looks for it (pyenv's), several processes of a shell.
fn python() -> io::Result<String> {
    let output = Command::new("python3").args(["-c", "import sys; print(sys.executable)"]).output()?;
    let path = String::from_utf8_lossy(&output.stdout).trim().to_owned();
    if path.is_empty() { Err(io::Error::other("python3 does not say where it is")) } else { Ok(path) }
}

/// Text that compresses about as well as prose does.
fn prose(path: &Path, bytes: usize) -> io::Result<()> {
    let vocabulary: Vec<String> =
        (0..4000u32).map(|i| format!("{:x}", i.wrapping_mul(2_654_435_761) >> (i % 17))).collect();
    let mut file = io::BufWriter::new(fs::File::create(path)?);
    let (mut state, mut written) = (1u64, 0);
    while written < bytes {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let pick = ((state >> 33) % 4000) as usize;
        let word = &vocabulary[pick * pick / 4000];
        written += word.len() + 1;
        writeln!(file, "{word}")?;
    }
    file.flush()
}

pub(crate) fn compile(compiler: &str, name: &str, out: &Path) -> io::Result<()> {
    let status = Command::new(compiler).args(["-O2", "-g"]).arg(source(name)).arg("-o").arg(out).status()?;
    if status.success() { Ok(()) } else { Err(io::Error::other(format!("{compiler} failed on {name}"))) }
}

/// A program's text so many times over.
fn repeated(dir: &Path, name: &str, times: usize, between: &str) -> io::Result<String> {
    let path = dir.join(format!("{times}-{name}"));
    let text = fs::read_to_string(source(name))?;
    fs::write(&path, vec![text; times].join(between))?;
    Ok(path.to_string_lossy().into_owned())
}

/// Every workload, its inputs made in `dir`. They are the same ones in the same order for each length.
pub(crate) fn all(dir: &Path, length: Length) -> io::Result<Vec<Workload>> {
    let at = |name: &str| dir.join(name).to_string_lossy().into_owned();
    let times = |long| if length == Length::Long { long } else { 1 };
    let again = |name, long, between| repeated(dir, name, times(long), between);
    let big = format!("big-{}", times(2));
    prose(&dir.join(&big), times(2) * 30_000_000)?;
    prose(&dir.join("small"), 3_000_000)?;
    compile("gcc", "fib.c", &dir.join("fib"))?;
    compile("g++", "ex.cpp", &dir.join("ex"))?;
    let unit = at("unit.c");
    translation_unit(Path::new(&unit), 400)?;
    let cc1 = Command::new("gcc").arg("-print-prog-name=cc1").output()?;
    let cc1 = String::from_utf8_lossy(&cc1.stdout).trim().to_owned();
    let fib = if length == Length::Long { 45 } else { 38 };
    let sql = PathBuf::from(again("heavy.sql", 2, "DROP TABLE t;\n")?);
    let plain = |name, command: String| Workload { name, command: words(&command), input: None };
    Ok(vec![
        plain("gzip", format!("gzip -9 -c {}", at(&big))),
        plain("xz", format!("xz -3 -T1 -c {}", at("small"))),
        Workload { input: Some(sql), ..plain("sqlite3", "sqlite3 :memory:".to_owned()) },
        plain("perl", format!("perl {}", again("p.pl", 16, "")?)),
        plain("python3", format!("{} {}", python()?, again("b.py", 6, "")?)),
        plain("cc1", format!("{cc1} -quiet -O2 {unit} -o {}", at("unit.s"))),
        plain("fib", format!("{} {fib}", at("fib"))),
        plain("c++", format!("{} {}", at("ex"), times(10))),
        plain("mawk", format!("mawk -f {}", again("b.awk", 6, "")?)),
    ])
}

/// A C file of so many functions: an optimising compiler needs a second or so for 400.
pub(crate) fn translation_unit(path: &Path, functions: u32) -> io::Result<()> {
    let mut file = io::BufWriter::new(fs::File::create(path)?);
    writeln!(file, "typedef unsigned long u; u table[64];")?;
    for i in 0..functions {
        let (a, b, c) = (i % 61, i * 7 % 59, i * 13 % 53);
        writeln!(
            file,
            "u f{i}(u x, u y) {{ u s = {a}; for (u k = 0; k < y % {b} + 3; k++) {{ s = s * 31 + (x ^ table[k & 63]); \
             if (s & {}) x += table[{c}]; else switch (s % 7) {{ case 0: x ^= s; break; case 3: table[{a}] = s; break; \
             default: s -= k; }} }} return s + x; }}",
            1 << (i % 11)
        )?;
    }
    file.flush()
}
