//! Small C programs, built and recorded here.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, MutexGuard, PoisonError};

use recorder::{CounterChoice, Options};
use trace::Trace;

/// Calls, a loop, memory written by the program and by the kernel.
pub(crate) const COUNTER: &str = r#"
#include <fcntl.h>
#include <unistd.h>
volatile long counter;
__attribute__((noinline)) void bump(long by) { counter += by; }
int main(void) {
    for (int i = 0; i < 40; i++) {
        bump(i);
        if (i == 20) { int fd = open("/dev/zero", O_RDONLY); read(fd, (void *)&counter, sizeof counter); close(fd); }
    }
    volatile unsigned long h = 1;
    for (int i = 0; i < 3000000; i++) h = h * 31 + i;
    return 0;
}
"#;

/// Processes that share memory for a while, copies of memory, signals, an exec, death by a signal.
pub(crate) const TREE: &str = r#"
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
static volatile int got, grown[5000];
static void handler(int s) { got += s; }
int main(int argc, char **argv) {
    if (argc > 1) { memset((void *)grown, 7, sizeof grown); raise(SIGKILL); }
    signal(SIGUSR1, handler);
    for (int i = 0; i < 3; i++) {
        int pid = fork();
        if (pid == 0) { for (int j = 0; j < 5000; j++) grown[j] = i * j; raise(SIGUSR1); _exit(got); }
        raise(SIGUSR1);
        int status;
        waitpid(pid, &status, 0);
        grown[i] = status;
    }
    int pid = vfork();
    if (pid == 0) { execl(argv[0], argv[0], "again", (char *)0); _exit(1); }
    waitpid(pid, 0, 0);
    *(volatile int *)8 = got;
}
"#;

/// Two processes that take turns in memory they share.
pub(crate) const SHARED: &str = r#"
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>
int main(void) {
    volatile long *m = mmap(0, 8192, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    int there[2], back[2];
    char c = 0;
    pipe(there);
    pipe(back);
    if (fork() == 0) {
        for (int i = 0; i < 30; i++) {
            read(there[0], &c, 1);
            m[1] = m[0] * 3 + 1;
            for (int k = 0; k < 500; k++) m[2] += k ^ m[1];
            write(back[1], &c, 1);
        }
        _exit(0);
    }
    for (int i = 0; i < 30; i++) {
        m[0] = i * i + m[1] % 17;
        write(there[1], &c, 1);
        read(back[0], &c, 1);
    }
    wait(0);
    return m[2] & 63;
}
"#;

static TURN: Mutex<()> = Mutex::new(());

/// One test at a time: the recorder waits for any child of the process.
pub(crate) fn turn() -> MutexGuard<'static, ()> {
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Builds `source` in `scratch` and records it there.
pub(crate) fn record(scratch: &Path, source: &str) -> Trace {
    let (path, program) = (scratch.join("guest.c"), scratch.join("guest"));
    fs::write(&path, source).unwrap();
    let built = Command::new("gcc").args(["-g", "-O1", "-w", "-o"]).args([&program, &path]).status().unwrap();
    assert!(built.success());
    record_command(scratch, &[program.to_str().unwrap()])
}

/// Records a command into `scratch`.
pub(crate) fn record_command(scratch: &Path, command: &[&str]) -> Trace {
    let output: PathBuf = scratch.join("trace");
    let options = Options {
        command: command.iter().map(Into::into).collect(),
        output,
        paranoid: false,
        linger: None,
        chaos: None,
        buffer: recorder::Buffer::Soon,
        counter: CounterChoice::default(),
    };
    let outcome = recorder::record(&options).unwrap();
    assert_eq!(outcome.refused, None);
    let trace = Trace::open(&outcome.trace).unwrap();
    assert_eq!(trace::check(&trace), []);
    trace
}

/// Address of a symbol in the program as recorded (ASLR off: a position-independent executable lies at a fixed base).
pub(crate) fn symbol(scratch: &Path, trace: &Trace, name: &str) -> guest::GuestAddr {
    let listed = Command::new("nm").arg(scratch.join("guest")).output().unwrap();
    let text = String::from_utf8(listed.stdout).unwrap();
    let line = text.lines().find(|line| line.ends_with(&format!(" {name}"))).unwrap();
    let value = u64::from_str_radix(line.split(' ').next().unwrap(), 16).unwrap();
    let first = trace.event(guest::EventId(0)).unwrap();
    let is_program =
        |op: &&trace::MapOp| matches!(op, trace::MapOp::Map { name, .. } if name.ends_with("/guest"));
    let Some(trace::MapOp::Map { range, .. }) = first.maps.iter().find(is_program) else {
        panic!("no program")
    };
    range.start.wrapping_add(value)
}
