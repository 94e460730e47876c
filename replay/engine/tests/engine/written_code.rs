//! Code that is written while it runs.

use crate::oracle::{Native, build, compare};
use backstory_engine::{Exit, MapRequest, MapSource, Mode, Space};
use guest::{GuestAddr, GuestMemory, GuestRange, Prot, Registers};

const MODES: [Mode; 4] = [Mode::Plain, Mode::Exact, Mode::Indexed, Mode::IndexedExact];

/// Runs a program that calls code in a page it may write, in lock step with itself.
#[track_caller]
fn check(body: &str, every: Option<u64>) {
    let source = format!(
        ".globl _start\n_start:\n{body}\n mov $60, %eax\n syscall\n.section .jit,\"awx\",@nobits\n.balign 4096\njit: .skip 8192\n"
    );
    let dir = tempfile::tempdir().unwrap();
    let program = build(dir.path(), "jit.s", &source, &["-static", "-nostdlib"]);
    for mode in MODES {
        let mut native = Native::start(&program, &[]);
        let mut space = native.image(mode);
        compare(&mut native, &mut space, every);
    }
}

#[test]
fn a_block_writes_its_own_later_instruction() {
    // movb $7, 1(%rip): the operand of the `mov` that follows.
    check(
        "lea jit(%rip), %rdi\n lea code(%rip), %rsi\n mov $13, %ecx\n rep movsb\n call jit\n mov %eax, %ebx\n jmp 1f\ncode: .byte 0xc6,0x05,0x01,0,0,0,0x07, 0xb8,0x01,0,0,0, 0xc3\n1:",
        None,
    );
}

#[test]
fn a_loop_changes_its_own_operand() {
    // loop: add $imm, %eax; incl imm; dec %ecx; jnz
    let code = ".byte 0x31,0xc0,0xb9,100,0,0,0, 0x05,0,0,0,0, 0xff,0x05,0xf6,0xff,0xff,0xff, 0xff,0xc9, 0x75,0xf1, 0xc3";
    let body = format!(
        "lea jit(%rip), %rdi\n lea code(%rip), %rsi\n mov $23, %ecx\n rep movsb\n call jit\n mov %eax, %ebx\n jmp 1f\ncode: {code}\n1:"
    );
    check(&body, None);
    check(&body, Some(5));
}

#[test]
fn code_is_replaced_and_called_again() {
    check(
        "mov $50, %r12d\n1: lea jit(%rip), %rdi\n movb $0xb8, (%rdi)\n mov %r12d, 1(%rdi)\n movb $0xc3, 5(%rdi)\n call jit\n add %eax, %ebx\n dec %r12d\n jnz 1b",
        Some(40),
    );
}

#[test]
fn code_and_data_share_a_page() {
    // A loop in the page that increments a counter in the same page.
    let code = ".byte 0xb9,0x88,0x13,0,0, 0xff,0x05,0xf5,0x01,0,0, 0xff,0xc9, 0x75,0xf6, 0x8b,0x05,0xeb,0x01,0,0, 0xc3";
    check(
        &format!(
            "lea jit(%rip), %rdi\n lea code(%rip), %rsi\n mov $22, %ecx\n rep movsb\n call jit\n mov %eax, %ebx\n jmp 1f\ncode: {code}\n1:"
        ),
        None,
    );
}

/// `mov $value, %eax; syscall`
fn returns(value: u32) -> Vec<u8> {
    [&[0xb8][..], &value.to_le_bytes(), &[0x0f, 0x05]].concat()
}

fn jump(space: &mut Space, pc: u64) {
    space.set_registers(&Registers { rip: pc, ..space.registers() });
    assert_eq!(space.run(None).unwrap(), Exit::Syscall);
}

fn request(at: u64, prot: u64, shared: bool, source: MapSource) -> MapRequest {
    MapRequest {
        range: GuestRange::new(GuestAddr(at), 8192),
        prot: Prot::from_bits(prot),
        shared,
        grows_down: false,
        no_reserve: false,
        source,
    }
}

