//! Oracle: the commands around a recording: exit statuses, listing, facts, removal, partial replays, query formats.
#![expect(clippy::unwrap_used, reason = "a test says what failed")]

use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use backstory_oracle::command::{backstory, binary, record};
use trace::Trace;

fn stdout(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[track_caller]
fn done(command: &mut Command) -> String {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    stdout(&output)
}

/// A command with recordings of its own.
fn at(root: &Path, args: &[&str]) -> Command {
    let mut command = backstory(args);
    command.env("BACKSTORY_TRACE_DIR", root);
    command
}

#[test]
fn record_returns_the_status_of_the_command() {
    let scratch = tempfile::tempdir().unwrap();
    let cases =
        [("exit 0", 0), ("exit 7", 7), ("kill -9 $$", 137), ("kill -SEGV $$", 139), ("exec false", 1)];
    for (number, (script, status)) in cases.into_iter().enumerate() {
        let output = record(&scratch.path().join(number.to_string()), &["sh", "-c", script]);
        assert_eq!(output.status.code(), Some(status), "{script}");
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(said.lines().any(|line| line.starts_with("backstory: recorded ")), "{said}");
    }
    let quiet = backstory(["record", "-q", "-o"]).arg(scratch.path().join("q")).arg("true").output().unwrap();
    assert_eq!((quiet.status.code(), quiet.stderr.len()), (Some(0), 0));
}

/// What is counted, where nothing but the state was asked for or is there.
#[test]
fn a_counter_that_is_asked_for_is_there_or_missed_in_one_line() {
    let scratch = tempfile::tempdir().unwrap();
    let run = |which: &str| {
        let dir = scratch.path().join(which);
        let recorded =
            backstory(["record", "--counter", which, "-o"]).arg(&dir).args(["--", "true"]).output().unwrap();
        let info = backstory(["info", "--json"]).arg(&dir).output().unwrap();
        let facts = serde_json::from_slice(&info.stdout).unwrap_or(serde_json::Value::Null);
        (recorded, facts["points"].clone())
    };
    let (recorded, points) = run("state");
    assert_eq!((recorded.status.code(), points), (Some(0), "state".into()));
    let (auto, (pmu, counted)) = (run("auto"), run("pmu"));
    assert_eq!(auto.0.status.code(), Some(0));
    if pmu.status.success() {
        assert_eq!(auto.1, counted);
        assert_ne!(counted, "state");
    } else {
        let said = String::from_utf8_lossy(&pmu.stderr).into_owned();
        assert_eq!((pmu.status.code(), said.lines().count()), (Some(2), 1), "{said}");
        assert!(said.starts_with("backstory: no hardware counter can be used: "), "{said}");
        assert_eq!((auto.1, counted), ("state".into(), serde_json::Value::Null));
    }
}

#[test]
fn recordings_are_listed_described_and_removed() {
    let scratch = tempfile::tempdir().unwrap();
    let root = scratch.path().join("recordings");
    assert_eq!(done(&mut at(&root, &["ls"])), "");
    done(&mut at(&root, &["record", "true"]));
    done(&mut at(&root, &["record", "echo", "two words"]));
    let listed = done(&mut at(&root, &["ls"]));
    let names: Vec<&str> = listed.lines().filter_map(|line| line.split_whitespace().next()).collect();
    assert_eq!(names, ["true-0", "echo-0"]);
    assert!(listed.contains("echo 'two words'"), "{listed}");

    let latest: serde_json::Value = serde_json::from_str(&done(&mut at(&root, &["info", "--json"]))).unwrap();
    assert_eq!((&latest["trace"], &latest["exit_code"]), (&"echo-0".into(), &0.into()));
    assert!(latest["instructions"].is_null());
    assert_eq!(done(&mut at(&root, &["replay"])), "two words\n");
    let replayed: serde_json::Value =
        serde_json::from_str(&done(&mut at(&root, &["info", "--json"]))).unwrap();
    assert!(replayed["instructions"].as_u64().unwrap() > 1000);
    assert!(done(&mut at(&root, &["check", "true-0"])).contains("no violation"));

    done(&mut at(&root, &["rm", "echo-0"]));
    assert_eq!(done(&mut at(&root, &["ls", "--json"])).matches("\"trace\"").count(), 1);
    let gone = at(&root, &["info", "echo-0"]).output().unwrap();
    assert_eq!(gone.status.code(), Some(2));
    // A recorder that is killed at its start leaves this.
    std::fs::create_dir_all(root.join("echo-7/files")).unwrap();
    let left = at(&root, &["rm", "echo-7"]).output().unwrap();
    assert!(left.status.success() && !root.join("echo-7").exists());
    assert_eq!(String::from_utf8_lossy(&left.stderr).lines().count(), 1);
    let not_one = at(&root, &["rm"]).arg(scratch.path()).output().unwrap();
    assert_eq!(not_one.status.code(), Some(3));
    for path in ["/etc/passwd", "/tmp"] {
        for command in ["check", "replay", "info", "index"] {
            let output = backstory([command, path]).output().unwrap();
            assert_eq!(output.status.code(), Some(3), "{command} {path}");
            assert_eq!(
                String::from_utf8_lossy(&output.stderr),
                format!("backstory: {path} is not a recording\n")
            );
        }
    }
    assert!(scratch.path().exists());
}

#[test]
fn a_recording_has_one_line_and_is_not_shadowed_by_a_folder_of_its_name() {
    let scratch = tempfile::tempdir().unwrap();
    let root = scratch.path().join("recordings");
    done(&mut at(&root, &["record", "sh", "-c", "true\n:\t\u{1b}[31m"]));
    let listed = done(&mut at(&root, &["ls"]));
    assert_eq!(listed.lines().count(), 1, "{listed}");
    assert!(listed.ends_with("  sh -c $'true\\n:\\t\\u001b[31m'\n"), "{listed}");

    std::fs::create_dir(scratch.path().join("sh-0")).unwrap();
    let check = |name: &str| at(&root, &["check", name]).current_dir(scratch.path()).output().unwrap();
    let named = check("sh-0");
    assert!(stdout(&named).contains("no violation"));
    assert!(String::from_utf8_lossy(&named.stderr).contains("for the path, say ./sh-0"));
    assert_eq!(check("./sh-0").status.code(), Some(3), "what has a slash is a path");
    std::fs::rename(root.join("sh-0"), scratch.path().join("moved")).unwrap();
    assert!(check("moved").status.success(), "a folder that no recording is called like");
}

#[test]
fn a_replay_up_to_a_moment_prints_what_was_printed_until_then() {
    let scratch = tempfile::tempdir().unwrap();
    let trace = scratch.path().join("trace");
    record(&trace, &["sh", "-c", "echo one; echo two"]);
    let until = |moment: &str| done(backstory(["replay", "--until", moment]).arg(&trace));
    assert_eq!(until("@start"), "");
    assert_eq!(until("@end"), "one\ntwo\n");
    let database = done(backstory(["query", "--csv", "-t"]).arg(&trace).arg("SELECT moment FROM output"));
    let moments: Vec<u64> = database.lines().skip(1).map(|line| line.parse().unwrap()).collect();
    assert_eq!(moments.len(), 2);
    assert_eq!(until(&format!("@{}", moments[1])), "one\n");
    assert_eq!(until(&format!("@{}", moments[1] + 1)), "one\ntwo\n");
    let beyond = backstory(["replay", "--until", "@999999999999", "-t"]).arg(&trace).output().unwrap();
    assert_eq!(
        (beyond.status.code(), stdout(&beyond)),
        (Some(2), String::new()),
        "nothing is printed before it is refused"
    );
}

/// What a library warns of is a line like any other.
#[test]
fn warnings_are_lines_of_backstory() {
    let scratch = tempfile::tempdir().unwrap();
    let trace = scratch.path().join("trace");
    record(&trace, &["true"]);
    done(backstory(["replay"]).arg(&trace));
    std::fs::write(trace.join("learned").join("ticks"), "nothing of the kind").unwrap();
    let output = backstory(["replay"]).arg(&trace).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!((output.status.code(), said.lines().count()), (Some(0), 1), "{said}");
    assert!(said.starts_with("backstory: ignoring the learned counts: "), "{said}");
}

#[test]
fn info_names_the_signal_that_killed() {
    let scratch = tempfile::tempdir().unwrap();
    for (name, script, ended) in [
        ("a", "kill -SEGV $$", "killed by signal 11 (SIGSEGV) after"),
        ("b", "exit 139", "exit status 139 after"),
    ] {
        let trace = scratch.path().join(name);
        record(&trace, &["sh", "-c", script]);
        let info = done(backstory(["info", "-t"]).arg(&trace));
        assert!(info.contains(ended), "{info}");
    }
}

#[test]
fn what_is_being_indexed_is_not_removed() {
    let scratch = tempfile::tempdir().unwrap();
    let trace = scratch.path().join("trace");
    record(&trace, &["true"]);
    let mut lock = std::fs::File::create(trace.join("index.lock")).unwrap();
    lock.lock().unwrap();
    writeln!(lock, "4711").unwrap();
    let info = |dir: &Path| done(backstory(["info", "-t"]).arg(dir));
    assert!(info(&trace).contains("being built by process 4711"), "{}", info(&trace));
    let asked = backstory(["query", "-t"]).arg(&trace).arg("SELECT 1").output().unwrap();
    assert_eq!(asked.status.code(), Some(2));
    let said = String::from_utf8_lossy(&asked.stderr);
    assert!(said.contains("by process 4711") && said.contains("ask again later"), "{said}");
    let refused = backstory(["rm", "-t"]).arg(&trace).output().unwrap();
    assert_eq!(refused.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&refused.stderr).contains("is being indexed by process 4711"));
    drop(lock);
    assert!(info(&trace).contains("none: `backstory index`"));
    done(backstory(["rm", "-t"]).arg(&trace));
    assert!(!trace.exists());
}

