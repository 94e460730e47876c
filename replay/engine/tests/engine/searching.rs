//! Searching for a state: reported are exactly the instants at which a single-stepped run has it.

use std::fmt::Write;

use backstory_engine::{Exit, MapRequest, MapSource, Mode, RunError, Search, Sharing, Space, Trapped};
use guest::{GuestAddr, GuestMemory, GuestRange, Prot, Registers};

use crate::oracle::{Native, build};

const MODES: [Mode; 4] = [Mode::Plain, Mode::Exact, Mode::Indexed, Mode::IndexedExact];

/// Where the data of the programs lies.
const DATA: u64 = 0x60_0000;

/// Before one instruction of a native run.
struct Instant {
    regs: Registers,
    /// What is at [`Trace::places`].
    words: Vec<u64>,
}

/// A native run, single-stepped.
struct Trace {
    instants: Vec<Instant>,
    places: Vec<GuestAddr>,
    /// The program before its first instruction.
    start: Space,
}

impl Trace {
    fn of(name: &str, source: &str) -> Self {
        Self::of_file(&format!("{name}.s"), source, "-static")
    }

    fn of_file(file: &str, source: &str, flag: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let data = format!("-Wl,-Tdata={DATA:#x}");
        let flags = ["-static", "-nostdlib", "-fno-stack-protector", "-fno-pie", "-no-pie", &data, flag];
        let program = build(dir.path(), file, source, &flags);
        let mut native = Native::start(&program, &[]);
        let start = native.image(Mode::Plain);
        let stack = native.registers().rsp;
        let places = [DATA, DATA + 8, DATA + 13, DATA + 0x18, stack - 8, stack - 16, stack - 27];
        let places = places.map(GuestAddr).to_vec();
        let mut instants = Vec::new();
        loop {
            let mut regs = native.registers();
            regs.eflags &= !0x10000;
            let words = places.iter().map(|&at| native.memory.read_u64(at).unwrap()).collect();
            let ends = regs.rax == 60 && is_syscall(&native, regs.rip);
            instants.push(Instant { regs, words });
            if ends {
                break;
            }
            assert_eq!(native.step(), None);
        }
        Self { instants, places, start }
    }

    /// The state of an instant: the words at the places in `mask` with it.
    fn state(&self, at: usize, mask: u64) -> Search {
        let Instant { regs, words } = &self.instants[at];
        let words = self.places.iter().copied().zip(words.iter().copied()).enumerate();
        let words = words.filter(|(bit, _)| mask >> bit & 1 != 0).map(|(_, word)| word).collect();
        Search { registers: *regs, words }
    }

    /// The instants at which a state holds.
    fn holding(&self, search: &Search) -> Vec<usize> {
        let matches = |instant: &Instant| {
            let key = |regs: &Registers| {
                let mut words = regs.to_words();
                let flags = Registers::NAMES.iter().position(|&name| name == "eflags").unwrap();
                words[flags] &= 0xCD5;
                words
            };
            let mut words = self.places.iter().zip(&instant.words);
            key(&instant.regs) == key(&search.registers)
                && search
                    .words
                    .iter()
                    .all(|(at, value)| words.any(|(place, word)| place == at && word == value))
        };
        (0..self.instants.len()).filter(|&at| matches(&self.instants[at])).collect()
    }

    /// Runs a copy with a search set, in pieces of up to `most` instructions; the instants reported.
    #[track_caller]
    fn reported(
        &self,
        space: &mut Space,
        search: &Search,
        mode: Mode,
        most: u64,
        random: &mut Random,
    ) -> Vec<usize> {
        space.set_mode(mode).unwrap();
        space.set_search(Some(search)).unwrap();
        let mut found = Vec::new();
        let mut performed = 0;
        loop {
            let at = space.retired() as usize + performed;
            // Where a run begins is asked about.
            if space.is_candidate() && found.last() != Some(&at) {
                found.push(at);
            }
            let budget = (most > 0).then(|| 1 + random.below(most));
            let exit = space.run(budget).unwrap();
            let at = space.retired() as usize + performed;
            let now =
                Registers { eflags: space.registers().eflags & !0x10000, orig_rax: 0, ..space.registers() };
            if !matches!(exit, Exit::LogFull) {
                assert_eq!(now, self.instants[at].regs, "{exit:?} at instant {at}");
            }
            match exit {
                Exit::Candidate => {
                    assert_ne!(found.last(), Some(&at), "reported twice");
                    found.push(at);
                }
                Exit::Budget => {}
                Exit::LogFull => drop(space.drain_log()),
                Exit::Syscall if at + 1 == self.instants.len() => return found,
                Exit::Syscall => {
                    space.set_registers(&self.instants[at + 1].regs);
                    performed += 1;
                }
                other => panic!("{other:?} at {:#x}", now.rip),
            }
        }
    }
}

