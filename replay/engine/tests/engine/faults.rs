//! Faults at instructions of every kind show the guest's state at that instruction, as single-stepping does.

use crate::oracle::{Native, build};
use backstory_engine::{Exit, Fault, Mode, has_rtm};
use guest::{GuestAddr, GuestMemory};

/// A program whose instruction at `bad` faults.
#[track_caller]
fn check(body: &str, signo: i32, code: i32, addr: impl Fn(&guest::Registers) -> u64) {
    check_in(&[Mode::Plain, Mode::Exact, Mode::Indexed], body, signo, code, addr);
}

#[track_caller]
fn check_in(modes: &[Mode], body: &str, signo: i32, code: i32, addr: impl Fn(&guest::Registers) -> u64) {
    let source = format!(
        ".globl _start\n_start:\n mov $5, %ecx\n xor %eax, %eax\n1: add %rcx, %rax\n dec %ecx\n jnz 1b\n{body}\n mov $60, %eax\n syscall\n.section .rodata\nfixed: .quad 1\n.bss\n.balign 4096\nbuffer: .skip 8192\n"
    );
    let dir = tempfile::tempdir().unwrap();
    let program = build(dir.path(), "fault.s", &source, &["-static", "-nostdlib"]);
    for &mode in modes {
        let mut native = Native::start(&program, &[]);
        let mut space = native.image(mode);
        let exit = space.run(None).unwrap();
        assert!(matches!(exit, Exit::Fault(_)), "{exit:?} in {mode:?}: {body}");
        native.catch_up(&space);
        let before = native.registers();
        let Exit::Fault(fault) = exit else { panic!("{exit:?} in {mode:?}") };
        let expected = Fault { signo, code, addr: GuestAddr(addr(&before)), flags_exact: fault.flags_exact };
        assert_eq!(fault, expected, "{mode:?}");
        if signo != libc::SIGTRAP {
            assert_eq!(native.step(), Some(signo));
        }
        let (ours, theirs) = (space.registers(), native.registers());
        let flags = if fault.flags_exact { 0 } else { 0x8d5 };
        let clean = |regs: guest::Registers| guest::Registers {
            eflags: (regs.eflags & !0x10000) | flags,
            orig_rax: 0,
            ..regs
        };
        assert_eq!(clean(ours), clean(theirs), "{mode:?}");
        assert!(fault.flags_exact || mode != Mode::Exact);
        native.assert_memory(&space);
    }
}

#[test]
fn loads_and_stores() {
    check("mov $0x12345678, %rdx\n mov (%rdx), %rbx", libc::SIGSEGV, 1, |_| 0x1234_5678);
    check("mov %rax, fixed(%rip)", libc::SIGSEGV, 2, |_| fixed());
    check("push %rax\n mov $0x1234567800000000, %rdx\n mov %rax, (%rdx)", libc::SIGSEGV, 0x80, |_| 0);
    check("xor %edx, %edx\n call *(%rdx)", libc::SIGSEGV, 1, |_| 0);
    check("mov $0x77000, %esp\n call 1f\n1:", libc::SIGSEGV, 1, |_| 0x76ff8);
    check("mov $0x77000, %esp\n ret", libc::SIGSEGV, 1, |_| 0x77000);
    check("mov $0x1234567800000000, %rax\n jmp *%rax", libc::SIGSEGV, 0x80, |_| 0);
    check("mov $0x1234567800000000, %rax\n call *%rax", libc::SIGSEGV, 0x80, |_| 0);
    check("mov $0x1234567800000000, %rax\n push %rax\n ret", libc::SIGSEGV, 0x80, |_| 0);
    check("mov $0x77000, %eax\n jmp *%rax", libc::SIGSEGV, 1, |_| 0x77000);
    check("mov $0xffffffff81000000, %rax\n jmp *%rax", libc::SIGSEGV, 1, |_| 0xffff_ffff_8100_0000);
    check("lea fixed(%rip), %rax\n jmp *%rax", libc::SIGSEGV, 2, |_| fixed());
}

/// Where the linker puts the read-only word: found by running a program that loads its address.
fn fixed() -> u64 {
    0x402000
}

#[test]
fn arithmetic_and_opcodes() {
    check("xor %ecx, %ecx\n div %ecx", libc::SIGFPE, 1, |regs| regs.rip);
    check("mov $0x80000000, %eax\n cdq\n mov $-1, %ecx\n idiv %ecx", libc::SIGFPE, 1, |regs| regs.rip);
    check("add $7, %rax\n ud2", libc::SIGILL, 2, |regs| regs.rip);
    check("hlt", libc::SIGSEGV, 0x80, |_| 0);
}