/// Moments by name, as elsewhere; what no recording has is said where it stands.
#[test]
fn landmarks_are_moments_in_sql() {
    let scratch = tempfile::tempdir().unwrap();
    let trace = scratch.path().join("t");
    record(&trace, &["sh", "-c", "true & wait"]);
    let ask = |sql: &str| backstory(["query", "--csv", "-t"]).arg(&trace).arg(sql).output().unwrap();
    assert!(ask("SELECT 1").status.success());
    let end =
        Trace::open(&trace).map(|trace| trace::Moments::load(&trace).unwrap().unwrap().total().0).unwrap();
    let said = stdout(&ask(
        "SELECT @start, @end, @exit BETWEEN 1 AND @end, (SELECT count(*) FROM syscalls WHERE moment > @exit)",
    ));
    assert_eq!(said.lines().last().unwrap().trim_end(), format!("0,{end},1,0"));
    let none = ask("SELECT @signal");
    assert_eq!(none.status.code(), Some(2));
    let said = String::from_utf8_lossy(&none.stderr).into_owned();
    assert!(
        said.contains("there is no @signal: ") && said.contains("  SELECT @signal\n         ^"),
        "{said}"
    );
}

/// What cannot be written is an error, also where nothing but help was asked for.
#[test]
fn output_that_cannot_be_written_is_an_error() {
    for args in [&["--help"][..], &["--version"], &["record", "--help"], &["query", "-h"]] {
        let full = std::fs::File::options().write(true).open("/dev/full").unwrap();
        let output = backstory(args.iter().copied()).stdout(full).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        let expected = "backstory: cannot write the output: No space left on device (os error 28)\n";
        assert_eq!((output.status.code(), said.as_str()), (Some(6), expected), "{args:?}");
    }
}

