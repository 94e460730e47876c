//! Hand-made windows, run plain and patched: each way in which an instruction is moved.

use iced_x86::IcedError;
use iced_x86::code_asm::*;
use patch::Method;

use crate::equal::{Outcome, Window};
use crate::native::{CODE_LEN, World};
use crate::scene::{HIGH, LOW, Scene};

const TRIES: u64 = 60;

type Assembled = Result<(), IcedError>;

/// Runs a window by each of `methods`, high up and low down. Says how the runs ended.
#[track_caller]
fn check(
    methods: &[Method],
    build: impl Fn(&mut CodeAssembler, &mut CodeLabel) -> Assembled,
) -> Vec<Outcome> {
    let world = World::new();
    let mut outcomes = Vec::new();
    for base in [HIGH, LOW] {
        let scene = Scene::new(base, &build);
        let mut code = scene.bytes.clone();
        code.resize(CODE_LEN, 0xCC);
        for &method in methods {
            let plan =
                scene.by(method).unwrap_or_else(|obstacle| panic!("{method:?} at {base:#x}: {obstacle}"));
            outcomes.extend(Window { world: &world, base, code: code.clone(), plan }.check(TRIES));
        }
    }
    outcomes
}

/// What follows the site.
#[track_caller]
fn forward(build: impl Fn(&mut CodeAssembler) -> Assembled) -> Vec<Outcome> {
    check(&[Method::Forward], |asm, site| {
        asm.set_label(site)?;
        asm.syscall()?;
        build(asm)
    })
}

/// What precedes the site.
#[track_caller]
fn backward(build: impl Fn(&mut CodeAssembler) -> Assembled) -> Vec<Outcome> {
    check(&[Method::Backward], |asm, site| {
        build(asm)?;
        asm.set_label(site)?;
        asm.syscall()?;
        asm.ret()
    })
}

#[track_caller]
fn all_left(outcomes: &[Outcome]) {
    assert!(outcomes.iter().all(|&outcome| outcome == Outcome::Left), "{outcomes:?}");
}

#[test]
fn all_methods_for_a_wrapper() {
    all_left(&check(&Method::ALL, |asm, site| {
        let mut failed = asm.create_label();
        asm.mov(eax, 39)?;
        asm.set_label(site)?;
        asm.syscall()?;
        asm.cmp(rax, -4095)?;
        asm.jae(failed)?;
        asm.ret()?;
        asm.set_label(&mut failed)?;
        asm.neg(eax)?;
        asm.ret()?;
        asm.nops_with_size(9)
    }));
}

#[test]
fn all_methods_for_a_reading() {
    for both in [false, true] {
        let outcomes = check(&Method::ALL, |asm, site| {
            asm.mov(rbx, rax)?;
            asm.lea(rsi, qword_ptr(rbx + rbx * 2 + 17))?;
            asm.set_label(site)?;
            if both {
                asm.rdtscp()?;
            } else {
                asm.rdtsc()?;
            }
            asm.shl(rdx, 32)?;
            asm.or(rax, rdx)?;
            asm.sub(rax, r11)?;
            asm.ret()?;
            asm.nops_with_size(9)
        });
        all_left(&outcomes);
    }
}

#[test]
fn where_a_reading_goes_on_is_told_if_nothing_comes_between() {
    let exit = |build: &dyn Fn(&mut CodeAssembler) -> Assembled| {
        let scene = Scene::new(HIGH, |asm, site| {
            asm.set_label(site)?;
            asm.rdtsc()?;
            build(asm)?;
            asm.ret()
        });
        let after = |plan: patch::Plan| plan.exit.map(|exit| exit.0 - scene.site);
        after(scene.by(Method::Forward).unwrap())
    };
    let shifted = |asm: &mut CodeAssembler| {
        asm.shl(rdx, 32)?;
        asm.or(rax, rdx)
    };
    assert_eq!(exit(&shifted), Some(9));
    let stored = |asm: &mut CodeAssembler| {
        asm.shl(rdx, 32)?;
        asm.mov(qword_ptr(rdi), rdx)
    };
    assert_eq!(exit(&stored), None, "memory may not be there");
    assert_eq!(exit(&|asm| asm.div(rbx).and_then(|()| asm.nops_with_size(4))), None, "it may fault");
    assert_eq!(exit(&|asm| asm.nops_with_size(5)), Some(7));
    let vectors = |asm: &mut CodeAssembler| {
        asm.movq(xmm0, rax)?;
        asm.addsd(xmm0, xmm1)
    };
    assert_eq!(exit(&vectors), None, "it may raise a signal");
}

