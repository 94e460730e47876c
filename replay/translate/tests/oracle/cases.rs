//! Hand-made cases: each class of instruction, and what went wrong before.

use iced_x86::code_asm::*;

use crate::check::check;
use crate::program::{Program, Random};
use crate::world::{CODE, LOW_CODE, World};

/// Assembles at both places, runs from `tries` random states.
#[track_caller]
fn case(
    limit: u64,
    tries: u64,
    build: impl Fn(&mut CodeAssembler, &mut CodeLabel) -> Result<(), iced_x86::IcedError>,
) {
    let world = World::new();
    for low in [false, true] {
        let mut asm = CodeAssembler::new(64).unwrap();
        let mut label = asm.create_label();
        build(&mut asm, &mut label).unwrap();
        let code = asm.assemble(if low { LOW_CODE } else { CODE }).unwrap();
        for seed in 0..tries {
            let mut random = Random::new(seed + 1);
            let program = Program::new(&world, &code, low, &mut random);
            check(&world, &program, limit);
        }
    }
}

#[test]
fn straight_line() {
    case(20, 8, |asm, _| {
        asm.mov(rax, rbx)?;
        asm.add(rax, 5)?;
        asm.adc(rcx, rax)?;
        asm.push(rax)?;
        asm.push(rbx)?;
        asm.pop(rdx)?;
        asm.cpuid()
    });
}

#[test]
fn calls_and_returns() {
    case(40, 8, |asm, function| {
        asm.call(*function)?;
        asm.mov(rbx, rax)?;
        asm.call(*function)?;
        asm.syscall()?;
        asm.set_label(function)?;
        asm.lea(rax, qword_ptr(rsp + 8))?;
        asm.push(rcx)?;
        asm.pop(rcx)?;
        asm.ret()
    });
}

#[test]
fn indirect_calls() {
    case(40, 8, |asm, function| {
        asm.lea(rcx, ptr(*function))?;
        asm.stc()?;
        asm.call(rcx)?;
        asm.push(rcx)?;
        asm.call(qword_ptr(rsp))?;
        asm.adc(rbx, 0)?;
        asm.call(qword_ptr(rsp))?;
        asm.syscall()?;
        asm.set_label(function)?;
        asm.nop()?;
        asm.ret_1(16)
    });
}

#[test]
fn loops_and_conditions() {
    case(60, 6, |asm, top| {
        asm.mov(ecx, 5)?;
        asm.set_label(top)?;
        asm.inc(rax)?;
        asm.dec(ecx)?;
        asm.jne(*top)?;
        asm.mov(ecx, 3)?;
        let mut again = asm.create_label();
        asm.set_label(&mut again)?;
        asm.push(rcx)?;
        asm.loop_(again)?;
        asm.jrcxz(*top)
    });
}

#[test]
fn repeated_strings() {
    case(40, 24, |asm, _| {
        asm.mov(ecx, 37)?;
        asm.lea(rdi, qword_ptr(rsp + 512))?;
        asm.lea(rsi, qword_ptr(rsp + 505))?;
        asm.rep().movsb()?;
        asm.mov(ecx, 9)?;
        asm.rep().stosd()?;
        asm.mov(ecx, 0)?;
        asm.rep().movsq()?;
        asm.mov(ecx, 4)?;
        asm.repe().cmpsb()?;
        asm.adc(rbx, rdx)?;
        asm.stosb()?;
        asm.movsq()?;
        asm.syscall()
    });
}

#[test]
fn repeated_strings_run_into_faults() {
    case(20, 12, |asm, _| {
        asm.lea(rdi, qword_ptr(rsp))?;
        asm.mov(ecx, 0x10000)?;
        asm.cld()?;
        asm.rep().stosq()?;
        asm.syscall()
    });
}

#[test]
fn rip_relative_operands() {
    case(20, 4, |asm, data| {
        asm.mov(rax, qword_ptr(*data))?;
        asm.lea(rbx, ptr(*data))?;
        asm.cmp(dword_ptr(*data), 5)?;
        asm.syscall()?;
        asm.set_label(data)?;
        asm.dq(&[0x1122_3344_5566_7788])
    });
}

