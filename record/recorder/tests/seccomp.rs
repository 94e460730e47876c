//! Programs that filter their own system calls are recorded and their traces read back.

use std::process::Command;
use std::sync::{Mutex, PoisonError};

use backstory_recorder::{CounterChoice, Options, Outcome, record};
use tempfile::TempDir;
use trace::{Event, Fact, SignalAction, Status, Stop, Trace};

/// A recording waits for any child of this process: one at a time.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

/// What the programs begin with: `INSTALL(flags, steps)` and steps by call number.
const HEAD: &str = "#define _GNU_SOURCE
     #include <errno.h>
     #include <linux/filter.h>
     #include <linux/seccomp.h>
     #include <pthread.h>
     #include <signal.h>
     #include <stddef.h>
     #include <sys/prctl.h>
     #include <sys/syscall.h>
     #include <sys/wait.h>
     #include <ucontext.h>
     #include <unistd.h>
     #define RET(k) BPF_STMT(BPF_RET | BPF_K, k)
     #define ON(nr, k) BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, nr, 0, 1), RET(k)
     #define INSTALL(flags, ...) ({ \\
         static const struct sock_filter f[] = { BPF_STMT(BPF_LD | BPF_W | BPF_ABS, 0), __VA_ARGS__ }; \\
         struct sock_fprog p = { sizeof f / sizeof *f, (void *)f }; \\
         prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); \\
         syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, flags, &p); })
     ";

/// Builds and records a program of which `text` is the rest. Its trace is held against the checker.
#[track_caller]
fn recorded(text: &str, exit_code: i32) -> (Outcome, Vec<Event>) {
    let _guard = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let dir = TempDir::new().expect("a scratch folder");
    let (source, binary) = (dir.path().join("guest.c"), dir.path().join("guest"));
    std::fs::write(&source, format!("{HEAD}{text}")).expect("a writable folder");
    let status = Command::new("cc").args(["-O1", "-w", "-pthread", "-o"]).arg(&binary).arg(&source).status();
    assert!(status.expect("a C compiler").success());
    let options = Options {
        command: vec![binary.into()],
        output: dir.path().join("trace"),
        paranoid: true,
        linger: None,
        chaos: None,
        buffer: backstory_recorder::Buffer::Soon,
        counter: CounterChoice::default(),
    };
    let outcome = record(&options).expect("a recording");
    let trace = Trace::open(&outcome.trace).expect("a readable trace");
    assert_eq!(trace::check(&trace), []);
    assert_eq!(outcome.exit_code, exit_code, "{text}");
    assert_eq!(outcome.unexplained, [""; 0], "{text}");
    let events = trace.events().map(|event| event.expect("a readable event").1).collect();
    (outcome, events)
}

#[track_caller]
fn program(text: &str, exit_code: i32) -> Vec<Event> {
    let (outcome, events) = recorded(text, exit_code);
    assert_eq!(outcome.refused, None, "{text}");
    events
}

#[track_caller]
fn refusal(text: &str, expected: &str) {
    let (outcome, _) = recorded(text, 137);
    let why = outcome.refused.expect("a refusal");
    assert!(why.contains(expected), "{why}");
}

/// The results of calls by number, whole or returning.
fn results(events: &[Event], nr: i64) -> Vec<Option<i64>> {
    let info = |event: &Event| match &event.fact {
        Fact::Syscall(info) | Fact::SyscallLeave(info) if i64::from(info.nr) == nr => Some(info.result),
        _ => None,
    };
    events.iter().filter_map(info).collect()
}

#[test]
fn denied_calls_fail() {
    let events = program(
        "int main(void) {
             if (INSTALL(0, ON(SYS_getppid, SECCOMP_RET_ERRNO | 5), ON(SYS_ptrace, SECCOMP_RET_ERRNO | 6),
                         ON(SYS_munmap, SECCOMP_RET_ERRNO), RET(SECCOMP_RET_ALLOW)))
                 return 1;
             long a = syscall(SYS_getppid); int first = errno;
             long b = syscall(SYS_ptrace, 0, 0, 0, 0); int second = errno;
             char text[4096] __attribute__((aligned(4096))); text[0] = 1;
             if (syscall(SYS_munmap, text, 4096) || text[0] != 1) return 2;
             return a == -1 && b == -1 && first == 5 && second == 6 && prctl(PR_GET_SECCOMP) == 2 ? 7 : 3;
         }",
        7,
    );
    assert_eq!(results(&events, libc::SYS_getppid), [Some(-5)]);
    assert_eq!(results(&events, libc::SYS_ptrace), [Some(-6)]);
}

#[test]
fn a_handler_performs_calls() {
    let events = program(
        "static int data;
         static void handler(int s, siginfo_t *i, void *c) {
             greg_t *regs = ((ucontext_t *)c)->uc_mcontext.gregs;
             if (i->si_code == 1 && i->si_syscall == SYS_getppid && regs[REG_RAX] == SYS_getppid
                 && i->si_call_addr == (void *)regs[REG_RIP])
                 data = i->si_errno;
             regs[REG_RAX] = 4000 + regs[REG_RDI];
         }
         int main(void) {
             struct sigaction a = { .sa_sigaction = handler, .sa_flags = SA_SIGINFO };
             sigaction(SIGSYS, &a, 0);
             INSTALL(0, ON(SYS_getppid, SECCOMP_RET_TRAP | 9), RET(SECCOMP_RET_ALLOW));
             return syscall(SYS_getppid, 2) == 4002 ? data : 1;
         }",
        9,
    );
    assert_eq!(results(&events, libc::SYS_getppid), [None]);
    let raised: Vec<_> = events
        .iter()
        .filter_map(|event| match &event.fact {
            Fact::Signal(info) if info.signo == libc::SIGSYS => Some((event.stop, info)),
            _ => None,
        })
        .collect();
    let [(Stop::None, info)] = &raised[..] else { panic!("{raised:?}") };
    assert!(matches!(info.action, SignalAction::Handler { .. }));
    assert_eq!(info.siginfo[24..28], (libc::SYS_getppid as u32).to_le_bytes());
}

