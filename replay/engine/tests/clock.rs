//! The engine against single-stepping: counts, registers, flags and memory.

mod oracle;

use backstory_engine::Mode;
use oracle::{Native, build, compare};

const NOLIBC: &[&str] = &["-static", "-nostdlib", "-O1"];

const LOOP: &str = r"
.globl _start
_start:
    mov $1000, %ecx
    xor %eax, %eax
1:  add %rcx, %rax
    push %rax
    call 2f
    pop %rdx
    dec %ecx
    jnz 1b
    lea buffer(%rip), %rdi
    mov $300, %ecx
    rep stosb
    mov $60, %eax
    xor %edi, %edi
    syscall
2:  imul $3, %rax, %rdx
    mov %rdx, buffer(%rip)
    ret
.bss
buffer: .skip 4096
";

#[track_caller]
fn check(name: &str, source: &str, flags: &[&str], mode: Mode, every: Option<u64>) {
    let dir = tempfile::tempdir().unwrap();
    let program = build(dir.path(), name, source, flags);
    let mut native = Native::start(&program, &[]);
    let mut space = native.image(mode);
    compare(&mut native, &mut space, every);
}

#[test]
fn a_loop_runs_to_its_end() {
    check("loop.s", LOOP, NOLIBC, Mode::Plain, None);
}

#[test]
fn a_loop_stops_anywhere() {
    for mode in [Mode::Plain, Mode::Exact, Mode::Indexed, Mode::IndexedExact] {
        check("loop.s", LOOP, NOLIBC, mode, Some(7));
    }
}
