//! The engine against single-stepping: counts, registers, flags and memory.

use crate::oracle::{Native, build, compare};
use backstory_engine::Mode;

const NOLIBC: &[&str] = &["-static", "-nostdlib", "-O1"];
const STATIC: &[&str] = &["-static", "-O1"];
const MODES: [Mode; 4] = [Mode::Plain, Mode::Exact, Mode::Indexed, Mode::IndexedExact];

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
    lea buffer(%rip), %rsi
    mov $100, %ecx
    rep movsq
    mov $60, %eax
    xor %edi, %edi
    syscall
2:  imul $3, %rax, %rdx
    mov %rdx, buffer(%rip)
    ret
.bss
buffer: .skip 4096
";

const LIBC: &str = r#"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
static int by(const void *a, const void *b) { return *(int *)a - *(int *)b; }
typedef int (*op)(int, int);
static int add(int a, int b) { return a + b; }
static int mul(int a, int b) { return a * b; }
static int sel(int n) { switch (n) { case 0: return 5; case 1: return 7; case 2: return 1; case 3: return 9; case 4: return 4; default: return n; } }
int main(void) {
    int v[200]; op ops[2] = { add, mul }; double d = 1; char text[400] = "";
    for (int i = 0; i < 200; i++) v[i] = ops[i & 1](i, 37) ^ sel(i % 7);
    qsort(v, 200, sizeof *v, by);
    for (int i = 0; i < 50; i++) { d = (d + v[i]) * 0.75 + 0.5; snprintf(text + strlen(text), 390 - strlen(text), "%d,", v[i] % 10); }
    char *p = strdup(text); for (char *q = p; *q; q++) *q ^= 1;
    printf("%s %f %lu\n", p, d, strlen(p)); free(p);
    return 0;
}
"#;

/// Turns alignment checks on and off again.
const ALIGNED: &str = r"
.globl _start
_start:
    mov $40, %ebx
    mov $3f, %r14
1:  pushq $0x40206
    popfq
    call *%r14
    mov $39, %eax
    syscall
    mov %rbx, buffer(%rip)
    pushq $0x257
    popfq
    mov %rbx, buffer+3(%rip)
    dec %ebx
    jnz 1b
    mov $60, %eax
    xor %edi, %edi
    syscall
3:  lea 4f(%rip), %rdx
    jmp *%rdx
4:  ret
.bss
.balign 8
buffer: .skip 4096
";

#[track_caller]
fn check(name: &str, source: &str, flags: &[&str], mode: Mode, every: Option<u64>) {
    let dir = tempfile::tempdir().unwrap();
    let program = build(dir.path(), name, source, flags);
    let mut native = Native::start(&program, &[]);
    native.hide_vdso();
    let mut space = native.image(mode);
    compare(&mut native, &mut space, every);
}

#[test]
fn a_loop_runs_to_its_end() {
    check("loop.s", LOOP, NOLIBC, Mode::Plain, None);
}

#[test]
fn a_loop_stops_anywhere() {
    for mode in MODES {
        check("loop.s", LOOP, NOLIBC, mode, Some(7));
    }
}

#[test]
fn a_static_program_stops_anywhere() {
    for mode in MODES {
        check("libc.c", LIBC, STATIC, mode, Some(150));
    }
}

#[test]
fn alignment_checks_come_and_go() {
    for mode in MODES {
        for every in [None, Some(5), Some(60)] {
            check("aligned.s", ALIGNED, NOLIBC, mode, every);
        }
    }
}