#[test]
fn what_cannot_be_opened_is_listed_and_why() {
    let scratch = tempfile::tempdir().unwrap();
    let root = scratch.path();
    for name in ["true-0", "true-1", "true-2"] {
        record(&root.join(name), &["true"]);
    }
    std::fs::write(root.join("true-0/events"), "no").unwrap();
    std::fs::remove_file(root.join("true-1/events")).unwrap();
    let listed = done(&mut at(root, &["ls"]));
    let lines: Vec<&str> = listed.lines().collect();
    assert_eq!(lines.len(), 3, "{listed}");
    assert!(lines.iter().any(|line| line.starts_with("true-0  unreadable: ")), "{listed}");
    assert!(lines.contains(&"true-1  unreadable: it holds no events"), "{listed}");
    let rows: serde_json::Value = serde_json::from_str(&done(&mut at(root, &["ls", "--json"]))).unwrap();
    assert_eq!(rows.as_array().unwrap().iter().filter(|row| row["error"].is_string()).count(), 2, "{rows}");
}

#[test]
fn rows_come_as_text_json_and_csv_and_sql_from_standard_input() {
    let scratch = tempfile::tempdir().unwrap();
    let trace = scratch.path().join("trace");
    record(&trace, &["true"]);
    let ask = |format: &[&str], sql: &str| done(backstory(["query", "-t"]).arg(&trace).args(format).arg(sql));
    let sql = "SELECT 1 AS a, 'x,\"y' AS b";
    assert_eq!(ask(&["--csv"], sql).replace('\r', ""), "a,b\n1,\"x,\"\"y\"\n");
    let rows: serde_json::Value = serde_json::from_str(&ask(&["--json"], sql)).unwrap();
    assert_eq!(rows[0]["b"], "x,\"y");
    assert!(ask(&[], sql).contains("x,\"y"));

    let mut piped = Command::new(binary())
        .args(["query", "--csv", "-t"])
        .arg(&trace)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    piped.stdin.take().unwrap().write_all(b"SELECT 5 AS n;\n").unwrap();
    assert_eq!(stdout(&piped.wait_with_output().unwrap()).replace('\r', ""), "n\n5\n");
}