#[test]
fn compare_and_exchange() {
    case(20, 8, |asm, _| {
        asm.mov(rax, qword_ptr(rsp))?;
        asm.lock().cmpxchg(qword_ptr(rsp), rbx)?;
        asm.cmpxchg(qword_ptr(rsp), rcx)?;
        asm.xadd(qword_ptr(rsp), rcx)?;
        asm.lea(rax, qword_ptr(rsp + 64))?;
        asm.xchg(qword_ptr(rax), rax)?;
        asm.and(rsp, -16)?;
        asm.cmpxchg16b(xmmword_ptr(rsp))?;
        asm.cmpxchg16b(xmmword_ptr(rsp))?;
        asm.syscall()
    });
}

#[test]
fn vector_and_masked_stores() {
    case(30, 8, |asm, _| {
        asm.movups(xmmword_ptr(rsp), xmm9)?;
        asm.vmovdqu(ymmword_ptr(rsp + 64), ymm13)?;
        asm.movq(qword_ptr(rsp + 3), xmm1)?;
        asm.vmaskmovps(ymmword_ptr(rsp + 128), ymm3, ymm12)?;
        asm.vmaskmovpd(xmmword_ptr(rsp + 256), xmm9, xmm2)?;
        asm.vpmaskmovq(ymmword_ptr(rsp + 320), ymm5, ymm6)?;
        asm.lea(rdi, qword_ptr(rsp + 512))?;
        asm.maskmovdqu(xmm11, xmm10)?;
        asm.fnstcw(word_ptr(rsp + 5))?;
        asm.pextrb(byte_ptr(rsp + 11), xmm4, 3)?;
        asm.syscall()
    });
}

/// Indices below 32 in every vector register that scatters use, and bits of general registers in the masks, which are used up.
fn before_scatters(asm: &mut CodeAssembler) -> Result<(), iced_x86::IcedError> {
    asm.mov(eax, 31)?;
    asm.vpbroadcastd(zmm20, eax)?;
    asm.vpandd(zmm16, zmm16, zmm20)?;
    asm.vpsrad(zmm18, zmm16, 1)?;
    asm.vpmovzxdq(zmm17, ymm16)?;
    asm.kmovw(k1, ebx)?;
    asm.kmovw(k2, ecx)?;
    asm.kmovw(k3, edx)?;
    asm.kmovw(k4, esi)?;
    asm.kmovd(k5, edi)?;
    asm.kmovw(k6, r8d)
}

#[test]
fn scatters_and_packed_stores() {
    let has = is_x86_feature_detected!("avx512bw") && is_x86_feature_detected!("avx512dq");
    if !has || !is_x86_feature_detected!("avx512vl") || !is_x86_feature_detected!("avx512vbmi2") {
        eprintln!("skipped: the processor lacks some of AVX-512");
        return;
    }
    case(40, 8, |asm, _| {
        before_scatters(asm)?;
        asm.vpscatterdd(ptr(rsp + zmm16 * 4 + 64).k1(), zmm3)?;
        asm.vpscatterqd(ptr(rsp + zmm17 * 8).k2(), ymm4)?;
        asm.vscatterdpd(ptr(rsp + ymm18 * 8 + 3).k3(), zmm5)?;
        asm.vscatterqpd(ptr(rsp + xmm17).k4(), xmm21)?;
        asm.vpcompressd(zmmword_ptr(rsp + 600).k5(), zmm7)?;
        asm.vpcompressb(ymmword_ptr(rsp + 700).k5(), ymm8)?;
        asm.vcompresspd(xmmword_ptr(rsp + 764).k6(), xmm30)?;
        asm.syscall()
    });
    case(40, 8, |asm, _| {
        before_scatters(asm)?;
        asm.vpmovqb(qword_ptr(rsp + 1).k1(), zmm9)?;
        asm.vpmovdw(ymmword_ptr(rsp + 16).k2(), zmm10)?;
        asm.vpmovuswb(ymmword_ptr(rsp + 64).k3(), zmm11)?;
        asm.vextracti32x4(xmmword_ptr(rsp + 100).k4(), zmm12, 2)?;
        asm.vcvtps2ph(ymmword_ptr(rsp + 128).k5(), zmm17, 0)?;
        asm.vmovss(dword_ptr(rsp + 165).k6(), xmm1)?;
        asm.vmovaps(zmmword_ptr(rsp + 192).k1(), zmm31)?;
        asm.syscall()
    });
}

