//! Oracle: a recorded program behaves as natively, its replay prints what the recording printed, its trace is well-formed, and
//! two replays learn the same.
#![expect(clippy::unwrap_used, reason = "a test says what failed")]

use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use backstory_oracle::command::{backstory, guest_stderr, recorder, shell_code};
use backstory_oracle::programs;

/// Runs `sh -c script` natively and recorded, in two equal folders, and replays it twice.
#[track_caller]
fn check(script: &str) {
    check_with(script, |_| {});
}

#[track_caller]
fn check_with(script: &str, prepare: impl Fn(&Path)) {
    let scratch = tempfile::tempdir().unwrap();
    let trace = scratch.path().join("trace");
    let native = in_fresh_folder(scratch.path(), "work", &prepare, |dir| {
        Command::new("sh").args(["-c", script]).current_dir(dir).stdin(Stdio::null()).output().unwrap()
    });
    let recorded = in_fresh_folder(scratch.path(), "work", &prepare, |dir| {
        recorder(&trace, &["sh", "-c", script]).current_dir(dir).output().unwrap()
    });
    same(&native, &recorded, script, "recorded");
    let checked = backstory(["check"]).arg(&trace).output().unwrap();
    assert!(checked.status.success(), "{script}: check: {}", String::from_utf8_lossy(&checked.stderr));
    for turn in ["first replay", "second replay"] {
        let replayed = backstory(["replay"]).arg(&trace).output().unwrap();
        assert_eq!(
            replayed.status.code(),
            Some(0),
            "{script}: {turn}: {}",
            String::from_utf8_lossy(&replayed.stderr)
        );
        assert_eq!(
            String::from_utf8_lossy(&replayed.stdout),
            String::from_utf8_lossy(&recorded.stdout),
            "{script}: {turn}: standard output"
        );
        assert_eq!(guest_stderr(&replayed), guest_stderr(&recorded), "{script}: {turn}: standard error");
    }
}

fn in_fresh_folder(
    scratch: &Path,
    name: &str,
    prepare: &dyn Fn(&Path),
    run: impl Fn(&Path) -> Output,
) -> Output {
    let dir = scratch.join(name);
    let _ = fs::remove_dir_all(&dir);
    fs::create_dir(&dir).unwrap();
    prepare(&dir);
    run(&dir)
}

#[track_caller]
fn same(native: &Output, recorded: &Output, script: &str, what: &str) {
    assert_eq!(
        String::from_utf8_lossy(&native.stdout),
        String::from_utf8_lossy(&recorded.stdout),
        "{script}: {what}: standard output; standard error: {}",
        String::from_utf8_lossy(&recorded.stderr)
    );
    assert_eq!(guest_stderr(native), guest_stderr(recorded), "{script}: {what}: standard error");
    assert_eq!(shell_code(native), shell_code(recorded), "{script}: {what}: exit status");
    assert_eq!(recorded.status.signal(), None, "{script}: the recorder itself ends normally");
}

/// Skips by name where a program is missing.
fn have(program: &str) -> bool {
    let found =
        Command::new("sh").args(["-c", &format!("command -v {program}")]).output().unwrap().status.success();
    if !found {
        eprintln!("skipped: {program} is not installed");
    }
    found
}

macro_rules! scripts {
    ($($name:ident: $program:literal, $script:expr;)*) => {
        $(#[test]
        fn $name() {
            if have($program) {
                check($script);
            }
        })*
    };
}