#[test]
fn the_kernel_writes_maps_and_protects_code() {
    let mut space = Space::new(&backstory_engine::Config::default()).unwrap();
    let at = GuestAddr(0x4000_0000);
    space.map(&request(at.0, 7, false, MapSource::Zero)).unwrap();
    for value in [1, 2, 3] {
        space.write(at, &returns(value)).unwrap();
        for _ in 0..2 {
            jump(&mut space, at.0);
            assert_eq!(space.registers().rax, u64::from(value));
        }
    }
    // Not executable any more.
    space.protect(GuestRange::new(at, 4096), Prot::from_bits(3)).unwrap();
    space.set_registers(&Registers { rip: at.0, ..space.registers() });
    let Exit::Fault(fault) = space.run(None).unwrap() else { panic!() };
    assert_eq!((fault.signo, fault.code, fault.addr), (libc::SIGSEGV, 2, at));
    space.protect(GuestRange::new(at, 4096), Prot::from_bits(5)).unwrap();
    jump(&mut space, at.0);
    // Mapped anew, moved, discarded.
    space.map(&request(at.0, 7, false, MapSource::Zero)).unwrap();
    space.write(at, &returns(9)).unwrap();
    jump(&mut space, at.0);
    let to = GuestRange::new(GuestAddr(0x5000_0000), 8192);
    space.remap(GuestRange::new(at, 8192), to, false).unwrap();
    jump(&mut space, to.start.0);
    assert_eq!(space.registers().rax, 9);
    space.set_registers(&Registers { rip: at.0, ..space.registers() });
    let Exit::Fault(fault) = space.run(None).unwrap() else { panic!() };
    assert_eq!((fault.signo, fault.code), (libc::SIGSEGV, 1));
    space.write(to.start, &returns(10)).unwrap();
    jump(&mut space, to.start.0);
    assert_eq!(space.registers().rax, 10);
}

#[test]
fn one_file_mapped_twice() {
    let file = tempfile::NamedTempFile::new().unwrap();
    file.as_file().set_len(8192).unwrap();
    let source = || MapSource::File { path: file.path().to_owned(), offset: 0, object: 7 };
    let mut space = Space::new(&backstory_engine::Config::default()).unwrap();
    space.map(&request(0x4000_0000, 3, true, source())).unwrap();
    space.map(&request(0x5000_0000, 5, true, source())).unwrap();
    space.map(&request(0x6000_0000, 7, false, MapSource::Zero)).unwrap();
    // mov %eax, 0x40000001; syscall
    space.write(GuestAddr(0x6000_0000), &[0x89, 0x04, 0x25, 1, 0, 0, 0x40, 0x0f, 0x05]).unwrap();
    space.write(GuestAddr(0x4000_0000), &returns(0)).unwrap();
    for value in 1..50 {
        space.set_registers(&Registers { rax: value, ..space.registers() });
        jump(&mut space, 0x6000_0000);
        jump(&mut space, 0x5000_0000);
        assert_eq!(space.registers().rax, value);
    }
    // The kernel writes through one of them.
    space.write(GuestAddr(0x5000_0000), &returns(77)).unwrap();
    jump(&mut space, 0x5000_0000);
    assert_eq!(space.registers().rax, 77);
    assert_eq!(std::fs::read(file.path()).unwrap()[..8], [0; 8], "the file itself is untouched");
}

/// A space with `functions`, each `mov $value, %eax; syscall`, at the start of two pages, protected `prot`.
fn functions(prot: u64, count: u64) -> (Space, GuestRange) {
    let mut space = Space::new(&backstory_engine::Config::default()).unwrap();
    let range = GuestRange::new(GuestAddr(0x4000_0000), 8192);
    space.map(&request(range.start.0, prot, false, MapSource::Zero)).unwrap();
    for number in 0..count {
        space.write(range.start.wrapping_add(64 * number), &returns(number as u32)).unwrap();
    }
    (space, range)
}

/// Calls the function at each of the offsets; what they return.
fn call(space: &mut Space, offsets: &[u64]) -> Vec<u64> {
    offsets
        .iter()
        .map(|offset| {
            jump(space, 0x4000_0000 + offset);
            space.registers().rax
        })
        .collect()
}

#[test]
fn code_that_was_writable_for_a_while_and_did_not_change_is_kept() {
    let (mut space, range) = functions(5, 4);
    let offsets = [0, 64, 128, 192];
    assert_eq!(call(&mut space, &offsets), [0, 1, 2, 3]);
    let known = space.blocks().len();
    for round in 0..10 {
        space.protect(range, Prot::from_bits(3)).unwrap();
        if round % 2 == 1 {
            space.write(range.start.wrapping_add(65), &[round]).unwrap();
        }
        space.protect(range, Prot::from_bits(5)).unwrap();
        let second = if round == 0 { 1 } else { u64::from(round - (round + 1) % 2) };
        assert_eq!(call(&mut space, &offsets), [0, second, 2, 3]);
    }
    // Only the changed function was translated again.
    assert_eq!(space.blocks().len(), known + 4);
    // And it is not run while it may not be.
    space.protect(range, Prot::from_bits(3)).unwrap();
    space.set_registers(&Registers { rip: range.start.0, ..space.registers() });
    assert!(matches!(space.run(None).unwrap(), Exit::Fault(_)));
}

