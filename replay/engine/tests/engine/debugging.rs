//! Breakpoints, watchpoints, and changes of mode.

use crate::oracle::{Native, build};
use backstory_engine::{Exit, Mode, Space, Watch, WatchKind};
use guest::{GuestAddr, GuestRange};

const PROGRAM: &str = r"
.globl _start
_start:
    mov $10, %ecx
1:  mov %rcx, buffer(%rip)
    call 2f
    dec %ecx
    jnz 1b
    lea buffer+64(%rip), %rdi
    mov $64, %ecx
    rep stosb
    nop
    mov $60, %eax
    syscall
2:  push %rbx
    pop %rbx
    ret
.bss
.balign 64
buffer: .skip 4096
";

fn start(mode: Mode) -> (tempfile::TempDir, Native, Space) {
    let dir = tempfile::tempdir().unwrap();
    let program = build(dir.path(), "debug.s", PROGRAM, &["-static", "-nostdlib"]);
    let native = Native::start(&program, &[]);
    let space = native.image(mode);
    (dir, native, space)
}

/// The program counters that single-stepping visits, and what it has retired at each.
fn trace(native: &mut Native) -> Vec<(u64, u64)> {
    let mut visited = Vec::new();
    loop {
        let regs = native.registers();
        visited.push((regs.rip, native.retired));
        if regs.rax == 60 {
            return visited;
        }
        assert_eq!(native.step(), None);
    }
}

#[test]
fn breakpoints_stop_each_time_and_nowhere_else() {
    for mode in [Mode::Plain, Mode::Indexed] {
        let (_dir, mut native, _) = start(mode);
        let visited = trace(&mut native);
        let mut pcs: Vec<u64> = visited.iter().map(|&(pc, _)| pc).collect();
        pcs.sort_unstable();
        pcs.dedup();
        for pc in pcs {
            let (_dir, _native, mut space) = start(mode);
            // Blocks that run through the place exist already.
            assert_eq!(space.run(Some(20)).unwrap(), Exit::Budget);
            space.set_breakpoints(&[GuestAddr(pc)]);
            let expected = visited.iter().filter(|&&(at, retired)| at == pc && retired > 20);
            for &(_, retired) in expected {
                assert_eq!(space.run(None).unwrap(), Exit::Breakpoint, "{pc:#x}");
                assert_eq!((space.registers().rip, space.retired()), (pc, retired));
            }
            space.set_breakpoints(&[]);
            assert_eq!(space.run(None).unwrap(), Exit::Syscall);
        }
    }
}

#[test]
fn watchpoints_name_the_store() {
    for mode in [Mode::Plain, Mode::Indexed] {
        let (_dir, mut native, mut space) = start(mode);
        let visited = trace(&mut native);
        let buffer = native.registers().rdi & !63;
        let base = GuestAddr(buffer - 128 + 64 - 64);
        let stores: Vec<u64> = visited.iter().skip(1).step_by(1).map(|&(pc, _)| pc).collect();
        assert!(!stores.is_empty());
        let watch = Watch { range: GuestRange::new(base, 8), kind: WatchKind::Write };
        space.set_watchpoints(&[watch]).unwrap();
        let store = visited[1].0;
        let times: Vec<u64> = visited.iter().filter(|&&(pc, _)| pc == store).map(|&(_, n)| n + 1).collect();
        for time in times {
            assert_eq!(space.run(None).unwrap(), Exit::Watchpoint { addr: base, pc: GuestAddr(store) });
            assert_eq!(space.retired(), time);
        }
        space.set_watchpoints(&[]).unwrap();
        assert_eq!(space.run(None).unwrap(), Exit::Syscall);
    }
}

#[test]
fn watchpoints_see_calls_and_string_stores() {
    for mode in [Mode::Plain, Mode::Indexed] {
        let (_dir, mut native, mut space) = start(mode);
        let stack = native.registers().rsp;
        let visited = trace(&mut native);
        let end = native.registers().rdi;
        // The return address that the calls push.
        let pushed = Watch { range: GuestRange::new(GuestAddr(stack - 8), 8), kind: WatchKind::Write };
        space.set_watchpoints(&[pushed]).unwrap();
        let call = visited[2].0;
        for _ in 0..10 {
            let exit = space.run(None).unwrap();
            assert_eq!(exit, Exit::Watchpoint { addr: GuestAddr(stack - 8), pc: GuestAddr(call) });
            let at = visited.iter().find(|&&(_, retired)| retired == space.retired()).unwrap();
            assert_eq!(space.registers().rip, at.0);
        }
        let last = Watch { range: GuestRange::new(GuestAddr(end - 32), 4), kind: WatchKind::Write };
        space.set_watchpoints(&[last]).unwrap();
        let Exit::Watchpoint { pc, .. } = space.run(None).unwrap() else { panic!() };
        let at = visited.iter().find(|&&(_, retired)| retired == space.retired()).unwrap();
        assert_eq!(space.registers().rip, at.0);
        assert_eq!(pc.0 + 2, at.0);
    }
}

#[test]
fn modes_change_anywhere() {
    let (_dir, mut native, mut space) = start(Mode::Plain);
    let modes = [Mode::Plain, Mode::Exact, Mode::Indexed, Mode::IndexedExact];
    for turn in 0.. {
        space.set_mode(modes[turn % 4]).unwrap();
        let exit = space.run(Some(1 + turn as u64 % 5)).unwrap();
        native.catch_up(&space);
        native.assert_registers(&space);
        if exit == Exit::Syscall {
            break;
        }
        assert_eq!(exit, Exit::Budget);
    }
    native.assert_memory(&space);
}