fn is_syscall(native: &Native, pc: u64) -> bool {
    let mut bytes = [0; 2];
    native.memory.read_forced(GuestAddr(pc), &mut bytes);
    bytes == [0x0f, 0x05]
}

struct Random(u64);

impl Random {
    fn below(&mut self, most: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % most
    }
}

/// Searches for `targets` random instants of a program in every mode.
#[track_caller]
fn check(name: &str, source: &str, targets: usize) {
    check_trace(name, Trace::of(name, source), targets);
}

#[track_caller]
fn check_trace(name: &str, mut trace: Trace, targets: usize) {
    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    let (mut ambiguous, mut reports) = (0, 0);
    for target in 0..targets {
        let at = random.below(trace.instants.len() as u64) as usize;
        let mask = match random.below(3) {
            0 => 0,
            1 => random.below(1 << trace.places.len()),
            _ => u64::MAX,
        };
        let search = trace.state(at, mask);
        let expected = trace.holding(&search);
        assert!(expected.contains(&at));
        let mode = MODES[target % 4];
        let most = [0, 0, 40, 3000][random.below(4) as usize];
        let mut space = trace.start.fork(Sharing::Copied).unwrap();
        let found = trace.reported(&mut space, &search, mode, most, &mut random);
        let pc = search.registers.rip;
        assert_eq!(found, expected, "{name}: pc {pc:#x}, {mode:?}, budget {most}, mask {mask:#x}");
        ambiguous += usize::from(expected.len() > 1);
        reports += expected.len();
    }
    println!(
        "{name}: {} instants, {reports} reports, {ambiguous} states more than once",
        trace.instants.len()
    );
}

/// A program around a body; the words at `DATA` are its own.
fn program(body: &str) -> String {
    // A program that writes its own code.
    let section = if body.contains("code:") { ".section .code, \"awx\"" } else { ".text" };
    format!(
        ".globl _start\n{section}\n_start:\n{body}\n    mov $60, %eax\n    xor %edi, %edi\n    syscall\n\
         .data\nd: .quad 40, 1, 2, 3, 4, 5, 6, 7\n"
    )
}

#[test]
fn a_tight_loop() {
    check("tight", &program("mov $700, %ecx\n1: dec %ecx\n jnz 1b\n"), 60);
    check("tight2", &program("mov $700, %ecx\n xor %eax,%eax\n1: add %rcx, %rax\n inc %rdx\n loop 1b\n"), 60);
}

#[test]
fn a_counter_in_memory() {
    let body = "movq $500, d\n xor %eax, %eax\n1: nop\n decq d\n mov $0, %eax\n jnz 1b\n";
    check("memory", &program(body), 80);
}

#[test]
fn states_that_differ_in_flags_alone() {
    let body = "movq $300, d\n xor %eax, %eax\n1: xorq $1, d+8\n testq $1, d+8\n nop\n lea (%rax), %rax\n nop\n\
                decq d\n jnz 1b\n std\n nop\n cld\n nop\n add $0x7f, %al\n add $1, %al\n nop\n";
    check("flags", &program(body), 80);
}

#[test]
fn recursion() {
    let body = "mov $11, %edi\n call fib\n jmp 9f\nfib: cmp $2, %rdi\n jb 3f\n push %rdi\n dec %rdi\n call fib\n\
                pop %rdi\n push %rax\n sub $2, %rdi\n call fib\n pop %rcx\n add %rcx, %rax\n ret\n\
                3: mov %rdi, %rax\n ret\n9: nop\n";
    check("fib", &program(body), 80);
}

