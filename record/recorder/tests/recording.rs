//! Small commands are recorded and their traces read back.

use std::path::Path;
use std::process::Command;
use std::sync::{Mutex, PoisonError};

use backstory_recorder::{CounterChoice, ErrorClass, Options, Outcome, RecordError, record};
use tempfile::TempDir;
use trace::{Backing, Event, Fact, MapOp, SignalAction, Status, Stop, Trace, Trapped};

/// A recording waits for any child of this process and owns its timer: one at a time, and nothing else forks meanwhile.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

/// A finished recording.
struct Recorded {
    outcome: Outcome,
    events: Vec<Event>,
    trace: Trace,
    _dir: TempDir,
}

fn try_record(command: &[&str], paranoid: bool) -> Result<(Outcome, TempDir), RecordError> {
    let dir = TempDir::new().expect("a scratch folder");
    let command = command.iter().map(Into::into).collect();
    let options = Options {
        command,
        output: dir.path().join("trace"),
        paranoid,
        linger: None,
        chaos: None,
        buffer: backstory_recorder::Buffer::Worthwhile,
        counter: CounterChoice::default(),
    };
    record(&options).map(|outcome| (outcome, dir))
}

/// Records a command and holds its trace against the checker.
#[track_caller]
fn recorded(command: &[&str], exit_code: i32) -> Recorded {
    let _guard = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let (outcome, dir) = try_record(command, false).expect("a recording");
    let trace = Trace::open(&outcome.trace).expect("a readable trace");
    assert_eq!(trace::check(&trace), []);
    assert_eq!(outcome.exit_code, exit_code, "{command:?}");
    assert_eq!(trace.summary().expect("a complete trace").exit_code, exit_code);
    let events = trace.events().map(|event| event.expect("a readable event").1).collect();
    Recorded { outcome, events, trace, _dir: dir }
}

/// Records a shell script.
#[track_caller]
fn script(text: &str, exit_code: i32) -> Recorded {
    let recorded = recorded(&["/bin/sh", "-c", text], exit_code);
    assert_eq!(recorded.outcome.refused, None, "{text}");
    recorded
}

/// Builds and records a C program.
#[track_caller]
fn program(source: &str, exit_code: i32) -> Recorded {
    let dir = TempDir::new().expect("a scratch folder");
    let binary = dir.path().join("guest");
    {
        let _guard = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
        compile(source, &binary);
    }
    recorded(&[binary.to_str().expect("a plain path")], exit_code)
}

fn compile(source: &str, binary: &Path) {
    let file = binary.with_extension("c");
    std::fs::write(&file, source).expect("a writable folder");
    let status = Command::new("cc").args(["-O1", "-w", "-pthread", "-o"]).arg(binary).arg(&file).status();
    assert!(status.expect("a C compiler").success());
}

impl Recorded {
    fn count(&self, wanted: impl Fn(&Event) -> bool) -> usize {
        self.events.iter().filter(|event| wanted(event)).count()
    }

    fn signals(&self, signal: i32) -> Vec<(Stop, SignalAction)> {
        self.events
            .iter()
            .filter_map(|event| match &event.fact {
                Fact::Signal(info) if info.signo == signal => Some((event.stop, info.action)),
                _ => None,
            })
            .collect()
    }
}

#[test]
fn exit_statuses_are_those_a_shell_shows() {
    recorded(&["true"], 0);
    recorded(&["false"], 1);
    script("exit 43", 43);
    script("kill -KILL $$", 137);
    script("kill -SEGV $$", 139);
    script("(exit 7); test $? = 7", 0);
}

#[test]
fn a_tree_of_processes_is_recorded() {
    let recorded = script("echo one | cat >/dev/null; (exit 2); /bin/true & wait", 0);
    assert!(recorded.count(|event| matches!(event.fact, Fact::Spawn(_))) >= 4);
    assert!(recorded.count(|event| matches!(event.fact, Fact::Exec(_))) >= 3);
    let tasks = recorded.trace.summary().expect("complete").tasks as usize;
    assert_eq!(recorded.count(|event| matches!(event.fact, Fact::Exit(_))), tasks);
    assert_eq!(recorded.count(|event| event.fact == Fact::Exit(Status::Exited(2))), 1);
}

