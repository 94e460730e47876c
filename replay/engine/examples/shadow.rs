//! Runs a command natively and in the engine side by side, from system call to system call, compares registers (and memory,
//! with `--memory`) at each, and reports the engine's speed.
//!
//! `shadow [--memory] [--mode plain|exact|indexed|indexed-exact] PROGRAM ARGS...`
#![expect(unsafe_code, reason = "clock_gettime(2) is called here")]

#[path = "../tests/engine/oracle.rs"]
#[expect(dead_code, clippy::unwrap_used, reason = "the oracle serves the tests, too, and is one")]
mod oracle;

use std::path::Path;
use std::time::Duration;

use backstory_engine::{Exit, Mode, Space, Trapped};
use guest::Registers;
use oracle::Native;
use ptrace::{Report, wait_for};

fn main() {
    let mut args: Vec<String> = std::env::args().skip(1).collect();
    let mut mode = Mode::Plain;
    let mut memory = false;
    while args.first().is_some_and(|arg| arg.starts_with("--")) {
        match args.remove(0).as_str() {
            "--memory" => memory = true,
            "--mode" => {
                mode = match args.remove(0).as_str() {
                    "exact" => Mode::Exact,
                    "indexed" => Mode::Indexed,
                    "indexed-exact" => Mode::IndexedExact,
                    _ => Mode::Plain,
                }
            }
            other => panic!("unknown option {other}"),
        }
    }
    let rest: Vec<&str> = args[1..].iter().map(String::as_str).collect();
    let mut native = Native::start(Path::new(&args[0]), &rest);
    native.hide_vdso();
    let mut space = native.image(mode);
    let mut ours = Duration::ZERO;
    let mut logged = 0;
    let mut calls = 0;
    let mut theirs = Duration::ZERO;
    loop {
        let begin = own_time() + cpu_time(&space.process().to_string());
        let exit = space.run(None).expect("the engine runs");
        logged += space.drain_log_with(<[u8]>::len);
        ours += own_time() + cpu_time(&space.process().to_string()) - begin;
        match exit {
            Exit::LogFull => {}
            Exit::Instruction(kind) => answer(kind, &mut space),
            Exit::Syscall => {
                let begin = cpu_time(&native.tid.to_string());
                to_syscall(&mut native);
                theirs += cpu_time(&native.tid.to_string()) - begin;
                compare(&native, &space);
                if memory {
                    native.assert_memory(&space);
                }
                calls += 1;
                if matches!(space.registers().rax, 60 | 231) {
                    break;
                }
                let maps = native.maps();
                if space.registers().rax == 334 {
                    refuse_syscall(&mut native)
                } else {
                    to_syscall(&mut native)
                }
                native.copy_changes(&maps, &mut space);
            }
            other => panic!("{other:?} at {:#x} after {}", space.registers().rip, space.retired()),
        }
    }
    let rate = space.retired() as f64 / ours.as_secs_f64() / 1e6;
    println!(
        "{} instructions, {calls} calls, {} blocks, engine {ours:?} ({rate:.0} M/s), native {theirs:?}, ratio {:.2}, log {:.2} bytes/instruction",
        space.retired(),
        space.blocks().len(),
        ours.as_secs_f64() / theirs.as_secs_f64(),
        logged as f64 / space.retired() as f64,
    );
    println!("{:?}", space.counters());
}

/// CPU time of a process's main thread (`/proc/PID/schedstat`).
fn cpu_time(process: &str) -> Duration {
    let text = std::fs::read_to_string(format!("/proc/{process}/schedstat")).unwrap_or_default();
    Duration::from_nanos(text.split(' ').next().and_then(|word| word.parse().ok()).unwrap_or(0))
}

/// CPU time of this thread.
fn own_time() -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` outlives the call.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut time) };
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

fn answer(kind: Trapped, space: &mut Space) {
    let mut regs = space.registers();
    match kind {
        Trapped::Cpuid => {
            let leaf = std::arch::x86_64::__cpuid_count(regs.rax as u32, regs.rcx as u32);
            regs.rax = u64::from(leaf.eax);
            regs.rbx = u64::from(leaf.ebx);
            regs.rcx = u64::from(leaf.ecx);
            regs.rdx = u64::from(leaf.edx);
            regs.rip += 2;
        }
        Trapped::Rdtsc => {
            (regs.rax, regs.rdx) = (1, 0);
            regs.rip += 2;
        }
        Trapped::Rdtscp => {
            (regs.rax, regs.rdx, regs.rcx) = (1, 0, 0);
            regs.rip += 3;
        }
        Trapped::Rdrand | Trapped::Rdseed | Trapped::Rdpid => panic!("nothing tells what {kind:?} answers"),
    }
    space.set_registers(&regs);
}

fn compare(native: &Native, space: &Space) {
    let ours = space.registers();
    let theirs = native.stopped.as_ref().expect("stopped").registers().expect("registers");
    let clean =
        |regs: Registers| Registers { rip: 0, rax: 0, rcx: 0, r11: 0, orig_rax: 0, eflags: 0, ..regs };
    let same = clean(ours) == clean(theirs) && ours.rip + 2 == theirs.rip && ours.rax == theirs.orig_rax;
    assert!(same, "after {}:\nours {ours:x?}\nnative {theirs:x?}", space.retired());
}

/// Runs to the next entry or exit of a system call.
fn to_syscall(native: &mut Native) {
    loop {
        let stopped = native.stopped.take().expect("the native process is there");
        stopped.cont_to_syscall(0).expect("the native process is there");
        match wait_for(native.tid, 0)
            .expect("the native process is there")
            .expect("the native process is there")
            .report
        {
            Report::Syscall(stopped) => {
                native.stopped = Some(stopped);
                return;
            }
            Report::Signal(libc::SIGSEGV, stopped) => {
                native.stopped = Some(stopped);
                assert!(native.answer_tsc(), "SIGSEGV at {:#x}", native.registers().rip);
            }
            other => panic!("{other:?}"),
        }
    }
}

/// At the entry of a system call: makes it fail without being performed.
fn refuse_syscall(native: &mut Native) {
    let stopped = native.stopped.as_mut().expect("the native process is there");
    let regs = Registers { orig_rax: u64::MAX, ..stopped.registers().expect("the native process is there") };
    stopped.set_registers(&regs).expect("the native process is there");
    to_syscall(native);
    let stopped = native.stopped.as_mut().expect("the native process is there");
    let regs = Registers { rax: -38i64 as u64, ..stopped.registers().expect("the native process is there") };
    stopped.set_registers(&regs).expect("the native process is there");
}