#[test]
fn indirect_branches_and_system_calls() {
    let body = "mov $200, %r12d\n1: mov %r12, %rax\n and $3, %eax\n jmp *2f(,%rax,8)\n.balign 8\n\
                2: .quad 3f, 4f, 5f, 6f\n3: inc %rbx\n4: mov $39, %eax\n syscall\n nop\n jmp 6f\n ud2\n\
                5: lea 7f(%rip), %rdx\n call *%rdx\n6: dec %r12d\n jnz 1b\n jmp 8f\n7: xor %rbx, %r13\n ret $0\n8: nop\n";
    check("indirect", &program(body), 120);
}

#[test]
fn string_instructions_and_calls_that_are_run_through() {
    let body = "mov $60, %ebx\n1: lea d(%rip), %rdi\n mov $5, %ecx\n call 2f\n cmp $30, %ebx\n je 3f\n\
                4: dec %ebx\n jnz 1b\n jmp 5f\n2: cld\n rep stosb\n ret\n3: push $7\n pop %rax\n jmp 4b\n5: nop\n";
    check("string", &program(body), 80);
}

/// Loops in loops of random instructions.
fn generated(random: &mut Random) -> String {
    let mut text = String::new();
    let registers = ["rax", "rcx", "rdx", "rsi", "rdi", "r8", "r9", "r13", "rbx"];
    let outer = 3 + random.below(9);
    write!(text, " mov ${outer}, %r14d\n1:\n").unwrap();
    for label in 10..10 + 2 + random.below(3) {
        let inner = 2 + random.below(14);
        write!(text, " movq ${inner}, d+48\n{label}:\n").unwrap();
        for _ in 0..1 + random.below(12) {
            let [a, b] = [0, 0].map(|_| registers[random.below(9) as usize]);
            let word = 8 * random.below(6);
            let n = random.below(5);
            let line = match random.below(14) {
                0 => format!("add %{a}, %{b}"),
                1 => format!("mov ${n}, %{a}"),
                2 => format!("incq d+{word}"),
                3 => format!("xor %{a}, %{a}"),
                4 => format!("and ${n}, %{a}"),
                5 => format!("mov d+{word}, %{a}"),
                6 => format!("mov %{a}, d+{word}"),
                7 => format!("push %{a}\n pop %{b}"),
                8 => format!("cmp %{a}, %{b}\n jae 70f\n inc %{a}\n70:"),
                9 => "call 90f".to_owned(),
                10 => format!("lea {n}(%{a},%{b}), %{a}"),
                11 => format!("test $1, %{a}\n jz 71f\n nop\n jmp 72f\n71: lea (%{b}), %{b}\n72:"),
                12 => "lea 73f(%rip), %rbp\n jmp *%rbp\n73:".to_owned(),
                _ => "nop".to_owned(),
            };
            writeln!(text, " {line}").unwrap();
        }
        write!(text, " decq d+48\n jnz {label}b\n").unwrap();
    }
    text.push_str(" dec %r14d\n jnz 1b\n jmp 99f\n90: incq d\n adc %rcx, %r8\n ret\n99: nop\n");
    text
}

#[test]
fn generated_programs() {
    let mut random = Random(0x1234_5678_9abc_def1);
    for number in 0..12 {
        check(&format!("generated{number}"), &program(&generated(&mut random)), 60);
    }
}

#[test]
fn code_that_changes() {
    let body = "movq $150, d\n mov $0x200000, %ebx\n1: incl code+1(%rip)\n nop\ncode: mov $5, %eax\n add %eax, %edx\n\
                decq d\n jnz 1b\n";
    check("written", &program(body), 40);
    let body = "movq $6, d\n1: mov $1000, %ecx\n2: nop\n xor %eax, %eax\n nop\n lea (%rdx), %rdx\ncode: mov $5, %edx\n\
                dec %ecx\n jnz 2b\n incb code+1(%rip)\n decq d\n jnz 1b\n";
    check("rewritten", &program(body), 40);
}

/// A loop that passes `2:` with the same registers and flags 40 times, between system calls.
const PASSES: &str = "movq $40, d\n1: mov $39, %eax\n syscall\n xor %ecx, %ecx\n xor %r11d, %r11d\n xor %eax, %eax\n\
                      lea 2f(%rip), %r15\n2: mov (%rsp), %rdx\n mov d, %rdx\n xor %edx, %edx\n decq d\n jnz 1b\n";