#[test]
fn output_is_marked_and_summed() {
    let recorded = recorded(&["/bin/echo", "hello"], 0);
    let crc = recorded.events.iter().find_map(|event| match &event.fact {
        Fact::Syscall(info) if info.output.is_some() => Some(info.output_crc),
        _ => None,
    });
    assert_eq!(crc, Some(crc32fast::hash(b"hello\n")));
}

#[test]
fn the_table_explains_every_change_of_memory() {
    let _guard = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    for command in [
        &["true"][..],
        &["ls", "-l", "/"],
        &["sh", "-c", "ls / | sort | tail -1 >/dev/null; sleep 0.01; date >/dev/null"],
    ] {
        let (outcome, _dir) = try_record(command, true).expect("a recording");
        assert_eq!(outcome.unexplained, [""; 0], "{command:?}");
    }
}

#[test]
fn a_fault_enters_its_handler() {
    let recorded = program(
        "#include <setjmp.h>
         #include <signal.h>
         static sigjmp_buf back;
         static void handler(int s) { siglongjmp(back, 1); }
         int main(void) {
             signal(SIGSEGV, handler); signal(SIGFPE, handler);
             volatile int zero = 0;
             if (!sigsetjmp(back, 1)) *(volatile int *)8 = 1;
             if (!sigsetjmp(back, 1)) zero = 4 / zero;
             return 5;
         }",
        5,
    );
    for signal in [11, 8] {
        let seen = recorded.signals(signal);
        assert!(matches!(seen[..], [(Stop::Fault, SignalAction::Handler { .. })]), "{signal}: {seen:?}");
    }
}

#[test]
fn signals_in_calls_follow_the_call() {
    let recorded = program(
        "#include <signal.h>
         #include <unistd.h>
         static int seen;
         static void handler(int s) { seen++; }
         int main(void) {
             signal(SIGUSR1, handler); signal(SIGALRM, handler);
             kill(getpid(), SIGUSR1);
             alarm(1); pause();
             signal(SIGTERM, SIG_DFL); raise(SIGTERM);
         }",
        128 + 15,
    );
    assert!(matches!(recorded.signals(10)[..], [(Stop::None, SignalAction::Handler { .. })]));
    assert!(matches!(recorded.signals(14)[..], [(Stop::None, SignalAction::Handler { .. })]));
    assert_eq!(recorded.signals(15), [(Stop::None, SignalAction::Fatal)]);
}

#[test]
fn time_stamps_are_answered_whatever_sigsegv_does() {
    let recorded = program(
        "#include <signal.h>
         #include <x86intrin.h>
         int main(void) {
             sigset_t set, old; sigemptyset(&set); sigaddset(&set, SIGSEGV);
             signal(SIGSEGV, SIG_IGN);
             sigprocmask(SIG_BLOCK, &set, 0);
             unsigned aux; unsigned long long a = __rdtsc(), b = __rdtscp(&aux);
             sigprocmask(SIG_SETMASK, 0, &old);
             struct sigaction now; sigaction(SIGSEGV, 0, &now);
             return !(b > a && sigismember(&old, SIGSEGV) && now.sa_handler == SIG_IGN);
         }",
        0,
    );
    assert!(recorded.count(|event| matches!(event.stop, Stop::Instruction(_))) >= 2);
    assert_eq!(recorded.signals(11), []);
}

#[test]
fn cpuid_is_answered_where_it_traps() {
    let trapped = recorded(&["true"], 0).trace.header().machine.cpuid_trapped;
    let recorded = program(
        "#include <cpuid.h>
         #include <sys/syscall.h>
         #include <unistd.h>
         int main(void) {
             unsigned a, b, c, d, hidden;
             if (syscall(SYS_arch_prctl, 0x1012, 1)) return 9;
             __cpuid_count(7, 0, a, b, c, d); hidden = b & (1 << 4 | 1 << 11 | 1 << 18);
             __cpuid(1, a, b, c, d); hidden |= c & 1 << 30;
             return (hidden ? 1 : 0) + (syscall(SYS_arch_prctl, 0x1011, 0) == 1 ? 0 : 2);
         }",
        if trapped { 0 } else { 9 },
    );
    let answered = recorded.count(|event| event.stop == Stop::Instruction(Trapped::Cpuid));
    assert_eq!(answered > 0, trapped);
    if !trapped {
        println!("skipped: this processor or kernel cannot trap cpuid");
    }
}