#[test]
fn stores_beside_code_keep_it() {
    let (mut space, range) = functions(7, 4);
    // mov %ebx, (%rcx); syscall: in a page of its own.
    let writer = GuestAddr(0x6000_0000);
    space.map(&request(writer.0, 7, false, MapSource::Zero)).unwrap();
    space.write(writer, &[0x89, 0x19, 0x0f, 0x05]).unwrap();
    let store = |space: &mut Space, at: u64, value: u64| {
        space.set_registers(&Registers { rbx: value, rcx: range.start.0 + at, ..space.registers() });
        jump(space, writer.0);
    };
    assert_eq!(call(&mut space, &[0, 64, 128, 192]), [0, 1, 2, 3]);
    store(&mut space, 0x800, 5);
    let known = space.blocks().len();
    assert_eq!(call(&mut space, &[0, 64, 128, 192]), [0, 1, 2, 3]);
    assert_eq!(space.blocks().len(), known, "nothing changed");
    store(&mut space, 65, 9);
    assert_eq!(call(&mut space, &[0, 64, 128, 192]), [0, 9, 2, 3]);
    // Changed, and changed back before it runs; then changed while it is watched again.
    store(&mut space, 129, 8);
    store(&mut space, 129, 2);
    assert_eq!(call(&mut space, &[0, 64, 128]), [0, 9, 2]);
    store(&mut space, 129, 7);
    assert_eq!(call(&mut space, &[128, 0]), [7, 0]);
}

#[test]
fn code_across_two_pages_depends_on_both() {
    let (mut space, range) = functions(5, 1);
    // The operand lies in the second page.
    let [first, second] = [0, 4096].map(|at| GuestRange::new(range.start.wrapping_add(at), 4096));
    space.write(range.start.wrapping_add(4095), &returns(1)).unwrap();
    assert_eq!(call(&mut space, &[4095]), [1]);
    let (writable, executable) = (Prot::from_bits(3), Prot::from_bits(5));
    // While the first page is writable, the second becomes so, changes, and is executable again before it.
    space.protect(first, writable).unwrap();
    space.protect(second, writable).unwrap();
    space.write(second.start, &[2]).unwrap();
    space.protect(second, executable).unwrap();
    space.protect(first, executable).unwrap();
    assert_eq!(call(&mut space, &[4095]), [2]);
    // The same, the second page being executable all the while.
    space.protect(first, writable).unwrap();
    space.protect(second, Prot::from_bits(7)).unwrap();
    space.write(second.start, &[3]).unwrap();
    space.protect(first, executable).unwrap();
    assert_eq!(call(&mut space, &[4095]), [3]);
    // Breakpoints set while the code is suspended are seen.
    space.set_mode(Mode::Exact).unwrap();
    assert_eq!(call(&mut space, &[4095]), [3]);
    space.protect(first, writable).unwrap();
    space.set_breakpoints(&[range.start.wrapping_add(4100)]);
    space.protect(first, executable).unwrap();
    space.set_registers(&Registers { rip: range.start.0 + 4095, ..space.registers() });
    assert_eq!(space.run(None).unwrap(), Exit::Breakpoint);
}

