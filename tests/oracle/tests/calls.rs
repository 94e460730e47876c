//! The table `calls` against the executions around each call: functions that `longjmp` or an exception left, and functions that
//! are bound on their first call.
#![expect(clippy::unwrap_used, reason = "a test says what failed")]

use std::path::{Path, PathBuf};
use std::process::Command;

use backstory_oracle::command::{backstory, record};

const LONGJMP: &str = r#"
#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
static jmp_buf back;
static volatile int sum;
__attribute__((noinline)) void deep(int n) { if (n == 0) longjmp(back, 1); deep(n - 1); sum++; }
int main(void) {
    for (int i = 0; i < 2; i++) { char *p = malloc(10); p[0] = 'a'; p[1] = 0; puts(p); free(p); }
    if (!setjmp(back)) deep(3);
    for (int i = 0; i < 100; i++) sum += i;
    puts("end");
    return 0;
}
"#;

const EXCEPTION: &str = r#"
#include <cstdio>
static volatile int sum;
__attribute__((noinline)) void deep(int n) { if (n == 0) throw n; deep(n - 1); sum++; }
int main() {
    try { deep(3); } catch (int) { for (int i = 0; i < 100; i++) sum += i; }
    puts("end");
    return 0;
}
"#;

fn recorded(scratch: &Path, compiler: &str, source: &str, name: &str) -> PathBuf {
    let (code, program, trace) = (scratch.join(name), scratch.join("program"), scratch.join("trace"));
    std::fs::write(&code, source).unwrap();
    let compiled =
        Command::new(compiler).args(["-O1", "-Wl,-z,lazy", "-o"]).arg(&program).arg(&code).status().unwrap();
    assert!(compiled.success());
    assert!(record(&trace, &[&program]).status.success());
    trace
}

/// The numbers that `sql` gives, row by row.
fn numbers(trace: &Path, sql: &str) -> Vec<Vec<u64>> {
    let output = backstory(["query", "--csv", "-t"]).arg(trace).arg(sql).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).unwrap();
    text.lines().skip(1).map(|line| line.split(',').map(|n| n.parse().unwrap()).collect()).collect()
}

/// Calls of the function `deep` that nothing returned from were left when `main` ran on.
fn left_when_main_runs_on(trace: &Path, deep: &str) {
    let exits = numbers(
        trace,
        &format!(
            "SELECT exit, (SELECT min(moment) FROM executions WHERE function LIKE 'main%' AND moment >
               (SELECT max(entry) FROM calls WHERE function = '{deep}')) AS back FROM calls WHERE function = '{deep}'"
        ),
    );
    assert_eq!(exits.len(), 4);
    assert!(exits.iter().all(|row| row[0] == row[1]), "{exits:?}");
}

#[test]
fn longjmp_ends_calls_at_once() {
    let scratch = tempfile::tempdir().unwrap();
    let trace = recorded(scratch.path(), "gcc", LONGJMP, "longjmp.c");
    left_when_main_runs_on(&trace, "deep");
}

#[test]
fn exceptions_end_calls_at_once() {
    let scratch = tempfile::tempdir().unwrap();
    let trace = recorded(scratch.path(), "g++", EXCEPTION, "exception.cpp");
    left_when_main_runs_on(&trace, "deep(int)");
}

#[test]
fn the_callee_is_the_function_behind_its_stub() {
    let scratch = tempfile::tempdir().unwrap();
    let trace = recorded(scratch.path(), "gcc", LONGJMP, "longjmp.c");
    // Called twice: bound by the first call, and to the same function.
    for name in ["malloc", "puts", "free"] {
        let callees = numbers(
            &trace,
            &format!(
                "SELECT callee, (SELECT pc FROM executions WHERE moment >= entry AND pc = callee ORDER BY moment LIMIT 1) AS ran
                 FROM calls WHERE function = '{name}' AND caller_function = 'main' LIMIT 2"
            ),
        );
        assert!(callees.len() == 2 && callees[0] == callees[1], "{name}: {callees:?}");
        assert!(callees.iter().all(|row| row[0] == row[1]), "{name}: {callees:?}");
    }
}