#[test]
fn commands_of_the_shell_work_without_a_terminal() {
    let scratch = tempfile::tempdir().unwrap();
    assert!(record(&scratch.path().join("t"), &["/bin/true"]).status.success());
    let script = scratch.path().join("script");
    std::fs::write(&script, ".schema signals\n.mode json\nSELECT 1 AS a;\nSELECT 2\n  AS b").unwrap();
    let mut query = backstory(["query", "-t"]);
    query.arg(scratch.path().join("t")).stdin(std::fs::File::open(&script).unwrap());
    let text = done(&mut query);
    assert!(text.starts_with("signals: a signal acted upon\n  moment "), "{text}");
    assert!(text.ends_with("\n[{\"a\":1}]\n[{\"b\":2}]\n"), "{text}");
    let mut query = backstory(["query", "-t"]);
    let wrong = query.arg(scratch.path().join("t")).arg(".schema nothing").output().unwrap();
    assert_eq!(wrong.status.code(), Some(2));
}

#[test]
fn why_names_the_space_where_there_are_several() {
    let scratch = tempfile::tempdir().unwrap();
    let trace = scratch.path().join("t");
    assert!(record(&trace, &["/bin/sh", "-c", "/bin/true; exit 0"]).status.success());
    let mut why = backstory(["why", "environ", "--space", "0", "-t"]);
    let text = done(why.arg(&trace));
    let first = text.lines().next().unwrap();
    assert!(first.contains(" in space 0 (/") && first.contains("sh): last written at @"), "{text}");
    assert!(
        text.ends_with('\n') && text.contains(&format!("backstory gdb -t {} --at", trace.display())),
        "{text}"
    );
}

#[test]
fn a_reader_who_leaves_ends_a_query_quietly() {
    let scratch = tempfile::tempdir().unwrap();
    let trace = scratch.path().join("trace");
    record(&trace, &["true"]);
    done(backstory(["index"]).arg(&trace));
    let binary = binary();
    let line = format!(
        "'{}' query --csv -t '{}' 'SELECT moment FROM writes a, (SELECT 1 UNION SELECT 2 UNION SELECT 3)' | head -n 1",
        binary.display(),
        trace.display()
    );
    let output = Command::new("sh").args(["-c", &line]).output().unwrap();
    assert_eq!((stdout(&output).trim_end(), output.stderr.len()), ("moment", 0));
}

