//! The count of conditional branches against single-stepping: at every exit, in every mode, through faults, searches and copies.

use backstory_engine::{Branches, Exit, Mode, Search, Sharing, Space};

use crate::oracle::{Native, build, compare};

const MODES: [Mode; 4] = [Mode::Plain, Mode::Exact, Mode::Indexed, Mode::IndexedExact];
const COUNTED: [Branches; 3] = [Branches::Uncounted, Branches::Jcc, Branches::All];

/// Branches of every kind, taken and not, near and far, forward and back, into and out of blocks that do not use rcx.
const ALL_KINDS: &str = r"
.globl _start
_start:
    mov $60, %r12d
    lea returns(%rip), %r13
outer:
    mov %r12d, %ecx
    and $7, %ecx
1:  jrcxz 2f
    test $1, %cl
    jz 3f
    add $5, %rax
3:  loop 1b
2:  jecxz 4f
    ud2
4:  mov $5, %ecx
    xor %eax, %eax
5:  inc %eax
    cmp $3, %eax
    loopne 5b
    mov $4, %ecx
6:  cmp %eax, %eax
    loope 6b
    mov %r12, %rbx
    and $3, %ebx
    cmp $1, %ebx
    jb 7f
    je 8f
    cmp $2, %ebx
    je 9f
    jo far
    jno far
7:  call *%r13
8:  nop
9:  mov $10, %edx
10: dec %edx
    jnz 10b
    test %rbx, %rbx
    js far
    push %rbx
    pop %rsi
far:
    dec %r12d
    {disp32} jnz outer
    mov $39, %eax
    syscall
    mov $60, %eax
    xor %edi, %edi
    syscall
returns:
    test $4, %r12b
    jne 11f
    lea 12f(%rip), %rdi
    jmp *%rdi
11: ret
12: js far
    ret
";

/// Faults on the longest path and beside it; each is answered by making the address right.
const FAULTS: &str = r"
.globl _start
_start:
    mov $50, %r12d
1:  xor %esi, %esi
    test $1, %r12b
    jz 2f
    jc 2f
    test $2, %r12b
    mov (%rsi), %rax
    jnz 3f
2:  nop
    jo 3f
    mov %rax, (%rsi)
3:  dec %r12d
    jnz 1b
    mov $60, %eax
    xor %edi, %edi
    syscall
.bss
buffer: .skip 64
";

const NOLIBC: &[&str] = &["-static", "-nostdlib", "-O1"];

fn native(source: &str) -> Native {
    let dir = tempfile::tempdir().unwrap();
    let native = Native::start(&build(dir.path(), "branches.s", source, NOLIBC), &[]);
    native.hide_vdso();
    native
}

#[test]
fn branches_of_every_kind_are_counted_wherever_it_stops() {
    for mode in MODES {
        for counted in COUNTED {
            for every in [None, Some(1), Some(9), Some(300)] {
                let mut native = native(ALL_KINDS);
                let mut space = native.image_counting(mode, counted);
                compare(&mut native, &mut space, every);
                assert!(native.jccs > 900 && native.loops > 800, "{} {}", native.jccs, native.loops);
            }
        }
    }
}

#[test]
fn faults_count_what_came_before() {
    for mode in MODES {
        let mut native = native(FAULTS);
        let mut space = native.image_counting(mode, Branches::All);
        let mut faults = 0;
        loop {
            let exit = space.run(None).unwrap();
            native.catch_up(&space);
            native.assert_branches(&space);
            match exit {
                Exit::Fault(fault) => {
                    assert_eq!((fault.signo, native.step()), (libc::SIGSEGV, Some(libc::SIGSEGV)));
                    let mut regs = native.registers();
                    regs.rsi = regs.rsp - 64;
                    native.stopped.as_mut().unwrap().set_registers(&regs).unwrap();
                    space.set_registers(&regs);
                    faults += 1;
                }
                Exit::LogFull => drop(space.drain_log()),
                Exit::Syscall => break,
                other => panic!("{other:?}"),
            }
        }
        assert!(faults > 30, "{faults}");
    }
}

#[test]
fn a_search_and_a_copy_go_on_counting() {
    for mode in MODES {
        let mut native = native(ALL_KINDS);
        let mut space = native.image_counting(mode, Branches::All);
        // Somewhere inside, at an instruction that is run often: its state now, but for one register.
        space.run(Some(400)).unwrap();
        let mut registers = space.registers();
        registers.rbp ^= 1;
        space.set_search(Some(&Search { registers, words: Vec::new() })).unwrap();
        space.run(Some(200)).unwrap();
        native.catch_up(&space);
        native.assert_branches(&space);
        let mut copy = space.fork(Sharing::Copied).unwrap();
        assert_eq!(copy.branches(), space.branches());
        copy.set_search(Some(&Search { registers, words: Vec::new() })).unwrap();
        // The original goes on; what it counts is not the copy's.
        space.run(Some(300)).unwrap();
        compare(&mut native, &mut copy, Some(40));
    }
}

/// As a search for a hardware counter's count does it.
#[test]
fn so_many_branches_are_come_to_by_few_runs() {
    let mut native = native(ALL_KINDS);
    let mut space = native.image_counting(Mode::Plain, Branches::Jcc);
    let (target, mut runs) = (900, 0);
    while space.branches() < target {
        let missing = target - space.branches();
        assert!(matches!(space.run(Some(missing)).unwrap(), Exit::Budget));
        runs += 1;
    }
    native.catch_up(&space);
    native.assert_branches(&space);
    assert_eq!(native.jccs, target);
    assert!(runs < 60, "{runs}");
    assert_stopped_behind_a_branch(&space, &mut native);
}

/// The first instant with so many branches is just behind the last of them.
#[track_caller]
fn assert_stopped_behind_a_branch(space: &Space, native: &mut Native) {
    let steps = space.retired();
    let mut again = self::native(ALL_KINDS);
    while again.retired < steps - 1 {
        assert_eq!(again.step(), None);
    }
    assert_eq!(again.jccs, native.jccs - 1);
}
