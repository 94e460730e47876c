//! The log of stores, carried out on a copy of the memory, gives the memory.

use std::collections::BTreeMap;

use backstory_engine::{Exit, MapRequest, MapSource, Mode, Space};
use guest::{GuestAddr, GuestMemory, GuestRange, Prot};
use translate::BlockId;
use translate::log::{BlockLog, Sink, walk};

use crate::oracle::{Native, build};

const PROGRAM: &str = r"
.globl _start
_start:
    lea buffer(%rip), %rdi
    mov $6000000, %ecx
    mov $7, %al
    rep stosb
    lea buffer(%rip), %rsi
    lea buffer+6500000(%rip), %rdi
    mov $100000, %ecx
    rep movsq
    mov $500, %r8d
1:  lea buffer(%rip), %rdi
    mov %r8d, %eax
    mov $3000, %ecx
    rep stosw
    push %r8
    call 2f
    pop %r9
    dec %r8d
    jnz 1b
    mov $60, %eax
    syscall
2:  mov %rsp, buffer+8(%rip)
    movups %xmm0, buffer+101(%rip)
    lock cmpxchg %rdx, buffer+64(%rip)
    ret
.bss
.balign 4096
buffer: .skip 8000000
";

/// Memory as the log has it, and how many instructions it speaks of.
#[derive(Default)]
struct Copy {
    bytes: BTreeMap<u64, u8>,
    instructions: u64,
}

impl Sink for Copy {
    fn block(&mut self, _: BlockId, _: u32, instructions: u32) {
        self.instructions += u64::from(instructions);
    }

    fn store(&mut self, _: u32, addr: GuestAddr, bytes: &[u8]) {
        self.bytes.extend((addr.0..).zip(bytes.iter().copied()));
    }
}

fn drain(space: &mut Space, copy: &mut Copy) {
    let blocks: Vec<BlockLog> =
        space.blocks().iter().map(|block| BlockLog::from(&block.translated)).collect();
    space.drain_log_with(|log| walk(log, &blocks, copy).unwrap());
}

#[test]
fn the_log_is_what_was_stored() {
    let dir = tempfile::tempdir().unwrap();
    let program = build(dir.path(), "log.s", PROGRAM, &["-static", "-nostdlib"]);
    for (mode, budget) in [(Mode::Indexed, None), (Mode::IndexedExact, None), (Mode::Indexed, Some(37))] {
        let mut space = Native::start(&program, &[]).image(mode);
        let mut copy = Copy::default();
        let mut full = 0;
        loop {
            match space.run(budget).unwrap() {
                Exit::Syscall => break,
                Exit::LogFull => {
                    full += 1;
                    drain(&mut space, &mut copy);
                }
                exit => assert_eq!(exit, Exit::Budget),
            }
        }
        drain(&mut space, &mut copy);
        assert!(full > 0);
        assert_eq!(copy.instructions, space.retired(), "{mode:?}");
        let start = *copy.bytes.keys().next().unwrap();
        assert!(copy.bytes.len() > 6_800_000);
        let mut memory = vec![0; 8_000_000];
        space.read(GuestAddr(start), &mut memory[..7_300_000]).unwrap();
        for (addr, byte) in copy.bytes.range(start..start + 7_300_000) {
            assert_eq!(memory[(addr - start) as usize], *byte, "{addr:#x} in {mode:?}");
        }
    }
}

/// Elements go to pages that are not there, first and last ones among them: the mask tells which are still to be stored.
const SCATTERED: &str = r"
.globl _start
_start:
    mov $0x11000000, %edi
    vmovdqu32 indices(%rip), %zmm1
    vpbroadcastd fill(%rip), %zmm2
    vpaddd indices(%rip), %zmm2, %zmm2
    mov $0xfffb, %eax
    kmovw %eax, %k3
    mov %rdi, buffer(%rip)
    vpscatterdd %zmm2, (%rdi,%zmm1,4){%k3}
    mov %rax, buffer+8(%rip)
    mov $60, %eax
    syscall
.data
fill: .long 0x5a000000
.balign 64
indices: .long 1, 2, 3, 4, 1024, 1025, 5, 6, 2048, 2049, 7, 1026, 8, 2, 3072, 9
.bss
buffer: .skip 16
";