#[test]
fn conditional_branches_taken_and_not() {
    let outcomes = forward(|asm| {
        let mut away = asm.create_label();
        asm.test(rax, rax)?;
        asm.js(away)?;
        asm.adc(rbx, rax)?;
        asm.set_label(&mut away)?;
        asm.ret()
    });
    all_left(&outcomes);
    all_left(&forward(|asm| {
        let mut away = asm.create_label();
        asm.jo(away)?;
        asm.jp(away)?;
        asm.jbe(away)?;
        asm.nops_with_size(200)?;
        asm.set_label(&mut away)?;
        asm.ret()
    }));
    all_left(&backward(|asm| {
        let away = asm.create_label();
        let mut away = away;
        asm.set_label(&mut away)?;
        asm.push(rax)?;
        asm.jl(away)?;
        asm.jne(away)?;
        asm.mov(edi, esi)
    }));
}

#[test]
fn jumps_and_returns() {
    all_left(&forward(|asm| {
        let mut away = asm.create_label();
        asm.mov(edx, eax)?;
        asm.push(rdx)?;
        asm.jmp(away)?;
        asm.push(rax)?;
        asm.set_label(&mut away)?;
        asm.ret()
    }));
    // To addresses that are none, too.
    forward(|asm| {
        asm.push(rbx)?;
        asm.ret()?;
        asm.nops_with_size(9)
    });
    forward(|asm| {
        asm.mov(edx, eax)?;
        asm.push(rbx)?;
        asm.ret_1(16)
    });
    forward(|asm| {
        asm.mov(rbx, qword_ptr(rsi))?;
        asm.jmp(rbx)
    });
    forward(|asm| {
        asm.mov(edx, eax)?;
        asm.jmp(qword_ptr(rsi + 8))
    });
}

#[test]
fn counted_branches() {
    for narrow in [false, true] {
        let build = |asm: &mut CodeAssembler, opcode: u8| {
            if narrow {
                asm.db(&[0x67])?;
            }
            asm.db(&[opcode, 0x10])
        };
        // `loopne`, `loope`, `loop`, `jrcxz`
        for opcode in 0xE0..=0xE3 {
            all_left(&forward(|asm| {
                asm.mov(ecx, edi)?;
                build(asm, opcode)?;
                asm.push(rcx)?;
                asm.ret()
            }));
            all_left(&backward(|asm| {
                asm.nops_with_size(9)?;
                asm.mov(rcx, rdi)?;
                build(asm, opcode)
            }));
        }
    }
}

#[test]
fn loops_over_the_site() {
    all_left(&check(&[Method::Forward], |asm, site| {
        asm.set_label(site)?;
        asm.syscall()?;
        asm.add(edi, 1)?;
        asm.test(eax, eax)?;
        asm.jne(*site)?;
        asm.ret()
    }));
    // The whole window is run again.
    let again = check(&[Method::Backward], |asm, site| {
        let mut again = asm.create_label();
        asm.set_label(&mut again)?;
        asm.add(rdi, 1)?;
        asm.mov(eax, ebx)?;
        asm.set_label(site)?;
        asm.syscall()?;
        asm.cmp(rax, 0)?;
        asm.jne(again)?;
        asm.ret()
    });
    all_left(&again);
}