/// [`PASSES`], and the instants at which it passes.
fn passes() -> (Trace, Vec<usize>) {
    let trace = Trace::of("passes", &program(PASSES));
    let at = |instant: &Instant| instant.regs.rip == instant.regs.r15;
    let found: Vec<usize> = (0..trace.instants.len()).filter(|&i| at(&trace.instants[i])).collect();
    assert_eq!(trace.holding(&trace.state(found[20], 0)), found);
    (trace, found)
}

/// Runs to the next system call and past it; what was told before, with the counts.
fn to_call(space: &mut Space) -> Vec<(Exit, u64)> {
    let mut told = Vec::new();
    loop {
        match space.run(None).unwrap() {
            Exit::Syscall => break,
            exit => told.push((exit, space.retired())),
        }
    }
    let regs = space.registers();
    space.set_registers(&Registers { rip: regs.rip + 2, rax: 5, ..regs });
    told
}

#[test]
fn words_that_cannot_be_read() {
    let (mut trace, passes) = passes();
    let page = GuestRange::new(GuestAddr(0x61_0000), 0x1000);
    let map = MapRequest {
        range: page,
        prot: Prot::from_bits(3),
        shared: false,
        grows_down: false,
        no_reserve: false,
        source: MapSource::Zero,
    };
    let state = trace.state(passes[20], 0);
    let here = (GuestAddr(DATA + 0x18), 3);
    let there = (page.start.wrapping_add(16), 0);
    for words in [vec![there], vec![here, there], vec![there, here]] {
        let mut space = trace.start.fork(Sharing::Copied).unwrap();
        space.map(&map).unwrap();
        space.set_search(Some(&Search { words, ..state.clone() })).unwrap();
        to_call(&mut space);
        to_call(&mut space);
        let told: Vec<usize> = (0..6)
            .map(|pass| {
                match pass {
                    1 => space.unmap(page).unwrap(),
                    3 => space.map(&map).unwrap(),
                    4 => space.protect(page, Prot::from_bits(0)).unwrap(),
                    5 => space.write(page.start, &[1; 32]).unwrap(),
                    _ => {}
                }
                let told = to_call(&mut space);
                assert!(told.iter().all(|(exit, _)| *exit == Exit::Candidate), "{told:?}");
                told.len()
            })
            .collect();
        assert_eq!(told, [1, 0, 0, 1, 1, 0]);
    }
}

#[test]
fn the_next_word_at_the_same_place_costs_no_translation() {
    let (mut trace, passes) = passes();
    let mut space = trace.start.fork(Sharing::Copied).unwrap();
    let mut state = trace.state(passes[0], 1);
    space.set_search(Some(&state)).unwrap();
    let mut blocks = 0;
    for (round, &pass) in passes[..30].iter().enumerate() {
        state.words[0].1 = trace.instants[pass].words[0];
        space.set_search(Some(&state)).unwrap();
        let mut told = Vec::new();
        while told.is_empty() {
            told = to_call(&mut space);
        }
        assert_eq!(told, [(Exit::Candidate, told[0].1)]);
        assert_eq!(told[0].1 as usize + round + 1, pass);
        if round == 4 {
            blocks = space.blocks().len();
        }
    }
    assert_eq!(space.blocks().len(), blocks);
    space.set_search(None).unwrap();
    assert_eq!(space.run(None).unwrap(), Exit::Syscall);
    assert!(space.blocks().len() <= blocks + 8, "other code was kept");
}

#[test]
fn breakpoints_at_the_same_instruction() {
    let (mut trace, passes) = passes();
    let mut space = trace.start.fork(Sharing::Copied).unwrap();
    let state = trace.state(passes[2], 1);
    space.set_search(Some(&state)).unwrap();
    space.set_breakpoints(&[state.registers.pc()]);
    to_call(&mut space);
    let told: Vec<Exit> = (0..6).flat_map(|_| to_call(&mut space)).map(|(exit, _)| exit).collect();
    use Exit::{Breakpoint, Candidate};
    assert_eq!(told, [Breakpoint, Breakpoint, Candidate, Breakpoint, Breakpoint, Breakpoint]);
    space.set_breakpoints(&[]);
    space.set_search(Some(&trace.state(passes[9], 1))).unwrap();
    let told: Vec<usize> = (0..6).map(|_| to_call(&mut space).len()).collect();
    assert_eq!(told, [0, 0, 0, 1, 0, 0]);
}