#[test]
fn a_scatter_that_faults_halfway_is_logged_as_far_as_it_came() {
    if !is_x86_feature_detected!("avx512f") {
        eprintln!("skipped: the processor lacks AVX-512");
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let program = build(dir.path(), "scattered.s", SCATTERED, &["-static", "-nostdlib"]);
    for (mode, budget) in [(Mode::Indexed, None), (Mode::IndexedExact, None), (Mode::Indexed, Some(1))] {
        let mut space = Native::start(&program, &[]).image(mode);
        let mut copy = Copy::default();
        let mut faults = 0;
        loop {
            match space.run(budget).unwrap() {
                Exit::Syscall => break,
                Exit::Fault(fault) => {
                    faults += 1;
                    space.map(&zeroes(fault.addr.page())).unwrap();
                }
                exit => assert_eq!(exit, Exit::Budget),
            }
        }
        drain(&mut space, &mut copy);
        assert_eq!(faults, 4, "{mode:?}");
        assert_eq!(copy.instructions, space.retired(), "{mode:?}");
        let mut memory = vec![0; 4 * 4096];
        space.read(GuestAddr(0x1100_0000), &mut memory).unwrap();
        let logged = copy.bytes.range(0x1100_0000..0x1100_4000).map(|(&at, &byte)| (at - 0x1100_0000, byte));
        assert_eq!(logged.clone().count(), 14 * 4, "{mode:?}");
        for (at, byte) in logged {
            assert_eq!(memory[at as usize], byte, "{at:#x} in {mode:?}");
        }
    }
}

fn zeroes(page: GuestAddr) -> MapRequest {
    MapRequest {
        range: GuestRange::new(page, 4096),
        prot: Prot::from_bits(3),
        shared: false,
        grows_down: false,
        no_reserve: false,
        source: MapSource::Zero,
    }
}

/// Stores of many kinds with alignment checks on. Records of many lengths leave the next one at any multiple of four.
const ALIGNED: &str = r"
.globl _start
_start:
    mov $300, %r8d
    mov $2f, %r9
1:  pushq $0x40206
    popfq
    mov %r8, %rdi
    and $31, %edi
    lea buffer(,%rdi,8), %rdi
    mov %r8d, 8(%rdi)
    mov %r8, 4096(%rdi)
    mov %r8b, 13(%rdi)
    mov %r8w, 22(%rdi)
    add %r8, buffer+2048(%rip)
    incl buffer+2060(%rip)
    movd %r8d, %xmm0
    movq %xmm0, 8192(%rdi)
    movaps %xmm0, buffer+2064(%rip)
    bts %r8, buffer+3072(%rip)
    mov buffer+2048(%rip), %rax
    lock cmpxchg %rdx, buffer+2048(%rip)
    call *%r9
    call 2f
    lea 16384(%rdi), %rdi
    mov %r8d, %eax
    mov $9, %ecx
    rep stosl
    and $-8, %rdi
    lea buffer(%rip), %rsi
    mov %r8d, %ecx
    and $7, %ecx
    rep movsq
    mov %r8d, 2048(%rdi)
    pushfq
    pop %rbx
    or %rbx, %r11
    pushq $0x206
    popfq
    mov %r8, buffer+40001(%rip)
    dec %r8d
    jnz 1b
    mov $60, %eax
    syscall
2:  mov %rsp, buffer+2088(%rip)
    push %r8
    pop buffer+2096(%rip)
    xchg %rdx, buffer+2104(%rip)
    ret
.bss
.balign 4096
buffer: .skip 65536
";

#[test]
fn the_log_is_what_was_stored_with_alignment_checked() {
    let dir = tempfile::tempdir().unwrap();
    let program = build(dir.path(), "aligned.s", ALIGNED, &["-static", "-nostdlib"]);
    for (mode, budget) in [
        (Mode::Indexed, None),
        (Mode::IndexedExact, None),
        (Mode::Indexed, Some(5)),
        (Mode::Indexed, Some(1)),
        (Mode::IndexedExact, Some(71)),
    ] {
        let native = Native::start(&program, &[]);
        let mut plain = native.image(Mode::Plain);
        assert_eq!(plain.run(None).unwrap(), Exit::Syscall);
        let mut space = native.image(mode);
        let mut copy = Copy::default();
        loop {
            match space.run(budget).unwrap() {
                Exit::Syscall => break,
                Exit::LogFull => drain(&mut space, &mut copy),
                exit => assert_eq!(exit, Exit::Budget, "{mode:?}"),
            }
        }
        drain(&mut space, &mut copy);
        assert_eq!(copy.instructions, space.retired(), "{mode:?}");
        assert_eq!((space.retired(), space.registers()), (plain.retired(), plain.registers()), "{mode:?}");
        assert_eq!(space.registers().r11 & 0x40000, 0x40000, "{mode:?}");
        // The last store that is not aligned goes there.
        let start = copy.bytes.range(..0x7000_0000).next_back().unwrap().0 - 40_008;
        assert!(copy.bytes.len() > 1000);
        let mut memory = vec![0; 65536];
        plain.read(GuestAddr(start), &mut memory).unwrap();
        for (at, byte) in memory.iter().enumerate() {
            let logged = copy.bytes.get(&(start + at as u64)).copied().unwrap_or(0);
            assert_eq!(logged, *byte, "{at} in {mode:?}");
        }
    }
}
