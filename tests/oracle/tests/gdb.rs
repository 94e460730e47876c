//! Oracle: real gdb on recordings, script by script. Each `tests/scripts/*.gdb` names its guest and says what gdb must print:
//! `#> text` on standard output, in order; `#! text` on standard error. `# at: MOMENT` opens elsewhere than at the start, `#
//! fails` expects gdb to stop at an error, `# needs: avx512f` the processor to have that.
#![expect(clippy::unwrap_used, reason = "a test says what failed")]

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use backstory_oracle::command::{backstory, record};
use backstory_oracle::programs;

fn folder() -> PathBuf {
    programs::folder().with_file_name("scripts")
}

/// The rest of the lines of `text` that begin with `mark`.
fn marked<'a>(text: &'a str, mark: &str) -> Vec<&'a str> {
    text.lines().filter_map(|line| line.strip_prefix(mark)).map(str::trim).collect()
}

fn recorded(guest: &str, scratch: &Path) -> PathBuf {
    let trace = scratch.join("trace");
    let program = programs::build_file(&folder().join(format!("{guest}.c")), scratch);
    let output = record(&trace, &[program]);
    assert!(trace.join("events").exists(), "{guest}: {}", String::from_utf8_lossy(&output.stderr));
    trace
}

#[track_caller]
fn check(name: &str) {
    if Command::new("gdb").arg("--version").output().is_err() {
        eprintln!("skipped: gdb is not installed");
        return;
    }
    let scratch = tempfile::tempdir().unwrap();
    let path = folder().join(format!("{name}.gdb"));
    let script = fs::read_to_string(&path).unwrap();
    if marked(&script, "# needs:") == ["avx512f"] && !is_x86_feature_detected!("avx512f") {
        eprintln!("skipped: the processor lacks AVX-512");
        return;
    }
    let trace = recorded(marked(&script, "# guest:")[0], scratch.path());
    let at = marked(&script, "# at:").first().copied().unwrap_or("@start");
    let mut command = backstory(["gdb", "--at", at, "-t"]);
    command.arg(trace).args(["--", "-nx", "-batch", "-x"]).arg(&path).env("LC_ALL", "C");
    let output = command.output().unwrap();
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    let mut rest: &str = &out;
    for wanted in marked(&script, "#>") {
        let at = rest.find(wanted);
        let at =
            at.unwrap_or_else(|| panic!("{name}: `{wanted}` does not come next; all:\n{out}\n--\n{err}"));
        rest = &rest[at + wanted.len()..];
    }
    for wanted in marked(&script, "#!") {
        assert!(err.contains(wanted), "{name}: `{wanted}` is not in:\n{err}");
    }
    let fails = script.lines().any(|line| line == "# fails");
    assert_eq!(output.status.success(), !fails, "{name}: exit status; all:\n{out}\n--\n{err}");
}

macro_rules! scripts {
    ($($name:ident),* $(,)?) => {
        $(#[test]
        fn $name() {
            check(stringify!($name));
        })*

        const NAMES: &[&str] = &[$(stringify!($name)),*];
    };
}

scripts! {
    caught_calls, crash, ends, exec, facts, forward, goto, interrupt, next_over_vfork, no_calls, no_memory_writes, no_register_writes, reverse,
    reverse_over_call, shared_watch, signals, software_watch, threads, watch, wide_registers, wide_watch,
}

#[test]
fn every_script_runs() {
    let entries = fs::read_dir(folder()).unwrap().map(|entry| entry.unwrap().path());
    let mut files: Vec<String> = entries
        .filter(|path| path.extension().is_some_and(|extension| extension == "gdb"))
        .map(|path| path.file_stem().unwrap().to_string_lossy().into_owned())
        .collect();
    files.sort();
    assert_eq!(files, NAMES);
}

