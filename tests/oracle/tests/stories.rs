//! Oracle: buggy programs whose culprit lines are known; `why` must name them.
#![expect(clippy::unwrap_used, reason = "a test says what failed")]

use std::fs;
use std::path::{Path, PathBuf};

use backstory_oracle::command::{backstory, record};
use backstory_oracle::programs;

struct Story {
    source: PathBuf,
    trace: PathBuf,
    output: String,
    _scratch: tempfile::TempDir,
}

fn folder() -> PathBuf {
    programs::folder().with_file_name("stories")
}

fn recorded(name: &str) -> Story {
    let scratch = tempfile::tempdir().unwrap();
    let source = folder().join(name);
    let program = programs::build_file(&source, scratch.path());
    let trace = scratch.path().join("trace");
    let output = String::from_utf8(record(&trace, &[program]).stdout).unwrap();
    let indexed = backstory(["index"]).arg(&trace).output().unwrap();
    assert!(indexed.status.success(), "{name}: {}", String::from_utf8_lossy(&indexed.stderr));
    Story { source, trace, output, _scratch: scratch }
}

/// One of the programs that check themselves.
fn recorded_program(name: &str, arguments: &[&str]) -> Story {
    let scratch = tempfile::tempdir().unwrap();
    let program = programs::build(name, scratch.path());
    let trace = scratch.path().join("trace");
    let command = [&[program.as_path()], &*arguments.iter().map(Path::new).collect::<Vec<_>>()].concat();
    let output = String::from_utf8(record(&trace, &command).stdout).unwrap();
    assert!(output.ends_with("ok\n"), "{output}");
    Story { source: PathBuf::new(), trace, output, _scratch: scratch }
}

impl Story {
    /// The number after `word` in the program's output.
    fn printed(&self, word: &str) -> String {
        let mut words = self.output.split_whitespace();
        words.find(|w| *w == word).unwrap_or_else(|| panic!("{word} in {:?}", self.output));
        words.next().unwrap().to_owned()
    }

    /// `file:line` of the source line that carries a mark.
    fn line(&self, mark: &str) -> String {
        let text = fs::read_to_string(&self.source).unwrap();
        let at = text.lines().position(|line| line.contains(&format!("// {mark}"))).unwrap();
        format!("{}:{}", self.source.file_name().unwrap().to_string_lossy(), at + 1)
    }

    /// Asks `why` and returns its JSON.
    fn why(&self, args: &[&str]) -> serde_json::Value {
        let output = backstory(["why", "--json", "-t"]).arg(&self.trace).args(args).output().unwrap();
        let words = String::from_utf8_lossy(&output.stderr).into_owned();
        serde_json::from_slice(&output.stdout).unwrap_or_else(|e| panic!("why {args:?}: {e}: {words}"))
    }

