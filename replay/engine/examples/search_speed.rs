//! What a search costs: programs run with and without one at the busiest place of their hottest loop, in turn.
//!
//! `search_speed [PART-OF-A-NAME...]`: a line for each program, with ratios of run time.

#[path = "../tests/engine/oracle.rs"]
#[expect(dead_code, clippy::unwrap_used, reason = "the oracle serves the tests, too, and is one")]
mod oracle;

use std::time::Instant;

use backstory_engine::{Exit, Mode, Search, Sharing, Space};
use guest::{GuestAddr, Registers};
use oracle::{Native, build};

/// Programs that load the address to search at into r15 and then run; instructions between start and there.
const PROGRAMS: &[(&str, &str)] = &[
    ("dec, jnz", "lea 1f(%rip), %r15\n mov $200000000, %ecx\n1: dec %ecx\n jnz 1b\n"),
    (
        "sum",
        "lea 1f(%rip), %r15\n mov $100000000, %ebx\n1: add %rbx, %rax\n xor %rax, %rdx\n dec %ebx\n jnz 1b\n",
    ),
    (
        "middle of a body",
        "lea 2f(%rip), %r15\n mov $50000000, %ebx\n1: add %rbx, %rax\n xor %rax, %rdx\n rol $3, %rdx\n test $4, %al\n jz 2f\n inc %rsi\n2: mov d(%rip), %rdi\n add %rdi, %r8\n lea 3(%r8), %r8\n dec %ebx\n jnz 1b\n",
    ),
    ("counter in memory", "lea 1f(%rip), %r15\n movq $50000000, d\n1: decq d\n jnz 1b\n"),
    (
        "as without optimizer",
        "lea 1f(%rip), %r15\n mov %rsp, %rbp\n movl $0, -4(%rbp)\n movl $0, -8(%rbp)\n1: mov -4(%rbp), %eax\n add %eax, -8(%rbp)\n addl $1, -4(%rbp)\n cmpl $30000000, -4(%rbp)\n jle 1b\n",
    ),
    (
        "fib",
        "lea fib(%rip), %r15\n mov $33, %edi\n call fib\n jmp 9f\nfib: cmp $2, %rdi\n jb 3f\n push %rdi\n dec %rdi\n call fib\n pop %rdi\n push %rax\n sub $2, %rdi\n call fib\n pop %rcx\n add %rcx, %rax\n ret\n3: mov %rdi, %rax\n ret\n9: nop\n",
    ),
];

fn main() {
    let wanted: Vec<String> = std::env::args().skip(1).collect();
    for &(name, body) in PROGRAMS {
        if !wanted.is_empty() && !wanted.iter().any(|part| name.contains(part)) {
            continue;
        }
        let text = format!(
            ".globl _start\n.text\n_start:\n{body}\n mov $60, %eax\n syscall\n.data\nd: .quad 1, 2, 3, 4\n"
        );
        let dir = std::env::temp_dir();
        let file = format!("search-speed-{}.s", std::process::id());
        let program = build(&dir, &file, &text, &["-static", "-nostdlib", "-Wl,-Tdata=0x600000"]);
        let mut native = Native::start(&program, &[]);
        let mut start = native.image(Mode::Plain);
        while native.registers().r15 == 0 || native.registers().rip != native.registers().r15 {
            native.step();
        }
        // Two passes later, so that what steps has stepped.
        for _ in 0..2 {
            native.step();
            while native.registers().rip != native.registers().r15 {
                native.step();
            }
        }
        let regs = native.registers();
        let other = Registers { r14: 77, ..regs };
        let word = (GuestAddr(0x60_0018), 0);
        let kinds = [
            ("registers", Search { registers: regs, words: vec![word] }),
            ("one register", Search { registers: other, words: vec![] }),
        ];
        let plain = run(&mut start, None);
        print!("{name}: plain {plain:.3} s");
        for (kind, search) in &kinds {
            let (with, without) = (run(&mut start, Some(search)), run(&mut start, None));
            print!("; {kind} {:.2}", with / without);
        }
        println!();
        for path in [program.clone(), program.with_extension("s")] {
            let _ = std::fs::remove_file(path);
        }
    }
}

/// Seconds of a run to its end.
fn run(start: &mut Space, search: Option<&Search>) -> f64 {
    let mut best = f64::MAX;
    for _ in 0..3 {
        let mut space = start.fork(Sharing::Copied).expect("it is copied");
        space.set_search(search).expect("few words");
        let begin = Instant::now();
        let exit = space.run(None).expect("the engine runs");
        assert_eq!(exit, Exit::Syscall);
        best = best.min(begin.elapsed().as_secs_f64());
    }
    best
}