#[test]
fn what_is_not_supported_ends_the_recording_by_name() {
    let old_call =
        program("int main(void) { int r; __asm__ volatile(\"int $0x80\" : \"=a\"(r) : \"a\"(243)); }", 137);
    assert!(old_call.outcome.refused.expect("a refusal").contains("int 0x80 (32-bit system call 243)"));
    let disguised = program(
        "int main(void) {
             int r;
             __asm__ volatile(\"lea 1f(%%rip), %%rcx; pushfq; pop %%r11; int $0x80; 1:\" : \"=a\"(r) : \"a\"(20) : \"rcx\", \"r11\");
         }",
        137,
    );
    assert!(disguised.outcome.refused.expect("a refusal").contains("ecx"));
}

#[test]
fn threads_run_one_at_a_time_and_their_ends_are_told() {
    let recorded = program(
        "#include <pthread.h>
         static volatile long n;
         static void *run(void *p) { for (long i = 0; i < 400000000; i++) n++; return p; }
         int main(void) {
             pthread_t t[3];
             for (int i = 0; i < 3; i++) pthread_create(&t[i], 0, run, 0);
             for (int i = 0; i < 3; i++) pthread_join(t[i], 0);
             return n < 400000000 || n > 1200000000;
         }",
        0,
    );
    assert_eq!(recorded.outcome.refused, None);
    let threads =
        |event: &Event| matches!(&event.fact, Fact::Spawn(info) if info.shares && info.pid != info.tid);
    assert_eq!(recorded.count(threads), 3);
    assert!(recorded.count(|event| event.stop == Stop::Point) >= 2, "none was preempted");
    let ended = |event: &Event| matches!(event.fact, Fact::Exit(_)) && event.writes.len() == 1;
    assert_eq!(recorded.count(ended), 3, "each cleared its thread id");
}

#[test]
fn who_wakes_another_and_computes_gives_way_at_the_call() {
    let recorded = program(
        "#include <pthread.h>
         static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
         static pthread_cond_t more = PTHREAD_COND_INITIALIZER;
         static int asked, done;
         static void *run(void *p) {
             for (int i = 0; i < 12; i++) {
                 pthread_mutex_lock(&lock);
                 while (!asked) pthread_cond_wait(&more, &lock);
                 asked = 0; done++;
                 pthread_mutex_unlock(&lock);
             }
             return p;
         }
         int main(void) {
             pthread_t t;
             pthread_create(&t, 0, run, 0);
             for (int i = 0; i < 12; i++) {
                 for (volatile long k = 0; k < 20000000; k++);
                 pthread_mutex_lock(&lock);
                 asked = 1;
                 pthread_cond_signal(&more);
                 pthread_mutex_unlock(&lock);
             }
             for (volatile long k = 0; k < 20000000; k++);
             pthread_join(t, 0);
             return done;
         }",
        12,
    );
    let points = recorded.count(|event| event.stop == Stop::Point);
    assert!(points < 6, "{points} points for 12 threads woken");
}

#[test]
fn a_turn_ends_at_a_call_where_there_are_many() {
    let recorded = program(
        "#include <pthread.h>
         #include <unistd.h>
         static void *run(void *p) {
             for (int i = 0; i < 6000; i++) { for (volatile int k = 0; k < 50000; k++); getppid(); }
             return p;
         }
         int main(void) {
             for (int i = 0; i < 1000; i++) getppid();
             pthread_t t[2];
             for (int i = 0; i < 2; i++) pthread_create(&t[i], 0, run, 0);
             for (int i = 0; i < 2; i++) pthread_join(t[i], 0);
             return 0;
         }",
        0,
    );
    let made = recorded.count(|event| event.stop == Stop::Buffered);
    assert!(made > 3000, "{made} calls without a stop");
    let points = recorded.count(|event| event.stop == Stop::Point);
    assert!(points < 4, "{points} points");
}