#[test]
fn a_copy_does_not_search() {
    let (mut trace, passes) = passes();
    let mut space = trace.start.fork(Sharing::Copied).unwrap();
    space.set_search(Some(&trace.state(passes[2], 0))).unwrap();
    for _ in 0..4 {
        to_call(&mut space);
    }
    let mut copy = space.fork(Sharing::Copied).unwrap();
    assert_eq!(to_call(&mut copy), []);
    assert_eq!(to_call(&mut space).len(), 1);
    copy.set_search(Some(&trace.state(passes[5], 1))).unwrap();
    assert_eq!((to_call(&mut copy).len(), to_call(&mut copy).len()), (0, 1));
    assert_eq!(to_call(&mut space).len(), 1);
}

#[test]
fn instructions_that_stop_by_themselves() {
    let body = "mov $3, %ebx\n1: lea 2f(%rip), %r15\n2: rdtsc\n lea 3f(%rip), %r15\n3: mov (%rbp), %rax\n dec %ebx\n jnz 1b\n";
    let dir = tempfile::tempdir().unwrap();
    let program = build(dir.path(), "stops.s", &program(body), &["-static", "-nostdlib"]);
    let native = Native::start(&program, &[]);
    let mut space = native.image(Mode::Plain);
    assert_eq!(space.run(None).unwrap(), Exit::Instruction(Trapped::Rdtsc));
    let regs = space.registers();
    let after = Registers { rip: regs.rip + 2, rbp: 0x7_0000, ..regs };
    let mut space = native.image(Mode::Plain);
    space.set_search(Some(&Search { registers: regs, words: vec![] })).unwrap();
    assert_eq!(space.run(None).unwrap(), Exit::Candidate);
    assert_eq!(space.run(None).unwrap(), Exit::Instruction(Trapped::Rdtsc));
    space.set_registers(&after);
    let third = Registers { r15: regs.r15 + 9, rip: regs.r15 + 9, ..after };
    space.set_search(Some(&Search { registers: third, words: vec![] })).unwrap();
    assert_eq!(space.run(None).unwrap(), Exit::Candidate);
    let retired = space.retired();
    let Exit::Fault(fault) = space.run(None).unwrap() else { panic!("it faults") };
    assert_eq!((fault.signo, fault.addr.0, space.retired()), (libc::SIGSEGV, 0x7_0000, retired));
    assert!(matches!(space.run(None).unwrap(), Exit::Fault(_)));
    assert!(space.is_candidate());
    let too_many = Search { registers: regs, words: vec![(GuestAddr(DATA), 0); 17] };
    assert!(matches!(space.set_search(Some(&too_many)), Err(RunError::TooManyWords { count: 17 })));
}

const COMPILED: &str = r#"
long d[8] = { 9, 1, 2, 3 };
static int v[64]; static double sum; static char text[64];
static int less(int a, int b) { return a < b; }
static int (*volatile order)(int, int) = less;
static void sort(int *a, int n) {
    if (n < 2) return;
    int p = a[n / 2], i = 0, j = n - 1;
    for (;; i++, j--) { while (order(a[i], p)) i++; while (order(p, a[j])) j--; if (i >= j) break; int t = a[i]; a[i] = a[j]; a[j] = t; }
    sort(a, i); sort(a + i, n - i);
}
static int pick(int n) { switch (n & 7) { case 0: return 5; case 1: return 7; case 2: return 1; case 3: return 9; case 4: return 4; default: return n; } }
__attribute__((force_align_arg_pointer)) void _start(void) {
    for (int round = 0; round < 3; round++) {
        unsigned x = 12345;
        for (int i = 0; i < 64; i++) { x = x * 1103515245 + 12345; v[i] = x >> 16; d[1] += pick(v[i]); }
        sort(v, 64);
        sum = 0;
        for (int i = 0; i < 64; i++) sum = (sum + v[i]) * 0.5;
        for (int i = 0; i < 63; i++) text[i] = 'a' + v[i] % 26;
        d[3] = (long)sum + text[5];
        long r; __asm__ volatile("syscall" : "=a"(r) : "a"(39) : "rcx", "r11", "memory");
    }
    __asm__ volatile("syscall" : : "a"(60), "D"(0));
}
"#;

#[test]
fn compiled_programs() {
    for flag in ["-O0", "-O2"] {
        check_trace(flag, Trace::of_file("compiled.c", COMPILED, flag), 60);
    }
}
