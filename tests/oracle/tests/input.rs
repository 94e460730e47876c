//! Bad input: each kind gets one clear line on standard error and its documented exit code, and loses nothing.
#![expect(clippy::unwrap_used, reason = "a test says what failed")]

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Output;

use backstory_oracle::command::{backstory, record};

/// One line, the wanted words in it, the wanted exit code.
#[track_caller]
fn refused(output: &Output, code: i32, words: &[&str]) {
    let text = String::from_utf8_lossy(&output.stderr);
    let lines: Vec<&str> = text.lines().filter(|line| !line.is_empty()).collect();
    assert_eq!(output.status.code(), Some(code), "exit code; standard error: {text}");
    assert_eq!(lines.len(), 1, "one line: {text}");
    assert!(lines[0].starts_with("backstory: "), "{text}");
    for word in words {
        assert!(lines[0].contains(word), "{word} is not in: {text}");
    }
}

fn recording(scratch: &Path) -> PathBuf {
    let dir = scratch.join("trace");
    let output = record(&dir, &["/bin/echo", "hello"]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    dir
}

fn run(args: &[&str], dir: &Path) -> Output {
    backstory(args).arg(dir).output().unwrap()
}

#[test]
fn commands_that_cannot_run() {
    let scratch = tempfile::tempdir().unwrap();
    let at = |name: &str| scratch.path().join(name);
    refused(&record(&at("a"), &["/nowhere/program"]), 127, &["/nowhere/program"]);
    refused(&record(&at("b"), &["no-such-program-anywhere"]), 127, &["no-such-program-anywhere"]);
    let plain = at("plain");
    fs::write(&plain, "not a program").unwrap();
    refused(&record(&at("c"), &[plain.to_str().unwrap()]), 126, &["plain"]);
    refused(&record(&at("d"), &[scratch.path().to_str().unwrap()]), 126, &[]);
}

#[test]
fn foreign_executables() {
    let scratch = tempfile::tempdir().unwrap();
    let native = fs::read("/bin/true").unwrap();
    for (name, class, machine, word) in [("arm", 2, 183u8, "x86-64"), ("i386", 1, 3, "32-bit")] {
        let mut elf = native.clone();
        (elf[4], elf[18]) = (class, machine);
        let path = scratch.path().join(name);
        fs::write(&path, &elf).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        refused(&record(&scratch.path().join("t"), &[path.to_str().unwrap()]), 126, &[word]);
    }
}

#[test]
fn folders_that_are_no_traces() {
    let scratch = tempfile::tempdir().unwrap();
    for command in ["replay", "index", "check", "info"] {
        refused(&run(&[command], &scratch.path().join("nothing")), 2, &["nothing"]);
        refused(&run(&[command], scratch.path()), 3, &[]);
    }
}

#[test]
fn newer_and_damaged_traces() {
    let scratch = tempfile::tempdir().unwrap();
    let dir = recording(scratch.path());
    let events = dir.join("events");
    let good = fs::read(&events).unwrap();
    fs::write(&events, &good[..good.len() / 2]).unwrap();
    for command in ["replay", "check", "info"] {
        let output = run(&[command], &dir);
        let code = output.status.code().unwrap();
        // Cut short, it may still be readable up to the last complete frame; then what is left is right.
        assert!([0, 1, 3].contains(&code), "{command}: {code}: {}", String::from_utf8_lossy(&output.stderr));
    }
    fs::write(&events, b"").unwrap();
    refused(&run(&["replay"], &dir), 3, &[]);
    fs::write(&events, b"garbage that is no trace at all, but longer than any header would be").unwrap();
    refused(&run(&["replay"], &dir), 3, &[]);
}

#[test]
fn moments_and_addresses() {
    let scratch = tempfile::tempdir().unwrap();
    let dir = recording(scratch.path());
    let name = dir.to_str().unwrap();
    let out = |args: &[&str]| backstory(args).output().unwrap();
    refused(&out(&["replay", "--quiet", "--until", "@999999999999", name]), 2, &["@999999999999"]);
    refused(&out(&["replay", "--until", "tomorrow", name]), 2, &["tomorrow"]);
    assert!(out(&["index", name]).status.success());
    refused(&out(&["why", "-t", name, "0x10"]), 2, &["0x10", "not mapped"]);
    refused(&out(&["why", "-t", name, "no_such_symbol"]), 2, &["no_such_symbol"]);
    refused(&out(&["why", "-t", name, "0x10", "--at", "@999999999999"]), 2, &["@999999999999"]);
}

#[test]
fn wrong_sql() {
    let scratch = tempfile::tempdir().unwrap();
    let dir = recording(scratch.path());
    assert!(run(&["index"], &dir).status.success());
    let output = backstory(["query", "-t"]).arg(&dir).arg("SELECT no_such FROM writes").output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(text.contains("no such column: no_such") && text.contains('^'), "{text}");
    let sql = "SELECT count(*) FROM executions WHERE moment >= :from";
    let output = backstory(["query", "-t"]).arg(&dir).arg(sql).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&output.stderr).starts_with("backstory: `:from` has no value"));
}