#[test]
fn forked_processes_share_what_they_map_shared() {
    let recorded = program(
        "#define _GNU_SOURCE
         #include <sys/mman.h>
         #include <sys/wait.h>
         #include <unistd.h>
         int main(void) {
             int fd = memfd_create(\"shared\", 0); ftruncate(fd, 8192);
             volatile int *a = mmap(0, 4096, 3, MAP_SHARED, fd, 0), *b = mmap(0, 4096, 3, MAP_SHARED, fd, 0);
             for (int i = 0; i < 3; i++) { if (!fork()) { a[0]++; _exit(0); } wait(0); }
             int four = 4; pwrite(fd, &four, 4, 4);
             return b[0] + a[1];
         }",
        7,
    );
    assert_eq!(recorded.outcome.refused, None);
    let files: Vec<_> = recorded
        .events
        .iter()
        .flat_map(|event| &event.maps)
        .filter_map(|op| match op {
            MapOp::Map { shared: true, backing: Backing::File { file, .. }, .. } => Some(*file),
            _ => None,
        })
        .collect();
    assert!(matches!(files[..], [a, b] if a == b), "two views of one object: {files:?}");
}

/// Maps a file of a page private or shared, for reading or writing: `view(flags, mode)`.
const VIEW: &str = "#define _GNU_SOURCE
     #include <fcntl.h>
     #include <stdlib.h>
     #include <sys/mman.h>
     #include <sys/wait.h>
     #include <unistd.h>
     static char name[] = \"/tmp/viewXXXXXX\";
     static volatile char *view(int flags, int mode) {
         return mmap(0, 4096, mode == O_RDWR ? 3 : 1, flags, open(name, mode), 0);
     }
     static int made(void) { int fd = mkstemp(name); ftruncate(fd, 4096); return fd; }
     ";

#[track_caller]
fn refusal(main: &str, expected: &str) {
    let recorded = program(&format!("{VIEW} int main(void) {{ int fd = made(); {main} }}"), 137);
    let why = recorded.outcome.refused.expect("a refusal");
    assert!(why.contains("/tmp/view") && why.contains(expected), "{why}");
}

#[test]
fn a_program_that_steps_itself_is_refused() {
    let steps = "asm volatile(\"pushf; orl $0x100, (%%rsp); popf; nop; nop\" ::: \"cc\", \"memory\");";
    let recorded = program(&format!("int main(void) {{ {steps} }}"), 137);
    let why = recorded.outcome.refused.expect("a refusal");
    assert!(why.contains("a program that sets its own trap flag"), "{why}");
}

#[test]
fn stores_that_a_private_mapping_would_follow_are_refused() {
    let mixed = "mapped private while it is also mapped shared for writing is not supported";
    refusal("view(MAP_PRIVATE, O_RDONLY); view(MAP_SHARED, O_RDWR);", mixed);
    refusal("view(MAP_SHARED, O_RDWR); view(MAP_PRIVATE, O_RDONLY);", mixed);
}

#[test]
fn one_mapping_after_the_other_is_recorded() {
    let main = "volatile char *s = view(MAP_SHARED, O_RDWR); s[0] = 3; munmap((void *)s, 4096);
         volatile char *p = view(MAP_PRIVATE, O_RDONLY); char four = 4; pwrite(fd, &four, 1, 1);
         int seen = p[0] + p[1]; munmap((void *)p, 4096);
         volatile char *r = view(MAP_SHARED, O_RDONLY); s = view(MAP_SHARED, O_RDWR); s[2] = 5;
         return seen + r[2];";
    let recorded = program(&format!("{VIEW} int main(void) {{ int fd = made(); {main} }}"), 12);
    assert_eq!(recorded.outcome.refused, None);
    let shared = |op: &MapOp| matches!(op, MapOp::Map { shared: true, .. });
    let events: Vec<_> =
        recorded.events.iter().map(|event| event.maps.iter().filter(|op| shared(op)).count()).collect();
    assert_eq!(
        events.iter().filter(|count| **count > 0).collect::<Vec<_>>(),
        [&1, &2],
        "the reader joins the writer"
    );
}

#[test]
fn a_signal_in_user_code_comes_at_a_point() {
    let recorded = program(
        "#include <signal.h>
         #include <sys/time.h>
         #include <unistd.h>
         static volatile int seen;
         static void handler(int s) { seen = 1; }
         int main(void) {
             signal(SIGALRM, handler);
             struct itimerval timer = { .it_value.tv_usec = 20000 };
             setitimer(ITIMER_REAL, &timer, 0);
             for (volatile long i = 0; i < 200000000; i++);
             getppid();
             return seen ? 0 : 1;
         }",
        0,
    );
    assert!(matches!(recorded.signals(14)[..], [(Stop::None, SignalAction::Handler { .. })]));
    assert_eq!(recorded.count(|event| matches!(&event.fact, Fact::Point(info) if info.signal == 14)), 1);
}

#[test]
fn a_child_that_borrows_its_parents_memory_is_in_its_space() {
    let recorded = program(
        "#include <spawn.h>
         #include <sys/wait.h>
         int main(void) {
             char *argv[] = { \"true\", 0 }; int pid, status;
             posix_spawn(&pid, \"/bin/true\", 0, 0, argv, 0);
             wait(&status);
             return status;
         }",
        0,
    );
    assert_eq!(recorded.count(|event| matches!(&event.fact, Fact::Spawn(info) if info.shares)), 1);
}

#[test]
fn what_a_tracer_changes_is_an_event_of_its_tracee() {
    let recorded = program(
        "#include <signal.h>
         #include <sys/ptrace.h>
         #include <sys/wait.h>
         #include <unistd.h>
         static volatile long word;
         int main(void) {
             int pid = fork(), status;
             if (!pid) {
                 ptrace(PTRACE_TRACEME, 0, 0, 0);
                 raise(SIGSTOP);
                 _exit(word == 5 ? 0 : 1);
             }
             waitpid(pid, &status, 0);
             ptrace(PTRACE_POKEDATA, pid, &word, 5L);
             ptrace(PTRACE_CONT, pid, 0, 0);
             waitpid(pid, &status, 0);
             return status;
         }",
        0,
    );
    let poked = |event: &Event| match &event.fact {
        Fact::Traced(info) => {
            let wrote = event.writes.iter().map(|write| write.data.len()).collect::<Vec<_>>();
            info.request == Some(5)
                && (event.task, info.tracer, &wrote[..]) == (guest::TaskId(1), guest::TaskId(0), &[8][..])
        }
        _ => false,
    };
    assert_eq!(recorded.count(poked), 1);
    assert_eq!(recorded.signals(19), [(Stop::None, SignalAction::Traced)]);
}

#[test]
fn stopped_processes_go_on() {
    let recorded = script("sleep 0.5 & p=$!; sleep 0.2; kill -STOP $p; sleep 0.1; kill -CONT $p; wait $p", 0);
    assert!(recorded.signals(19).contains(&(Stop::None, SignalAction::Stopped)));
}

#[test]
fn a_few_calls_are_stopped_at_and_many_are_made_without() {
    const WORTH: usize = 256;
    let main = "int main(void) { for (int i = 0; i < 2000; i++) getppid(); return 0; }";
    let made = program(&format!("#include <unistd.h>\n{main}"), 0);
    let is_made_without = |event: &Event| event.stop == Stop::Buffered;
    let first = made.events.iter().position(is_made_without).expect("calls made without a stop");
    let stops = made.events[..first].iter().filter(|event| event.stop == Stop::Syscall).count();
    assert!(stops >= WORTH, "{stops} stops");
    assert!(made.count(is_made_without) > 1700);
}

#[test]
fn a_guest_sees_the_processors_it_would_have() {
    let count = std::thread::available_parallelism().expect("known").get();
    script(&format!("test $(nproc) = {count}"), 0);
}

#[test]
fn commands_that_cannot_run_are_told_apart() {
    let class = |command: &[&str]| try_record(command, false).err().map(|error| error.class());
    assert_eq!(class(&["no-such-command-at-all"]), Some(ErrorClass::NotFound));
    assert_eq!(class(&["/etc/passwd"]), Some(ErrorClass::NotExecutable));
    assert_eq!(class(&[]), Some(ErrorClass::Input));
}