scripts! {
    does_nothing: "true", "exec true";
    fails: "false", "exec false";
    exits_with_a_code: "sh", "exit 77";
    dies_by_a_signal: "sh", "kill -TERM $$";
    writes_to_both_streams: "sh", "echo one; echo two >&2; echo three";
    lists_a_tree: "ls", "exec ls -R /usr/lib/gcc";
    pipeline: "openssl", "seq 3000 | openssl enc -aes-128-cbc -k x -nosalt 2>/dev/null | sha256sum | cut -c1-20";
    background_jobs: "sh", "for i in 1 2 3; do (echo $i > f$i) & done; wait; cat f1 f2 f3";
    gzip_round: "gzip", "seq 200000 > f && gzip -9 -k f && gzip -dc f.gz | cksum";
    xz_round: "xz", "seq 50000 > f && xz -3 -T1 -k f && xz -dc f.xz | cksum";
    bzip2_round: "bzip2", "seq 20000 | bzip2 | bzip2 -dc | cksum";
    sqlite: "sqlite3", "echo 'create table t(a,b); with recursive c(x) as (select 1 union all select x+1 from c where x<3000) insert into t select x, x*x%97 from c; select b, count(*) from t group by b order by 2 desc, 1 limit 3;' | sqlite3 data.db";
    perl: "perl", "exec perl -e 'my %h; $h{$_ % 97} .= \"x\" for 1..20000; print join(\",\", map { length $h{$_} } sort { $a <=> $b } keys %h), \"\\n\"'";
    python: "python3", "exec python3 -c 'import json,re; print(len(json.dumps([{\"a\":i} for i in range(3000)])), sum(map(int, re.findall(\"[0-9]+\", \"a1b22c333\"))))'";
    mawk: "mawk", "exec mawk 'BEGIN { for (i = 0; i < 20000; i++) a[i % 100] += i; for (k in a) t += a[k]; print t }'";
    bc: "bc", "echo 'scale=60; 4*a(1)' | bc -l";
    make_and_compile: "gcc", "printf 'int f(int x){return x*3;}\\n' > a.c; printf '#include <stdio.h>\\nint f(int);int main(){printf(\"%%d\\\\n\",f(14));return 0;}\\n' > b.c; printf 'p: a.o b.o\\n\\tgcc -o p a.o b.o\\n%%.o: %%.c\\n\\tgcc -O2 -c $<\\n' > Makefile; make -s && ./p";
    git_log: "git", "export HOME=$PWD GIT_AUTHOR_DATE='1700000000 +0000' GIT_COMMITTER_DATE='1700000000 +0000'; git init -q -b main r && cd r && for i in 1 2 3; do echo $i > f$i; git add .; git -c user.name=a -c user.email=a@b commit -q -m c$i; done; git log --oneline; git -c pack.threads=1 gc -q; git fsck";
    lua: "lua5.4", "exec lua5.4 -e 't={} for i=1,20000 do t[i%97]=(t[i%97] or 0)+i end s=0 for k,v in pairs(t) do s=s+v end print(s)'";
    luajit: "luajit", "exec luajit -e 'local s=0 for i=1,3000000 do s=(s+i*7)%1000003 end print(s)'";
    musl: "musl-gcc", "printf '#include <stdio.h>\\n#include <stdlib.h>\\nint main(){char*p=malloc(100000);p[5]=3;printf(\"%%d\\\\n\",p[5]);return 4;}\\n' > m.c; musl-gcc -static -O2 m.c -o m && ./m";
    not_found: "sh", "./nothing-here";
}

#[test]
fn guest_programs() {
    let scratch = tempfile::tempdir().unwrap();
    let names = programs::names();
    assert!(names.len() >= 8, "the guest programs were found");
    for name in names {
        let program = programs::build(&name, scratch.path());
        check(&format!("exec {}", program.display()));
    }
}

#[test]
fn rust_binary() {
    let scratch = tempfile::tempdir().unwrap();
    let source = scratch.path().join("r.rs");
    fs::write(
        &source,
        "use std::collections::HashMap; fn main() { let mut m: HashMap<u64, u64> = HashMap::new(); \
         for i in 0..20_000u64 { *m.entry(i * 7919 % 1009).or_insert(0) += i; } \
         let mut v: Vec<_> = m.values().copied().collect(); v.sort(); println!(\"{} {}\", v[0], v[500]); }",
    )
    .unwrap();
    let out = scratch.path().join("r");
    let rustc = Command::new("rustc").args(["-O", "-g", "-o"]).arg(&out).arg(&source).status().unwrap();
    assert!(rustc.success());
    check(&format!("exec {}", out.display()));
}
