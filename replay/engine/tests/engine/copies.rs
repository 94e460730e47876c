//! Copies of spaces go their own ways.

use crate::oracle::{Native, build, compare};
use backstory_engine::{Config, Exit, MapRequest, MapSource, Mode, Sharing, Space};
use guest::{GuestAddr, GuestMemory, GuestRange, Prot, Registers};

const PROGRAM: &str = r"
.globl _start
_start:
    mov $2000, %ecx
1:  imul $7, %rax, %rax
    add %rcx, %rax
    push %rax
    pop buffer(%rip)
    call 2f
    dec %ecx
    jnz 1b
    mov $60, %eax
    syscall
2:  lea buffer(%rip), %rbx
    jmp *3f(%rip)
4:  ret
.data
3: .quad 4b
.bss
buffer: .skip 64
";

#[test]
fn a_copy_goes_on_as_the_original() {
    let dir = tempfile::tempdir().unwrap();
    let program = build(dir.path(), "copy.s", PROGRAM, &["-static", "-nostdlib"]);
    let mut native = Native::start(&program, &[]);
    let mut space = native.image(Mode::Plain);
    let mut copies = Vec::new();
    for _ in 0..5 {
        assert_eq!(space.run(Some(777)).unwrap(), Exit::Budget);
        copies.push(space.fork(Sharing::Copied).unwrap());
    }
    assert_eq!(space.run(None).unwrap(), Exit::Syscall);
    let end = (space.retired(), space.registers());
    for copy in copies.iter_mut().rev() {
        let mut second = copy.fork(Sharing::Kept).unwrap();
        for space in [copy, &mut second] {
            assert_eq!(space.run(None).unwrap(), Exit::Syscall);
            assert_eq!((space.retired(), space.registers()), end);
        }
    }
    drop(space);
    // Copies outlive the original; and the original's answer was right.
    let mut last = copies.swap_remove(0);
    drop(copies);
    let mut other = native.image(Mode::Exact);
    compare(&mut native, &mut other, None);
    assert_eq!(last.run(None).unwrap(), Exit::Syscall);
    assert_eq!((other.retired(), last.registers().rax), (end.0, 60));
}

#[test]
fn shared_memory_is_kept_or_copied() {
    let dir = tempfile::tempdir().unwrap();
    let program = build(dir.path(), "copy.s", PROGRAM, &["-static", "-nostdlib"]);
    let mut space = Native::start(&program, &[]).image(Mode::Plain);
    let at = GuestAddr(0x5000_0000);
    let request = MapRequest {
        range: GuestRange::new(at, 8192),
        prot: Prot::from_bits(3),
        shared: true,
        grows_down: false,
        no_reserve: false,
        source: MapSource::Zero,
    };
    space.map(&request).unwrap();
    space.write(at, b"first").unwrap();
    let kept = space.fork(Sharing::Kept).unwrap();
    let copied = space.fork(Sharing::Copied).unwrap();
    space.write(at, b"later").unwrap();
    assert_eq!(kept.read_vec(at, 5).unwrap(), b"later");
    assert_eq!(copied.read_vec(at, 5).unwrap(), b"first");
}

#[test]
fn code_in_shared_memory_is_written_by_the_other_space() {
    let mut space = Space::new(&Config::default()).unwrap();
    let code = GuestRange::new(GuestAddr(0x5000_0000), 4096);
    let request = MapRequest {
        range: code,
        prot: Prot::from_bits(7),
        shared: true,
        grows_down: false,
        no_reserve: false,
        source: MapSource::Zero,
    };
    space.map(&request).unwrap();
    // mov $1, %eax; syscall; and, further on, mov %ebx, -15(%rip); syscall
    space.write(code.start, &[0xb8, 1, 0, 0, 0, 0x0f, 0x05]).unwrap();
    space.write(code.start.wrapping_add(16), &[0x89, 0x1d, 0xeb, 0xff, 0xff, 0xff, 0x0f, 0x05]).unwrap();
    let run = |space: &mut Space, offset: u64, rbx: u64| {
        space.set_registers(&Registers { rip: code.start.0 + offset, rbx, ..space.registers() });
        assert_eq!(space.run(None).unwrap(), Exit::Syscall);
        space.registers().rax
    };
    assert_eq!(run(&mut space, 0, 0), 1);
    let mut kept = space.fork(Sharing::Kept).unwrap();
    let mut copied = space.fork(Sharing::Copied).unwrap();
    for value in 2..20 {
        run(&mut space, 16, value);
        assert_eq!((run(&mut kept, 0, 0), run(&mut space, 0, 0), run(&mut copied, 0, 0)), (value, value, 1));
        kept.write(code.start.wrapping_add(1), &[value as u8 + 100]).unwrap();
        assert_eq!(run(&mut space, 0, 0), value + 100);
    }
}
