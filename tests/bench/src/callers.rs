//! Programs that make many system calls, start many processes, or serve others; and what else limits are set for.

use std::fmt::Write;
use std::fs;
use std::io;
use std::path::Path;
use std::process::Command;

use crate::workloads::{self, Length, Workload, compile, source, translation_unit, words};

/// C files that are compiled by `make`.
const SOURCES: usize = 28;
/// Files that are served.
const SERVED: usize = 10_000;

/// A program and what it needs.
pub(crate) struct Caller {
    pub(crate) workload: Workload,
    /// Programs that may not be there.
    needs: &'static [&'static str],
}

/// The first program that one needs and that is not installed.
pub(crate) fn missing(caller: &Caller) -> Option<&'static str> {
    let paths = std::env::var_os("PATH").unwrap_or_default();
    let there = |program: &&&str| std::env::split_paths(&paths).any(|folder| folder.join(program).is_file());
    caller.needs.iter().find(|program| !there(program)).copied()
}

fn caller(name: &'static str, needs: &'static [&'static str], command: &str) -> Caller {
    Caller { workload: Workload { name, command: words(command), input: None }, needs }
}

/// A script of the shell, with arguments.
fn script(name: &'static str, needs: &'static [&'static str], text: &str, arguments: &[&str]) -> Caller {
    let command =
        [&["bash", "-c", text, "bash"], arguments].concat().into_iter().map(str::to_owned).collect();
    Caller { workload: Workload { name, command, input: None }, needs }
}

/// A server and the client that loads it.
pub(crate) fn redis() -> Caller {
    let needs = &["redis-server", "redis-cli", "redis-benchmark"];
    script("redis", needs, include_str!("../workloads/serve_redis.sh"), &[])
}

/// Every program for which a limit is set, its input made in `dir`.
pub(crate) fn all(dir: &Path) -> io::Result<Vec<Caller>> {
    let at = |name: &str| dir.join(name).to_string_lossy().into_owned();
    for program in ["calls", "fetch"] {
        compile("gcc", &format!("{program}.c"), &dir.join(program))?;
    }
    let call = |name, kind: &str| caller(name, &[], &format!("{} {kind}", at("calls")));
    let mut all = vec![
        call("read+write", "read+write"),
        call("getppid", "getppid"),
        call("clock_gettime", "clock"),
        call("rdtsc x 1e6", "rdtsc"),
        call("pipe", "pipe"),
        caller("dd bs=1", &["dd"], "dd if=/dev/zero of=/dev/null bs=1 count=1000000"),
    ];
    let plain =
        workloads::all(dir, Length::Short)?.into_iter().map(|workload| Caller { workload, needs: &[] });
    all.extend(plain.filter(|caller| !["fib", "c++", "mawk"].contains(&caller.workload.name)));
    all.push(caller("gcc -c", &[], &format!("gcc -O2 -c {} -o {}", at("unit.c"), at("unit.o"))));
    all.push(rust(dir)?);
    all.push(caller("node", &["node"], &format!("node {}", source("cpu.js").display())));
    all.push(caller("true", &[], "true"));
    all.push(script("200 forks", &[], "for i in {1..200}; do /bin/true; done", &[]));
    all.push(call("100 execs", "exec 100"));
    all.push(make(dir)?);
    all.push(redis());
    all.push(nginx(dir)?);
    Ok(all)
}

fn rust(dir: &Path) -> io::Result<Caller> {
    let out = dir.join("cpu");
    let rust = caller("Rust", &["rustc"], &out.to_string_lossy());
    if missing(&rust).is_none() {
        let status = Command::new("rustc").arg("-O").arg("-o").arg(&out).arg(source("cpu.rs")).status()?;
        if !status.success() {
            return Err(io::Error::other("rustc failed on cpu.rs"));
        }
    }
    Ok(rust)
}

/// A folder of C files, each compiled anew in every run.
fn make(dir: &Path) -> io::Result<Caller> {
    let folder = dir.join("many");
    fs::create_dir_all(&folder)?;
    let mut rules = "all:".to_owned();
    for i in 0..SOURCES {
        translation_unit(&folder.join(format!("{i}.c")), 12)?;
        let _ = write!(rules, " {i}.o");
    }
    fs::write(folder.join("Makefile"), rules + "\n%.o: %.c\n\tgcc -O2 -c $< -o $@\n")?;
    Ok(caller("make -j2", &["make"], &format!("make -s -B -j2 -C {}", folder.display())))
}

fn nginx(dir: &Path) -> io::Result<Caller> {
    let files = dir.join("files");
    fs::create_dir_all(&files)?;
    for i in 0..SERVED {
        fs::write(files.join(i.to_string()), format!("This is file {i}.\n").repeat(1 + i % 50))?;
    }
    fs::copy(source("nginx.conf"), dir.join("nginx.conf"))?;
    let text = include_str!("../workloads/serve_nginx.sh");
    Ok(script("nginx", &["nginx"], text, &[&dir.to_string_lossy()]))
}