#[test]
fn deaths_are_those_of_the_filter() {
    for (action, before) in [
        ("KILL_PROCESS", "signal(SIGSYS, handler)"),
        ("KILL_THREAD", "signal(SIGSYS, SIG_IGN)"),
        ("TRAP", "sigset_t all; sigfillset(&all); sigprocmask(SIG_BLOCK, &all, 0)"),
        ("TRAP", "signal(SIGSYS, SIG_IGN)"),
    ] {
        let text = format!(
            "static void handler(int s) {{ _exit(1); }}
             int main(void) {{
                 {before};
                 INSTALL(0, ON(SYS_getppid, SECCOMP_RET_{action}), RET(SECCOMP_RET_ALLOW));
                 getppid(); return 2;
             }}"
        );
        let events = program(&text, 128 + libc::SIGSYS);
        let fact = events.last().map(|event| &event.fact);
        assert!(
            matches!(fact, Some(Fact::Exit(Status::Killed(killed))) if killed.signo == libc::SIGSYS && !killed.unlocated),
            "{action}: {fact:?}"
        );
    }
}

#[test]
fn a_thread_dies_alone() {
    program(
        "static void *run(void *p) { getppid(); return (void *)1; }
         int main(void) {
             pthread_t t; void *result = &t;
             INSTALL(0, ON(SYS_getppid, SECCOMP_RET_KILL_THREAD), RET(SECCOMP_RET_ALLOW));
             pthread_create(&t, 0, run, 0); pthread_join(t, &result);
             return result ? 1 : 6;
         }",
        6,
    );
}

#[test]
fn filters_outlive_exec_and_deny_what_they_do_not_name() {
    program(
        "int main(int argc, char **argv) {
             if (argc > 1) { long r = syscall(SYS_getppid); _exit(r == -1 && errno == 12 ? 8 : 1); }
             if (!fork()) {
                 INSTALL(0, ON(SYS_execve, SECCOMP_RET_ALLOW), ON(SYS_exit_group, SECCOMP_RET_ALLOW),
                     ON(SYS_brk, SECCOMP_RET_ALLOW), ON(SYS_mmap, SECCOMP_RET_ALLOW), ON(SYS_munmap, SECCOMP_RET_ALLOW),
                     ON(SYS_mprotect, SECCOMP_RET_ALLOW), ON(SYS_read, SECCOMP_RET_ALLOW), ON(SYS_close, SECCOMP_RET_ALLOW),
                     ON(SYS_openat, SECCOMP_RET_ALLOW), ON(SYS_arch_prctl, SECCOMP_RET_ALLOW),
                     ON(SYS_pread64, SECCOMP_RET_ALLOW), ON(SYS_newfstatat, SECCOMP_RET_ALLOW), ON(SYS_getppid, SECCOMP_RET_ERRNO | 12), RET(SECCOMP_RET_ERRNO | 38));
                 execl(argv[0], argv[0], \"again\", (char *)0);
                 _exit(2);
             }
             int status; wait(&status);
             return WEXITSTATUS(status);
         }",
        8,
    );
}

#[test]
fn threads_and_children_have_their_filters() {
    let events = program(
        "static volatile int go;
         static void *run(void *p) { while (!go) usleep(1000); return (void *)syscall(SYS_getppid); }
         int main(void) {
             pthread_t t; void *result;
             pthread_create(&t, 0, run, 0);
             if (INSTALL(SECCOMP_FILTER_FLAG_TSYNC, ON(SYS_getppid, SECCOMP_RET_ERRNO | 3), RET(SECCOMP_RET_ALLOW))) return 1;
             go = 1;
             pthread_join(t, &result);
             if ((long)result != -1) return 2;
             if (!fork()) {
                 INSTALL(0, ON(SYS_getppid, SECCOMP_RET_ERRNO | 4), RET(SECCOMP_RET_ALLOW));
                 syscall(SYS_getppid); _exit(errno);
             }
             int status; wait(&status);
             syscall(SYS_getppid);
             return WEXITSTATUS(status) * 10 + errno;
         }",
        43,
    );
    assert_eq!(results(&events, libc::SYS_getppid), [Some(-3), Some(-4), Some(-3)]);
}

#[test]
fn strict_mode_kills() {
    program(
        "int main(void) {
             if (!fork()) { prctl(PR_SET_SECCOMP, SECCOMP_MODE_STRICT); write(2, \"\", 0); getppid(); _exit(1); }
             int status; wait(&status);
             return WTERMSIG(status);
         }",
        9,
    );
}

#[test]
fn what_is_not_supported_is_refused_by_name() {
    refusal(
        "int main(void) { INSTALL(SECCOMP_FILTER_FLAG_NEW_LISTENER, RET(SECCOMP_RET_USER_NOTIF)); }",
        "seccomp(SECCOMP_FILTER_FLAG_NEW_LISTENER) is not supported",
    );
    refusal(
        "static void *run(void *p) { pause(); return 0; }
         int main(void) { pthread_t t; pthread_create(&t, 0, run, 0); prctl(PR_SET_SECCOMP, SECCOMP_MODE_STRICT); }",
        "strict seccomp in a process with threads is not supported",
    );
}