/// Functions in four pages, some of them across two, some of which jump to the next one; pages change, become writable and executable
/// again, and functions are called, in random order.
#[test]
fn random_changes_of_code() {
    const STEP: u64 = 123;
    let mut seed = 0x2545_f491_4f6c_dd1d_u64;
    let mut random = move |most: u64| {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        (seed >> 9) % most
    };
    let mut space = Space::new(&backstory_engine::Config::default()).unwrap();
    let start = GuestAddr(0x4000_0000);
    let whole = GuestRange::new(start, 4 * 4096);
    space.map(&MapRequest { range: whole, ..request(start.0, 7, false, MapSource::Zero) }).unwrap();
    // mov %ebx, (%rcx); syscall
    let writer = GuestAddr(0x6000_0000);
    space.map(&request(writer.0, 7, false, MapSource::Zero)).unwrap();
    space.write(writer, &[0x89, 0x19, 0x0f, 0x05]).unwrap();
    let count = whole.len() / STEP;
    let at = |number: u64| start.wrapping_add(number * STEP);
    // add $value, %eax; jmp to the next one, or a system call
    for number in 0..count {
        let mut code = vec![0x05, number as u8, 0, 0, 0, 0x0f, 0x05];
        if number % 3 != 0 {
            code.truncate(5);
            code.push(0xe9);
            code.extend_from_slice(&(STEP as u32 - 10).to_le_bytes());
        }
        space.write(at(number), &code).unwrap();
    }
    let mut values: Vec<u64> = (0..count).map(|number| number % 256).collect();
    let mut prots = [7u64; 4];
    let (mut changed, mut called) = (0, 0);
    while called < 4000 {
        let page = random(4) as usize;
        let range = GuestRange::new(start.wrapping_add(4096 * page as u64), 4096);
        let number = random(count - 3);
        let touches = |number: u64| {
            let first = number * STEP / 4096;
            first as usize..=((number * STEP + 9) / 4096) as usize
        };
        match random(8) {
            0 => {
                prots[page] = [3, 5, 7][random(3) as usize];
                space.protect(range, Prot::from_bits(prots[page])).unwrap();
            }
            1 if touches(number).all(|page| prots[page] & 2 != 0) => {
                values[number as usize] = random(1 << 16);
                let value = values[number as usize];
                space.set_registers(&Registers { rbx: value, rcx: at(number).0 + 1, ..space.registers() });
                jump(&mut space, writer.0);
                changed += 1;
            }
            2 => {
                values[number as usize] = random(1 << 16);
                space
                    .write(at(number).wrapping_add(1), &(values[number as usize] as u32).to_le_bytes())
                    .unwrap();
                changed += 1;
            }
            _ => {
                let last = number.next_multiple_of(3);
                if !(number..=last).flat_map(touches).all(|page| prots[page] & 4 != 0) {
                    continue;
                }
                space.set_mode(MODES[random(2) as usize]).unwrap();
                space.set_registers(&Registers { rax: 0, rip: at(number).0, ..space.registers() });
                assert_eq!(space.run(None).unwrap(), Exit::Syscall);
                let sum: u64 = values[number as usize..=last as usize].iter().sum();
                assert_eq!(
                    space.registers().rax,
                    sum,
                    "function {number} after {changed} changes, {called} calls"
                );
                called += 1;
            }
        }
    }
    assert!(changed > 500);
}

#[test]
fn code_that_was_written_often_may_show_otherwise_than_it_runs_once_it_is_protected() {
    let mut space = Space::new(&backstory_engine::Config::default()).unwrap();
    let at = GuestAddr(0x4000_0000);
    space.map(&request(at.0, 7, false, MapSource::Zero)).unwrap();
    // A loop that counts in its own page, until its blocks check themselves: incl 64(%rip); dec %ecx; jnz; syscall.
    let code = [0xff, 0x05, 64, 0, 0, 0, 0xff, 0xc9, 0x75, 0xf6, 0x0f, 0x05];
    space.write(at, &code).unwrap();
    space.set_registers(&Registers { rcx: 5000, ..space.registers() });
    jump(&mut space, at.0);
    space.protect(GuestRange::new(at, 8192), Prot::from_bits(5)).unwrap();
    let call = at.wrapping_add(10);
    space.rewrite(call, &[0xeb, 0x70], &[0x0f, 0x05]).unwrap();
    for _ in 0..2 {
        jump(&mut space, call.0);
        assert_eq!(space.registers().pc(), call);
    }
    // Written again, it is noticed again.
    space.protect(GuestRange::new(at, 8192), Prot::from_bits(7)).unwrap();
    space.rewrite(call, &[0x0f, 0x05], &[0x0f, 0x05]).unwrap();
    space.set_registers(&Registers { rcx: 5000, ..space.registers() });
    jump(&mut space, at.0);
    let mut count = [0; 4];
    space.read(at.wrapping_add(70), &mut count).unwrap();
    assert_eq!(u32::from_le_bytes(count), 10_000);
}

#[test]
fn a_full_arena_begins_anew() {
    // Room for four megabytes of translated code, and no more.
    let code = GuestAddr(0x10_0000_0000);
    let hole = GuestRange { start: GuestAddr(code.0 + (64 << 20)), end: GuestAddr(code.0 + (70 << 20)) };
    let footprint = vec![
        GuestRange { start: GuestAddr(0x1000_0000), end: hole.start },
        GuestRange { start: hole.end, end: GuestAddr(code.0 + (8 << 30)) },
    ];
    let config = backstory_engine::Config { footprint, ..Default::default() };
    let mut space = Space::new(&config).unwrap();
    let len = 1 << 20;
    let range = GuestRange::new(code, len);
    let map = |prot| MapRequest { range, ..request(code.0, prot, false, MapSource::Zero) };
    space.map(&map(7)).unwrap();
    let value = |round: u64, at: u64| (round << 16 | at >> 4) as u32;
    for round in 0..16 {
        let mut bytes = Vec::new();
        for at in (0..len).step_by(16) {
            let mut function = returns(value(round, at));
            function.resize(16, 0x90);
            bytes.extend(function);
        }
        space.write(code, &bytes).unwrap();
        for at in (0..len).step_by(256) {
            jump(&mut space, code.0 + at);
            assert_eq!(space.registers().rax, u64::from(value(round, at)));
        }
    }
}