#[test]
fn saved_state() {
    case(30, 4, |asm, _| {
        asm.fninit()?;
        asm.fld1()?;
        asm.fnstenv(ptr(rsp + 64))?;
        // Single steps lose the instruction pointer on some processors.
        asm.mov(dword_ptr(rsp + 64 + 12), 0)?;
        asm.mov(dword_ptr(rsp + 64 + 16), 0)?;
        asm.mov(dword_ptr(rsp + 64 + 20), 0)?;
        asm.mov(dword_ptr(rsp + 64 + 24), 0)?;
        asm.and(rsp, -64)?;
        asm.fxsave64(ptr(rsp + 128))?;
        asm.fxsave(ptr(rsp + 1024))?;
        asm.syscall()
    });
}

#[test]
fn saved_extended_state() {
    case(30, 4, |asm, _| {
        asm.fninit()?;
        asm.mov(eax, 6)?;
        asm.xor(edx, edx)?;
        asm.and(rsp, -64)?;
        asm.xsavec(ptr(rsp + 256))?;
        asm.xsave64(ptr(rsp + 2048))?;
        asm.vpxor(ymm1, ymm2, ymm3)?;
        asm.xrstor(ptr(rsp + 256))?;
        asm.syscall()
    });
}

#[test]
fn high_bytes_and_segments() {
    case(30, 8, |asm, _| {
        asm.mov(byte_ptr(rsp), ah)?;
        asm.mov(byte_ptr(rsp + 1), sil)?;
        asm.mov(word_ptr(rsp + 6), r9w)?;
        asm.mov(qword_ptr(rsp + 16), -5)?;
        asm.push(-7)?;
        asm.push(rsp)?;
        asm.push(qword_ptr(rsp + 8))?;
        asm.pop(qword_ptr(rsp + 8))?;
        asm.rdfsbase(rbx)?;
        asm.lea(rcx, qword_ptr(rsp + 64))?;
        asm.wrfsbase(rcx)?;
        asm.mov(qword_ptr(8).fs(), rdx)?;
        asm.mov(qword_ptr(rbp).fs(), rdx)?;
        asm.wrfsbase(rbx)?;
        asm.syscall()
    });
}

/// Of every selector of the global table and some of the local one: what the kernel set up, on any processor.
#[test]
fn selectors_are_looked_at() {
    for first in (0..0x80u32).step_by(8) {
        case(60, 1, |asm, _| {
            for selector in [first, first + 3, first + 4] {
                asm.mov(ebx, selector)?;
                asm.lar(rax, rbx)?;
                asm.setz(byte_ptr(rsp))?;
                asm.lar(cx, bx)?;
                asm.adc(rdx, rcx)?;
                asm.verr(bx)?;
                asm.setz(byte_ptr(rsp + 1))?;
                asm.mov(word_ptr(rsp + 8), bx)?;
                asm.verw(word_ptr(rsp + 8))?;
                asm.setz(byte_ptr(rsp + 2))?;
                asm.lar(esi, word_ptr(rsp + 8))?;
            }
            asm.syscall()
        });
    }
}

/// What the kernel answers for processors that keep it to themselves.
#[test]
fn system_registers_are_looked_at() {
    case(30, 8, |asm, _| {
        asm.sldt(ax)?;
        asm.sldt(rbx)?;
        asm.str(ecx)?;
        asm.smsw(rdx)?;
        asm.smsw(esi)?;
        asm.adc(rdx, rax)?;
        asm.sldt(word_ptr(rsp))?;
        asm.str(word_ptr(rsp + 2))?;
        asm.smsw(word_ptr(rsp + 4))?;
        asm.sbb(rdx, rcx)?;
        asm.smsw(word_ptr(rsp + r8 * 2))?;
        asm.syscall()
    });
    case(30, 2, |asm, data| {
        asm.str(word_ptr(*data))?;
        asm.movzx(eax, word_ptr(*data))?;
        asm.syscall()?;
        asm.set_label(data)?;
        asm.dw(&[0x1234, 0x5678])
    });
}
