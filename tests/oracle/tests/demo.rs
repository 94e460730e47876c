//! Oracle: `backstory demo` names the culprit line of its guest, and every command it prints works as printed.
#![expect(clippy::unwrap_used, reason = "a test says what failed")]

use std::fs;
use std::process::{Command, Output};

use backstory_oracle::command::{backstory, binary};
use backstory_oracle::programs;

/// Runs a printed command with the binary under test.
fn printed(line: &str) -> Output {
    let line = line.trim().replacen("backstory", binary().to_str().unwrap(), 1);
    Command::new("sh").args(["-c", &line]).stdin(std::process::Stdio::null()).output().unwrap()
}

#[test]
fn the_demo_finds_its_culprit_and_its_commands_work() {
    let scratch = tempfile::tempdir().unwrap();
    let output = backstory(["demo", "-o"]).arg(scratch.path().join("trace")).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{text}\n{}", String::from_utf8_lossy(&output.stderr));

    let source = programs::folder().join("../../query/cli/demo/guest.rs");
    let source = fs::read_to_string(source).unwrap();
    let culprit = source.lines().position(|line| line.contains("get_unchecked_mut")).unwrap();
    for wanted in [format!("guest.rs:{}", culprit + 1), "ledger::remember".into(), "get_unchecked_mut".into()]
    {
        assert!(text.contains(&wanted), "{wanted} is not in:\n{text}");
    }

    let commands: Vec<&str> = text.lines().filter(|line| line.starts_with("  backstory ")).collect();
    let gdb = commands.iter().find(|line| line.contains(" gdb ")).unwrap();
    if Command::new("gdb").arg("--version").output().is_ok() {
        let shown = printed(&format!("{gdb} -- -nx -batch -ex 'print slot'"));
        let shown = String::from_utf8_lossy(&shown.stdout).into_owned();
        assert!(shown.contains("ledger::remember") && shown.contains("= 8"), "{shown}");
    }
    let query = commands.iter().find(|line| line.contains(" query ")).unwrap();
    let rows = printed(query);
    let rows = String::from_utf8_lossy(&rows.stdout).into_owned();
    assert!(rows.contains("deposit") && rows.contains("remember"), "{rows}");
}