#[test]
fn calls_push_the_plain_address() {
    all_left(&forward(|asm| {
        let mut function = asm.create_label();
        asm.call(function)?;
        asm.ret()?;
        asm.set_label(&mut function)?;
        asm.pop(rax)?;
        asm.ret()
    }));
    all_left(&forward(|asm| {
        asm.mov(edi, eax)?;
        let mut function = asm.create_label();
        asm.call(function)?;
        asm.nop()?;
        asm.set_label(&mut function)?;
        asm.ret()
    }));
}

#[test]
fn addresses_relative_to_rip() {
    all_left(&forward(|asm| {
        let mut here = asm.create_label();
        asm.lea(rdx, ptr(here))?;
        asm.ret()?;
        asm.set_label(&mut here)?;
        asm.dq(&[1])
    }));
    all_left(&backward(|asm| {
        let mut here = asm.create_label();
        asm.push(rbp)?;
        asm.lea(r13d, ptr(here))?;
        asm.set_label(&mut here)?;
        asm.mov(edi, ebx)?;
        asm.mov(edi, ebx)
    }));
}

#[test]
fn operands_relative_to_rip_where_they_are_in_reach() {
    let world = World::new();
    for number in 0..3 {
        let scene = Scene::new(LOW, |asm, site| {
            let mut data = asm.create_label();
            asm.set_label(site)?;
            asm.syscall()?;
            match number {
                0 => asm.mov(rdx, qword_ptr(data))?,
                1 => asm.cmp(dword_ptr(data), 5)?,
                _ => asm.add(word_ptr(data), 0x1234)?,
            }
            asm.ret()?;
            asm.set_label(&mut data)?;
            asm.dq(&[0x1122_3344_5566_7788])
        });
        let mut code = scene.bytes.clone();
        code.resize(CODE_LEN, 0xCC);
        let plan = scene.by(Method::Forward).unwrap();
        all_left(&Window { world: &world, base: LOW, code, plan }.check(TRIES));
    }
}

#[test]
fn faults_of_moved_instructions() {
    let is_mixed = |outcomes: Vec<Outcome>| {
        assert!(
            outcomes.contains(&Outcome::Left) && outcomes.contains(&Outcome::Signal(libc::SIGSEGV)),
            "{outcomes:?}"
        );
    };
    is_mixed(forward(|asm| {
        asm.push(rax)?;
        asm.mov(qword_ptr(rbx + 8), rax)?;
        asm.ret()
    }));
    is_mixed(forward(|asm| {
        asm.mov(rdx, qword_ptr(rbp))?;
        asm.xchg(qword_ptr(rsi), rdx)?;
        asm.ret()
    }));
    is_mixed(backward(|asm| {
        asm.mov(rdi, qword_ptr(rbx))?;
        asm.mov(dword_ptr(rbp + 4), edi)
    }));
    is_mixed(forward(|asm| {
        let mut function = asm.create_label();
        asm.mov(rsp, rbx)?;
        asm.call(function)?;
        asm.set_label(&mut function)?;
        asm.ret()
    }));
}

#[test]
fn stacks_segments_strings_and_vectors() {
    all_left(&backward(|asm| {
        asm.push(r11)?;
        asm.push(rcx)?;
        asm.pop(rdi)?;
        asm.mov(rax, qword_ptr(0x10).fs())
    }));
    all_left(&forward(|asm| {
        asm.pushfq()?;
        asm.push(r11)?;
        asm.push(rcx)?;
        asm.sub(rax, qword_ptr(0x28).fs())?;
        asm.ret()
    }));
    all_left(&forward(|asm| {
        asm.movups(xmm3, xmmword_ptr(rsp))?;
        asm.pxor(xmm0, xmm0)?;
        asm.ret()
    }));
    let strings = backward(|asm| {
        asm.movsq()?;
        asm.stosb()?;
        asm.lodsd()?;
        asm.movsb()
    });
    assert!(strings.contains(&Outcome::Left), "{strings:?}");
}