#[test]
fn an_index_of_another_trace() {
    let scratch = tempfile::tempdir().unwrap();
    let dir = recording(scratch.path());
    assert!(run(&["index"], &dir).status.success());
    let other = scratch.path().join("other");
    record(&other, &["/bin/echo", "other"]);
    fs::copy(dir.join("index.db"), other.join("index.db")).unwrap();
    refused(&backstory(["why", "-t"]).arg(&other).arg("0x400000").output().unwrap(), 3, &["another trace"]);
}

#[test]
fn an_index_that_is_none() {
    let scratch = tempfile::tempdir().unwrap();
    let dir = recording(scratch.path());
    let (name, index) = (dir.to_str().unwrap(), dir.join("index.db"));
    fs::write(&index, "nothing of the kind").unwrap();
    for args in [&["index", name][..], &["why", "-t", name, "environ"], &["query", "-t", name, "SELECT 1"]] {
        refused(&backstory(args.iter().copied()).output().unwrap(), 3, &["is not an index", "remove"]);
    }
    // SQLite leaves an empty file where it is killed early: there is no index then.
    fs::write(&index, "").unwrap();
    let info = run(&["info"], &dir);
    assert!(String::from_utf8_lossy(&info.stdout).contains("none: `backstory index` builds it"));
    let output = backstory(["query", "-t", name, "SELECT count(*) > 0 AS any FROM writes"]).output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn a_damaged_index() {
    let scratch = tempfile::tempdir().unwrap();
    let dir = recording(scratch.path());
    assert!(run(&["index"], &dir).status.success());
    let (name, index) = (dir.to_str().unwrap(), dir.join("index.db"));
    let mut bytes = fs::read(&index).unwrap();
    // Another byte in every page but the first: whatever is read is damaged.
    bytes.chunks_mut(8192).skip(1).for_each(|page| page[5000] ^= 1);
    fs::write(&index, &bytes).unwrap();
    for args in [&["index", name][..], &["why", "-t", name, "environ"], &["query", "-t", name, "SELECT 1"]] {
        refused(&backstory(args.iter().copied()).output().unwrap(), 3, &["damaged", "remove"]);
    }
}

#[test]
fn a_folder_that_cannot_hold_an_index() {
    let scratch = tempfile::tempdir().unwrap();
    let dir = recording(scratch.path());
    // The tests may run as root, whom permissions do not stop.
    fs::create_dir(dir.join("index.lock")).unwrap();
    let name = dir.to_str().unwrap();
    for args in [&["index", name][..], &["query", "-t", name, "SELECT 1"]] {
        refused(&backstory(args.iter().copied()).output().unwrap(), 6, &["make the folder writable"]);
    }
}