    fn text(&self, args: &[&str]) -> String {
        let output = backstory(["why", "-t"]).arg(&self.trace).args(args).output().unwrap();
        assert!(output.status.success(), "why {args:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    }

    fn query(&self, sql: &str) -> String {
        let output = backstory(["query", "--csv", "-t"]).arg(&self.trace).arg(sql).output().unwrap();
        assert!(output.status.success(), "{sql}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    }
}

#[track_caller]
fn names(text: &str, wanted: &[&str]) {
    for word in wanted {
        assert!(text.contains(word), "{word} is not in:\n{text}");
    }
}

#[test]
fn reused_block() {
    let story = recorded("reused_block.c");
    let addr = story.printed("ADDR");
    names(&story.text(&[&addr, "--size", "8"]), &["tally", &story.line("CULPRIT"), "777", "main"]);
    let rows = story.query(&format!("SELECT sym(pc) FROM writes WHERE addr = {addr} ORDER BY moment"));
    names(&rows, &["accept_one", "tally"]);
}

#[test]
fn long_label() {
    let story = recorded("long_label.c");
    for place in [&story.printed("ADDR")[..], "items[9].price"] {
        names(&story.text(&[place, "--size", "4"]), &["set_label", &story.line("CULPRIT"), "main"]);
    }
    // The pointer is followed as it was: before the call of calloc it pointed nowhere.
    let early =
        backstory(["why", "items[9].price", "--at", "@start", "-t"]).arg(&story.trace).output().unwrap();
    assert_eq!(early.status.code(), Some(2));
}

#[test]
fn poked() {
    let story = recorded("poked.c");
    let text = story.text(&[&story.printed("ADDR"), "--size", "8"]);
    names(&text, &["PTRACE_POKEDATA", "by task 0", "meddle", &story.line("CULPRIT"), "main"]);
}

#[test]
fn jumped_back() {
    let story = recorded("jumped_back.c");
    let text = story.text(&["failures"]);
    let callers = ["stack\n    #0  attempt at", "#1  main at", "_start"];
    names(&text, &[&[&story.line("CULPRIT")[..]], &callers[..]].concat());
    assert!(!text.contains("fail ") && !text.contains("switched"), "{text}");
}

#[test]
fn scattered() {
    let story = recorded("scattered.c");
    // Two bytes are skipped, four come before the buffer, three in it.
    for (place, offset) in [("body[3]", "offset 9"), ("head[1]", "offset 3"), ("body", "offset 6")] {
        names(&story.text(&[place]), &["preadv", offset, "fill", &story.line("CULPRIT"), "main"]);
    }
}

#[test]
fn moved_vector() {
    let story = recorded("moved_vector.cc");
    let final_writer = story.text(&[&story.printed("ADDR"), "--size", "8"]);
    names(&final_writer, &["push_back", &story.line("GROWTH")]);
    assert!(!final_writer.contains("Table::update"), "{final_writer}");
    names(
        &story.text(&[&story.printed("OLD"), "--size", "8"]),
        &["Table::update", &story.line("CULPRIT"), "99"],
    );
}

#[test]
fn bad_byte_hop_by_hop() {
    let story = recorded("bad_byte.c");
    let done = story.text(&[&story.printed("ADDR"), "--size", "8"]);
    names(&done, &["mark", &story.line("CULPRIT"), "0x4242424242424242"]);
    for place in ["board+256", "board.done", "board.cells[31]+8"] {
        let told = story.text(&[place, "--size", "8"]);
        names(&told, &["mark", &story.line("CULPRIT")]);
    }
    assert_eq!(story.why(&["board.done"])["target"]["size"], 8);
    assert_eq!(story.why(&["column[70]"])["target"]["size"], 4);
    let at = |json: &serde_json::Value| format!("@{}", json["moment"].as_u64().unwrap());
    let first = story.why(&[&story.printed("ADDR"), "--size", "8"]);
    let column = [story.printed("COLUMN"), at(&first)];
    names(&story.text(&[&column[0], "--size", "4", "--at", &column[1]]), &["consume", &story.line("PARSE")]);
    let second = story.why(&[&column[0], "--size", "4", "--at", &column[1]]);
    let input = story.text(&[&story.printed("INPUT"), "--size", "1", "--at", &at(&second)]);
    names(&input, &["read", "/tmp/story", &story.line("READ")]);
}

/// Parent, child and grandchild write the same address: each moment is answered by the process that ran then.
#[test]
fn one_address_in_three_processes() {
    let story = recorded_program("same_address", &[]);
    let addr = story.printed("ADDR");
    let rows = story.query(&format!(
        "SELECT moment, value, task FROM writes WHERE addr = {addr} AND pc > 0 ORDER BY moment"
    ));
    let mut asked = Vec::new();
    for row in rows.lines().skip(1) {
        let fields: Vec<u64> = row.split(',').map(|field| field.trim_matches('"').parse().unwrap()).collect();
        let answer = story.why(&[&addr, "--size", "4", "--at", &format!("@{}", fields[0] + 1)]);
        assert_eq!(answer["moment"].as_u64(), Some(fields[0]), "{row}: {answer:#}");
        assert_eq!(answer["task"].as_u64(), Some(fields[2]), "{row}: {answer:#}");
        asked.push(fields[2]);
    }
    asked.dedup();
    assert!(asked.len() >= 3, "writes by three tasks: {rows}");
}

/// What the kernel writes outside of calls is named, and has no calls around it that the program did not make.
#[test]
fn the_kernel_writes_of_itself() {
    let story = recorded_program("kernel_writes", &["show"]);
    let first = |text: &str| text.lines().nth(1).unwrap().to_owned();
    let told = |args: &[&str]| {
        let text = story.text(args);
        assert!(!text.contains("event "), "{text}");
        text
    };
    let exec = told(&["given"]);
    names(&exec, &["never written", "by exec of ", "kernel_writes offset 0x", "value  5"]);
    let cleared = told(&["cleared"]);
    names(&first(&cleared), &["the kernel, exec of ", "kernel_writes from offset 0x", "(.bss)"]);
    let argv = told(&[&story.printed("ARGV")]);
    names(&first(&argv), &["the kernel, exec of ", "arguments, environment"]);
    for text in [exec, cleared, argv] {
        assert!(!text.contains("stack\n") && !text.contains("_start"), "nobody called: {text}");
    }
    names(&first(&told(&["robust"])), &["exit of task 1", "robust mutex"]);
    names(&first(&told(&["ended"])), &["exit of task 2", "CLONE_CHILD_CLEARTID"]);
    let born = told(&["born"]);
    names(&born, &["CLONE_PARENT_SETTID", " main at kernel_writes.c:"]);
    let event = story.query("SELECT event, moment FROM signals WHERE name = 'SIGUSR1'");
    let (event, moment) = event.lines().nth(1).unwrap().split_once(',').unwrap();
    let at = format!("@{}", moment.parse::<u64>().unwrap() + 1);
    let frame = told(&[&story.printed("FRAME"), "--at", &at]);
    names(&frame, &["frame of SIGUSR1", " interrupt at kernel_writes.c:", " main at"]);
    assert!(!frame.contains("on_signal"), "the handler had not begun: {frame}");
    let written = story.query(&format!("SELECT count(*) FROM writes WHERE event = {event}"));
    assert_eq!(written.lines().nth(1), Some("1"));
}

/// Registers that SQL asks for come from a replay: they agree with what the index says of the same moments.
#[test]
fn registers_in_sql() {
    let story = recorded_program("kernel_writes", &["show"]);
    for compared in [
        "count(*), sum(reg(entry, 'rsp') <> sp) FROM calls WHERE moment % 3 = 0 OR kind = 'handler' OR task > 0",
        "count(*), sum(reg(moment, 'rip') <> pc) FROM executions",
    ] {
        let rows = story.query(&format!("SELECT {compared}"));
        let (asked, differ) = rows.lines().nth(1).unwrap().split_once(',').unwrap();
        assert!(asked.parse::<u64>().unwrap() > 50 && differ == "0", "{compared}: {rows}");
    }
    let handler = story.query("SELECT arg(entry, 0), hex(arg(entry, 1)) FROM calls WHERE kind = 'handler'");
    let frame = story.printed("FRAME");
    assert_eq!(handler.lines().nth(1), Some(&*format!("10,{frame}")));
    let story = recorded("reused_block.c");
    let freed = format!("arg(entry, 0) = {} - 16", story.printed("ADDR"));
    let freed = story.query(&format!("SELECT count(*) FROM calls WHERE function LIKE '%free' AND {freed}"));
    assert_eq!(freed.lines().nth(1), Some("1"), "one block is freed, and then reused");
}

/// Two threads count without a lock. The last writer put back an old count; each earlier count was the other one's.
#[test]
fn lost_update() {
    let story = recorded("lost_update.c");
    names(&story.output, &["counter 101"]);
    let tids = story.query("SELECT tid FROM tasks ORDER BY task");
    let tids: Vec<&str> = tids.lines().skip(1).collect();
    let mut before: Vec<String> = Vec::new();
    let mut asked = Vec::new();
    for _ in 0..12 {
        let at: Vec<&str> = before.iter().map(String::as_str).collect();
        let arguments = [&["counter"][..], &at].concat();
        let answer = story.why(&arguments);
        let task = answer["task"].as_u64().unwrap();
        asked.push((task, answer["new"]["number"].as_u64().unwrap()));
        let who = format!("by task {task} (tid {})", tids[task as usize]);
        let place = ["BEGINS", "LOSES", "LOST"][task as usize];
        names(&story.text(&arguments), &[&who, &story.line(place)]);
        before = vec!["--at".to_owned(), format!("@{}", answer["moment"].as_u64().unwrap())];
    }
    let mut expected = vec![(1, 101)];
    expected.extend((101..=110).rev().map(|count| (2, count)));
    expected.push((0, 100));
    assert_eq!(asked, expected);
    // A thread's calls begin with itself, not with what its maker does meanwhile.
    let stack = story.text(&["counter"]);
    assert!(stack.contains("start_thread") && !stack.contains("main"), "{stack}");
    let back =
        story.query("SELECT count(*) FROM switches WHERE reason = 'syscall' AND task = 1 AND next = 2");
    assert_ne!(back.lines().nth(1), Some("0"), "the first writer waits for the second");
}

/// Memory that several mappings show, in one process and in several: the answer is what memory held, whoever wrote it and through
/// which mapping; and so, hop by hop, is what was there before.
#[test]
fn memory_that_several_mappings_show() {
    let story = recorded_program("shared_memory", &["show"]);
    let looks = story.query("SELECT entry FROM calls WHERE function = 'look' ORDER BY entry");
    let looks: Vec<String> = looks.lines().skip(1).map(|moment| format!("@{moment}")).collect();
    let lines: Vec<&str> = story.output.lines().filter(|line| line.contains(" 0x")).collect();
    assert_eq!(looks.len(), lines.len(), "{looks:?}");
    for (line, look) in lines.iter().zip(&looks) {
        let [name, addr, value] = line.split(' ').collect::<Vec<_>>()[..] else { panic!("{line}") };
        let ask = |at: &str| story.why(&[addr, "--size", "4", "--at", at]);
        let mut answer = ask(look);
        let mut held = value.parse::<u64>().unwrap();
        let mut hops = 0;
        while answer["verdict"] == "written" {
            assert_eq!(answer["new"]["number"].as_u64(), Some(held), "{line}, hop {hops}: {answer:#}");
            hops += 1;
            held = answer["old"]["number"].as_u64().unwrap_or_else(|| panic!("{line}: {answer:#}"));
            // It was not yet mapped there.
            if name == "MOVED" {
                break;
            }
            answer = ask(&format!("@{}", answer["moment"]));
        }
        if answer["verdict"] == "never_written" {
            assert_eq!(answer["value"]["number"].as_u64(), Some(held), "{line}: {answer:#}");
        }
        let writer = match name {
            "TWICE" | "GONE" | "RING" | "SYSTEM_V" => (2, "other at"),
            "ONLY_OTHER" => (1, "through another mapping of that memory"),
            "OWN" => (1, "first at"),
            "KERNEL" => (2, "the kernel, read("),
            "PART" => (2, "1 byte at"),
            "UNTOUCHED" => (0, "never written since it was mapped"),
            "MOVED" => (1, "through another mapping of that memory"),
            "KEPT" => (2, "other at"),
            "GROWN" => (1, "first at"),
            "GROWN_OTHER" | "NOT_COPIED" => (2, "other at"),
            "GROWN_PART" => (1, "other at"),
            "COPIED" => (0, "by copy_file_range("),
            "PWRITTEN" => (1, "the kernel, pwrite64("),
            "EXECUTED" => (2, "by task 2 "),
            "FORKED_ELSEWHERE" => (2, "by task 1 "),
            "FORKED" => (2, "shared_memory), which shares that memory"),
            "FORKED_ONLY_CHILD" => (1, "shared_memory), which shares that memory"),
            "RING_END" | "RING_BEGIN" => (1, "ring at"),
            _ => panic!("{line}"),
        };
        assert_eq!(hops, writer.0, "{line}: {answer:#}");
        if name == "FORKED" {
            let both = story.query(&format!(
                "SELECT DISTINCT w.value, w.space FROM mappings m, mappings o, writes w WHERE m.space = 0 AND m.start <= {addr} \
                 AND {addr} < m.end AND o.object = m.object AND w.space = o.space AND w.touches = {addr} - m.start \
                 + m.object_offset - o.object_offset + o.start AND w.moment >= o.since \
                 AND w.moment < coalesce(o.until, 1 << 62) ORDER BY w.moment"
            ));
            assert_eq!(both.lines().skip(1).collect::<Vec<_>>(), ["1,0", "22,1"]);
        }
        names(&story.text(&[addr, "--size", "4", "--at", look]), &[writer.1]);
    }
}

#[test]
fn never_written() {
    let story = recorded("reused_block.c");
    // The last page of the program's stack mapping was never touched by anyone.
    let stack = story.query("SELECT start FROM mappings WHERE name = '[stack]' LIMIT 1");
    let start = stack.lines().nth(1).unwrap().trim_matches('"').to_owned();
    names(&story.text(&[&start, "--size", "8"]), &["never written"]);
    let unmapped = backstory(["why", "-t"]).arg(&story.trace).arg("0x10").output().unwrap();
    assert!(!unmapped.status.success());
    names(&String::from_utf8_lossy(&unmapped.stderr), &["not mapped"]);
}

/// A goroutine's stack ends with the function that `go` was said about: what the scheduler did before is none of its callers.
#[test]
fn goroutines_have_stacks_of_their_own() {
    const SOURCE: &str = "package main\n\nimport \"sync\"\n\nvar total int\nvar table [4]int\n\n\
        //go:noinline\nfunc add(n int) { total += n; table[n&3] = n }\n\n\
        func main() {\n\tvar wg sync.WaitGroup\n\tch := make(chan int)\n\twg.Add(1)\n\tgo func() {\n\
        \t\tfor n := range ch {\n\t\t\tadd(n)\n\t\t}\n\t\twg.Done()\n\t}()\n\
        \tfor i := 0; i < 5; i++ {\n\t\tch <- i\n\t}\n\tclose(ch)\n\twg.Wait()\n\tprintln(total)\n}\n";
    let scratch = tempfile::tempdir().unwrap();
    let (source, program) = (scratch.path().join("total.go"), scratch.path().join("total"));
    fs::write(&source, SOURCE).unwrap();
    let mut compiler = std::process::Command::new("go");
    compiler.args(["build", "-gcflags=-N -l", "-o"]).arg(&program).arg(&source);
    match compiler.env("GOCACHE", scratch.path().join("cache")).status() {
        Ok(status) => assert!(status.success()),
        Err(error) => return println!("skipped: no go here ({error})"),
    }
    let trace = scratch.path().join("trace");
    record(&trace, &[program]);
    let story = Story { source, trace, output: String::new(), _scratch: scratch };
    for name in ["total", "main.total", "main.table[1]", "table[1]"] {
        let answer = story.why(&[name]);
        let stack = answer["stack"].as_array().unwrap();
        let functions: Vec<&str> =
            stack.iter().map(|frame| frame["place"]["function"].as_str().unwrap()).collect();
        assert_eq!(functions, ["main.add", "main.main.func1"], "{name}: {answer:#}");
        assert!(stack[1]["switched"].is_u64(), "{answer:#}");
    }
}

/// A source file that was changed since then, and a kept file that is gone, do not pass in silence.
#[test]
fn what_changed_since_the_recording_is_said() {
    let scratch = tempfile::tempdir().unwrap();
    let source = scratch.path().join("once.c");
    fs::write(&source, "int counter;\nint main(void) { counter = 7; return 0; }\n").unwrap();
    let program = programs::build_file(&source, scratch.path());
    let trace = scratch.path().join("trace");
    record(&trace, &[program]);
    let story = Story { source: source.clone(), trace, output: String::new(), _scratch: scratch };
    assert!(!story.text(&["counter"]).contains("changed since"));
    let written = fs::File::options().write(true).open(&source).unwrap();
    written.set_modified(std::time::SystemTime::now() + std::time::Duration::from_secs(5)).unwrap();
    names(&story.text(&["counter"]), &["(once.c was changed since the recording"]);
    assert_eq!(story.why(&["counter"])["writer"]["instruction"]["place"]["source_changed"], true);

    let kept = fs::read_dir(story.trace.join("files")).unwrap().map(|entry| entry.unwrap().path());
    kept.for_each(|path| fs::remove_file(path).unwrap());
    for args in [["why", "counter"], ["query", "SELECT 1"]] {
        let output = backstory(args).arg("-t").arg(&story.trace).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!((output.status.code(), said.lines().count()), (Some(3), 1), "{said}");
        assert!(said.starts_with("backstory: cannot read kept file "), "{said}");
    }
}

/// Values are shown by their types, bit-fields without their neighbours, and by the write that changed them.
#[test]
fn values_are_what_their_types_say() {
    const SOURCE: &str = "short sh; float flt; double dbl; int *ptr; char text[8]; _Bool on; unsigned wide;\n\
        volatile struct { unsigned lo : 4, hi : 4; int neg : 6; unsigned idle : 3; } b;\n\
        static void set_lo(void) { b.lo = 3; }\nstatic void set_hi(void) { b.hi = 12; }\n\
        int main(void) { sh = -7; flt = 0.5; dbl = 2.5; ptr = 0; ptr = (int *)0x1234; __builtin_memcpy(text, \"abcdefg\", 8);\n\
        on = 1; wide = -1; b.neg = -3; set_lo(); set_hi(); return 0; }\n";
    let scratch = tempfile::tempdir().unwrap();
    let source = scratch.path().join("typed.c");
    fs::write(&source, SOURCE).unwrap();
    let program = programs::build_file(&source, scratch.path());
    let trace = scratch.path().join("trace");
    record(&trace, &[program]);
    let story = Story { source, trace, output: String::new(), _scratch: scratch };
    for (name, value) in [
        ("sh", "0 -> -7 (0xfff9)"),
        ("flt", "0.0 (0x0) -> 0.5 (0x3f000000)"),
        ("dbl", "0.0 (0x0) -> 2.5 (0x4004000000000000)"),
        ("ptr", "0x0 -> 0x1234"),
        ("text", "\"\" (0x0) -> \"abcdefg\" (0x67666564636261)"),
        ("on", "false (0x0) -> true (0x1)"),
        ("wide", "0 -> 4294967295 (0xffffffff)"),
        ("b.hi", "0 (0x3) -> 12 (0xc3)"),
        ("b.neg", "0 -> -3 (0x3d)"),
    ] {
        names(&story.text(&[name]), &[&format!("  value  {value}\n")]);
    }
    names(
        &story.text(&["b.lo"]),
        &["set_lo", "  field  bits 0 to 3 of the target: the last write that changed them", "0 -> 3"],
    );
    names(&story.text(&["b.hi"]), &["set_hi", "  field  bits 4 to 7 of the target"]);
    assert_eq!(story.why(&["sh"])["new"]["typed"], "-7");
    assert_eq!(story.why(&["b.neg"])["target"]["field"]["count"], 6);
}

#[test]
fn every_story_is_told() {
    let mut files: Vec<String> = fs::read_dir(folder())
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path: &PathBuf| Path::new(path).extension().is_some())
        .map(|path| path.file_name().unwrap().to_string_lossy().into_owned())
        .collect();
    files.sort();
    assert_eq!(
        files,
        [
            "bad_byte.c",
            "jumped_back.c",
            "long_label.c",
            "lost_update.c",
            "moved_vector.cc",
            "poked.c",
            "reused_block.c",
            "scattered.c"
        ]
    );
}