/// Records a script that prints `ready`; sends a signal to the recorder alone then, and at each further line but the last.
/// What it printed after that, and the exit code.
#[track_caller]
fn signalled(script: &str, signal: i32, times: usize) -> (String, Option<i32>) {
    let scratch = tempfile::tempdir().unwrap();
    let dir = scratch.path().join("trace");
    let mut command = Command::new("env");
    // Whoever runs the tests may have them ignored (`nohup`).
    command.arg("--default-signal=HUP,INT,QUIT,TERM").arg(binary()).args(["record", "-q", "-o"]);
    command.arg(&dir).args(["--", "sh", "-c", script]).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut recorder = command.spawn().unwrap();
    let mut lines = BufReader::new(recorder.stdout.take().unwrap()).lines();
    assert_eq!(lines.next().unwrap().unwrap(), "ready");
    let mut printed = Vec::new();
    for turn in 0..times {
        if turn > 0 {
            printed.push(lines.next().unwrap().unwrap());
        }
        let sent =
            Command::new("kill").args([&format!("-{signal}"), &recorder.id().to_string()]).status().unwrap();
        assert!(sent.success());
    }
    printed.extend(lines.map(Result::unwrap));
    let status = recorder.wait().unwrap();
    let complete = Trace::open(&dir).unwrap().is_complete();
    assert!(complete, "{script}: the recording ends in order");
    (printed.join(" "), status.code())
}

#[test]
fn requests_to_end_go_to_the_command_first() {
    let waits = "sleep 600 & child=$!; echo ready; while :; do wait; done";
    let handles = format!("trap 'kill $child; echo caught; exit 5' TERM; {waits}");
    assert_eq!(signalled(&handles, 15, 1), ("caught".into(), Some(5)));
    assert_eq!(signalled("echo ready; exec sleep 600", 1, 1), (String::new(), Some(129)));
    let survives = format!("trap 'echo caught' TERM; {waits}");
    assert_eq!(signalled(&survives, 15, 2), ("caught".into(), Some(137)));
    let interrupted = format!("trap 'echo caught' INT; {waits}");
    assert_eq!(signalled(&interrupted, 2, 2), ("caught".into(), Some(137)));
}

#[test]
fn a_signal_to_the_whole_group_reaches_the_command_once() {
    let scratch = tempfile::tempdir().unwrap();
    let dir = scratch.path().join("trace");
    let script =
        "trap 'echo caught' TERM; kill -TERM 0; while [ $((n+=1)) -lt 200000 ]; do :; done; echo done";
    let mut command = backstory(["record", "-q", "-o"]);
    let output = command.arg(&dir).args(["--", "sh", "-c", script]).process_group(0).output().unwrap();
    assert_eq!(stdout(&output), "caught\ndone\n");
}

#[test]
fn a_signal_that_the_command_sends_to_its_group_does_not_end_the_recorder() {
    let scratch = tempfile::tempdir().unwrap();
    let dir = scratch.path().join("trace");
    let mut command = backstory(["record", "-q", "-o"]);
    let script = "trap '' USR1; kill -USR1 0; kill -ABRT 0";
    let output = command.arg(&dir).args(["--", "sh", "-c", script]).process_group(0).output().unwrap();
    assert_eq!(output.status.code(), Some(128 + 6), "the recorder ends with the command's status");
    done(backstory(["check"]).arg(&dir));
}

#[test]
fn a_recording_that_could_not_be_written_says_so() {
    let scratch = tempfile::tempdir().unwrap();
    let dir = scratch.path().join("trace");
    let limited =
        format!("trap '' XFSZ; ulimit -f 8; exec {} record -o {} true", binary().display(), dir.display());
    let output = Command::new("sh")
        .args(["-c", &limited])
        .env("BACKSTORY_TRACE_DIR", scratch.path())
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(6));
    let told = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(told.contains("File too large"), "{told}");
    let info = done(backstory(["info"]).arg(&dir));
    assert!(
        info.lines().any(|line| line.starts_with("ended")
            && line.contains("its recorder stopped: ")
            && line.contains("File too large")),
        "{info}"
    );
    let checked = backstory(["check"]).arg(&dir).output().unwrap();
    assert!(String::from_utf8_lossy(&checked.stderr).contains("File too large"));
}