#[test]
fn transactions_where_there_are_none() {
    let leaf_7 = std::arch::x86_64::__cpuid_count(7, 0);
    if has_rtm([leaf_7.eax, leaf_7.ebx, leaf_7.ecx, leaf_7.edx]) {
        println!("skipped: this processor has transactional memory");
        return;
    }
    check("add $7, %rax\n xbegin 2f\n2:", libc::SIGILL, 2, |regs| regs.rip);
    for code in ["xtest", "xend", "xabort $7"] {
        check(&format!("add $7, %rax\n {code}"), libc::SIGILL, 2, |regs| regs.rip);
    }
}

/// What turns alignment checks on. Not by `pushfq`: under single-stepping it shows the trap flag.
const ALIGNED: &str = "pushq $0x40202\n popfq\n";

#[test]
fn alignment_is_checked_when_the_guest_wants_it() {
    let modes = [Mode::Plain, Mode::Exact, Mode::Indexed, Mode::IndexedExact];
    let aligned = "lea buffer(%rip), %rdi\n mov %rax, 8(%rdi)\n call 1f\n jmp 2f\n1: lea 3f(%rip), %rcx\n jmp *%rcx\n3: ret\n2:";
    check_in(&modes, &format!("{ALIGNED}{aligned}\n mov %rax, 1(%rdi)"), libc::SIGBUS, 1, |_| 0);
    check_in(&modes, &format!("{ALIGNED}{aligned}\n mov 14(%rdi), %ecx"), libc::SIGBUS, 1, |_| 0);
    let off = "pushq $0x202\n popfq\n mov %rax, 1(%rdi)\n xor %edx, %edx\n div %edx";
    check_in(&modes, &format!("{ALIGNED}{aligned}\n{off}"), libc::SIGFPE, 1, |regs| regs.rip);
}

#[test]
fn the_alignment_flag_is_the_guests() {
    let source = format!(".globl _start\n_start: {ALIGNED} call 1f\n pushfq\n pop %rbx\n ud2\n1: ret\n");
    let dir = tempfile::tempdir().unwrap();
    let program = build(dir.path(), "flag.s", &source, &["-static", "-nostdlib"]);
    for mode in [Mode::Plain, Mode::Exact, Mode::Indexed, Mode::IndexedExact] {
        let mut space = Native::start(&program, &[]).image(mode);
        assert!(
            matches!(space.run(None).unwrap(), Exit::Fault(Fault { signo: libc::SIGILL, .. })),
            "{mode:?}"
        );
        assert_eq!(
            (space.registers().rbx, space.registers().eflags & 0x40000),
            (0x40202, 0x40000),
            "{mode:?}"
        );
    }
}

#[test]
fn a_string_store_faults_in_the_middle() {
    check("lea buffer+8000(%rip), %rdi\n mov $1000, %ecx\n cld\n rep stosb", libc::SIGSEGV, 1, |regs| {
        regs.rdi.next_multiple_of(4096)
    });
}

#[test]
fn a_fault_can_be_repaired_and_goes_on() {
    let source = ".globl _start\n_start:\n mov $0x11000000, %edi\n mov $3, %ecx\n1: mov %rcx, (%rdi)\n add $8, %rdi\n loop 1b\n mov $60, %eax\n syscall\n";
    let dir = tempfile::tempdir().unwrap();
    let program = build(dir.path(), "repair.s", source, &["-static", "-nostdlib"]);
    let native = Native::start(&program, &[]);
    let mut space = native.image(Mode::Plain);
    assert!(matches!(space.run(None).unwrap(), Exit::Fault(_)));
    let before = space.retired();
    let range = guest::GuestRange::new(GuestAddr(0x1100_0000), 4096);
    let request = backstory_engine::MapRequest {
        range,
        prot: guest::Prot::from_bits(3),
        shared: false,
        grows_down: false,
        no_reserve: false,
        source: backstory_engine::MapSource::Zero,
    };
    space.map(&request).unwrap();
    assert_eq!(space.run(None).unwrap(), Exit::Syscall);
    assert_eq!(space.retired(), before + 10);
    assert_eq!(space.read_u64(GuestAddr(0x1100_0010)).unwrap(), 1);
}