/// What gdb prints of the three threads' copies of each variable, where the thread numbered 2 in the program stops.
#[track_caller]
fn own_copies(flags: &[&str], library: Option<&[&str]>, asked: &[(&str, &str)]) {
    if Command::new("gdb").arg("--version").output().is_err() {
        eprintln!("skipped: gdb is not installed");
        return;
    }
    let scratch = tempfile::tempdir().unwrap();
    let source = folder().join("own_copies.c");
    let build = |out: &str, flags: &[&str]| {
        let out = scratch.path().join(out);
        let mut gcc = Command::new("gcc");
        gcc.args(["-g", "-O1", "-pthread"]).arg(&source).args(flags).arg("-o").arg(&out);
        assert!(gcc.status().unwrap().success());
        out.into_os_string()
    };
    let mut command = vec![build("program", flags)];
    command.extend(library.map(|flags| build("library.so", flags)));
    let trace = scratch.path().join("trace");
    assert!(record(&trace, &command).status.success());
    let mut gdb = backstory(["gdb", "-t"]);
    gdb.arg(trace).args(["--", "-nx", "-batch", "-ex", "break stop_here", "-ex", "continue"]);
    for (variable, _) in asked {
        gdb.args(["-ex", &format!("thread apply all -ascending -s print {variable}")]);
    }
    let output = gdb.env("LC_ALL", "C").output().unwrap();
    let out = String::from_utf8_lossy(&output.stdout);
    let values: Vec<&str> =
        out.lines().filter_map(|line| line.strip_prefix('$')?.split(" = ").nth(1)).collect();
    let expected: Vec<&str> = asked.iter().flat_map(|(_, values)| values.split(' ')).collect();
    assert_eq!(values, expected, "{out}\n--\n{}", String::from_utf8_lossy(&output.stderr));
}

/// Of the first thread, then of the one that stopped, then of the other, as gdb comes to know of them.
const OWN: [(&str, &str); 4] =
    [("my_own", "3 5 4"), ("zeroed", "0 200 100"), ("(int)before[0]", "0 2 1"), ("(int)errno", "9 22 21")];

#[test]
fn each_thread_has_its_own_copies_of_variables() {
    own_copies(&[], None, &OWN);
}

#[test]
fn also_in_programs_without_a_dynamic_linker() {
    own_copies(&["-static", "-DSTATIC"], None, &OWN);
    own_copies(&["-static-pie", "-DSTATIC"], None, &OWN);
    own_copies(&["-no-pie"], None, &OWN);
}

#[test]
fn also_in_libraries_where_a_thread_has_used_them() {
    // The first thread used those of the library when it was loaded before, not of this one.
    let more = [("library_own", "72 71"), ("(int)large[0]", "1 1")];
    own_copies(&[], Some(&["-shared", "-fPIC", "-DLIBRARY"]), &[&OWN[..], &more].concat());
}

#[test]
fn what_ends_backstory_ends_gdb_and_leaves_nothing() {
    if Command::new("gdb").arg("--version").output().is_err() {
        eprintln!("skipped: gdb is not installed");
        return;
    }
    let scratch = tempfile::tempdir().unwrap();
    let trace = recorded("walk", scratch.path());
    for (name, signo) in [("TERM", 15), ("HUP", 1)] {
        let temporary = scratch.path().join(name);
        fs::create_dir(&temporary).unwrap();
        let mut command = backstory(["gdb", "-t"]);
        command.arg(&trace).args(["--", "-nx", "-ex", "echo ready\\n"]).env("TMPDIR", &temporary);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        assert!(lines.any(|line| line.unwrap().contains("ready")));
        assert_eq!(fs::read_dir(&temporary).unwrap().count(), 1);
        let kill = Command::new("kill").args(["-s", name, &child.id().to_string()]).status().unwrap();
        assert!(kill.success());
        let ended = child.wait().unwrap();
        assert_eq!(ended.signal(), Some(signo), "{ended:?}");
        assert_eq!(fs::read_dir(&temporary).unwrap().count(), 0, "{name}");
    }
}

#[test]
fn gdb_returns_its_own_status_and_bad_moments_are_refused() {
    let scratch = tempfile::tempdir().unwrap();
    let trace = recorded("walk", scratch.path());
    let run = |at: &str, ex: &str| {
        let mut command = backstory(["gdb", "--at", at, "-t"]);
        command.arg(&trace).args(["--", "-nx", "-batch", "-ex", ex]).output().unwrap()
    };
    assert_eq!(run("@start", "quit 7").status.code(), Some(7));
    let refused = run("@999999999999", "quit");
    assert_eq!(refused.status.code(), Some(2));
    assert_eq!(String::from_utf8_lossy(&refused.stderr).lines().count(), 1);
    let mut without = backstory(["gdb", "-t"]);
    let output = without.arg(&trace).env("PATH", scratch.path()).output().unwrap();
    assert_eq!(output.status.code(), Some(127));
}
