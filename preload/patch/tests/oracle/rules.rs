//! Each rule on hand-made code.

use iced_x86::code_asm::*;
use iced_x86::{IcedError, Mnemonic};
use patch::{CodeAddr, Method, Obstacle, Plan, Refusal, Registers, Text};

use crate::scene::{HIGH, LOW, SLOT, STUB, Scene};

type Assembled = Result<(), IcedError>;
type Build = fn(&mut CodeAssembler) -> Assembled;
/// An instruction that leads to a label.
type Enter<'a> = &'a dyn Fn(&mut CodeAssembler, CodeLabel) -> Assembled;

/// Assembles high up: what precedes the site, the site, and what follows.
fn scene(
    before: impl FnOnce(&mut CodeAssembler, CodeLabel) -> Assembled,
    after: impl FnOnce(&mut CodeAssembler, CodeLabel) -> Assembled,
) -> Scene {
    Scene::new(HIGH, |asm, site| {
        before(asm, *site)?;
        asm.set_label(site)?;
        asm.syscall()?;
        after(asm, *site)
    })
}

fn mov_number(asm: &mut CodeAssembler, _: CodeLabel) -> Assembled {
    asm.mov(eax, 39)
}

fn nothing(_: &mut CodeAssembler, _: CodeLabel) -> Assembled {
    Ok(())
}

/// What follows most calls of a C library.
fn compare(asm: &mut CodeAssembler, _: CodeLabel) -> Assembled {
    asm.cmp(rax, -4095)?;
    asm.ret()
}

#[track_caller]
fn works(scene: &Scene, method: Method) -> Plan {
    scene.by(method).unwrap_or_else(|obstacle| panic!("{obstacle}"))
}

#[track_caller]
fn fails(scene: &Scene, method: Method, expected: Obstacle) {
    match scene.by(method) {
        Ok(plan) => panic!("works: {plan:?}"),
        Err(obstacle) => assert_eq!(obstacle, expected),
    }
}

/// Instructions of one byte each.
fn pushes(asm: &mut CodeAssembler, count: usize) -> Assembled {
    for _ in 0..count {
        asm.push(rax)?;
    }
    Ok(())
}

fn nops(asm: &mut CodeAssembler, count: usize) -> Assembled {
    asm.nops_with_size(count)
}

#[test]
fn island_in_padding_after_the_return() {
    let scene = scene(mov_number, |asm, _| {
        asm.ret()?;
        nops(asm, 7)?;
        asm.push(rax)
    });
    let plan = works(&scene, Method::Island);
    assert_eq!(plan.writes[0].at, scene.at(3));
    assert_eq!(plan.writes[0].new, [0xFF, 0x24, 0x25, SLOT as u8, (SLOT >> 8) as u8, 2, 0]);
    assert_eq!((plan.writes[1].at, &plan.writes[1].new[..]), (scene.at(0), &[0xEB, 1][..]));
    assert_eq!(plan.stub.descriptor.resume, scene.at(2).0);
    let place = plan.map.plain(scene.at(3).0).unwrap();
    assert_eq!((place.pc, place.registers), (scene.at(0), Registers::All));
    assert_eq!(plan.map.plain(STUB + 16).unwrap().pc, scene.at(0));
    assert_eq!(plan.map.redirect(scene.at(0)), Some(STUB + 16));
    assert_eq!(plan.map.redirect(scene.at(2)), None);
}

#[test]
fn island_needs_room() {
    for (count, base, is_enough) in [(6, HIGH, false), (7, HIGH, true), (6, LOW, false), (7, LOW, true)] {
        let scene = Scene::new(base, |asm, site| {
            asm.set_label(site)?;
            asm.syscall()?;
            asm.ret()?;
            nops(asm, count)?;
            asm.push(rax)
        });
        assert_eq!(scene.by(Method::Island).is_ok(), is_enough, "{count} at {base:#x}");
    }
}

#[test]
fn island_through_a_relay() {
    // Five bytes of padding are near, and a function with nine before it further away.
    let build = |near: usize, is_called: bool, far: usize| {
        scene(mov_number, |asm, _| {
            let mut function = asm.create_label();
            asm.ret()?;
            nops(asm, near)?;
            if is_called {
                asm.call(function)?;
            } else {
                pushes(asm, 5)?;
            }
            pushes(asm, 16 * 20 - 5 - 3 - near - 5 - 1 - far)?;
            asm.ret()?;
            nops(asm, far)?;
            asm.set_label(&mut function)?;
            pushes(asm, 200)
        })
    };
    let scene = build(5, true, 9);
    let plan = works(&scene, Method::Island);
    let island = CodeAddr(HIGH + 16 * 20 - 9);
    assert_eq!(
        plan.writes.iter().map(|write| write.at).collect::<Vec<_>>(),
        [island, scene.at(3), scene.at(0)]
    );
    for write in &plan.writes[..2] {
        assert_eq!(plan.map.plain(write.at.0).unwrap().pc, scene.at(0));
    }
    for (near, is_called, far) in [(4, true, 9), (5, false, 9), (5, true, 6)] {
        fails(&build(near, is_called, far), Method::Island, Obstacle::NoPadding);
    }
}

#[test]
fn island_is_in_reach_of_a_short_jump() {
    for (distance, is_near) in [(127, true), (128, false)] {
        let after = scene(nothing, |asm, _| {
            for _ in 0..distance - 1 {
                asm.push(rax)?;
            }
            asm.ret()?;
            nops(asm, 7)
        });
        assert_eq!(after.by(Method::Island).is_ok(), is_near, "{distance} after");
    }
    // The short jump counts from its end: two bytes are its own, seven the island's.
    for (distance, is_near) in [(119, true), (120, false)] {
        let before = scene(
            |asm, _| {
                asm.ret()?;
                nops(asm, 7)?;
                for _ in 0..distance {
                    asm.push(rax)?;
                }
                Ok(())
            },
            compare,
        );
        assert_eq!(before.by(Method::Island).is_ok(), is_near, "{distance} before");
    }
}

#[test]
fn padding_that_is_run_is_none() {
    let ends: [(&str, Build, bool); 11] = [
        ("ret", |asm| asm.ret(), true),
        ("ret n", |asm| asm.ret_1(8), true),
        ("jmp", |asm| asm.jmp(HIGH), true),
        ("jmp reg", |asm| asm.jmp(rax), true),
        ("ud2", |asm| asm.ud2(), true),
        ("hlt", |asm| asm.hlt(), true),
        // A debugger, or a handler, may go on.
        ("int3", |asm| asm.int3(), false),
        ("call", |asm| asm.call(HIGH), false),
        ("call reg", |asm| asm.call(rax), false),
        ("syscall", |asm| asm.syscall(), false),
        ("push", |asm| asm.push(rax), false),
    ];
    for (name, end, is_end) in ends {
        let scene = scene(nothing, |asm, _| {
            asm.push(rax)?;
            end(asm)?;
            nops(asm, 9)?;
            asm.push(rax)
        });
        assert_eq!(scene.by(Method::Island).is_ok(), is_end, "{name}");
    }
}

#[test]
fn kinds_of_padding() {
    let kinds: [(&str, &[u8], bool); 7] = [
        ("int3", &[0xCC; 7], true),
        ("short nops", &[0x90; 7], true),
        ("long nop", &[0x0F, 0x1F, 0x80, 0, 0, 0, 0], true),
        ("prefixed nop", &[0x66, 0x66, 0x2E, 0x0F, 0x1F, 0x84, 0, 0, 0, 0, 0], true),
        ("mixed", &[0xCC, 0x66, 0x90, 0x0F, 0x1F, 0x40, 0x00], true),
        // Constants are often zero.
        ("zeros", &[0; 12], false),
        ("code", &[0x50; 7], false),
    ];
    for (name, bytes, is_padding) in kinds {
        let scene = scene(nothing, |asm, _| {
            asm.ret()?;
            asm.db(bytes)?;
            asm.push(rax)
        });
        assert_eq!(scene.by(Method::Island).is_ok(), is_padding, "{name}");
    }
}

#[test]
fn padding_is_unreachable_only_before_its_first_entry() {
    let entered = |room: usize, enter: Enter<'_>| {
        scene(nothing, |asm, _| {
            let mut inside = asm.create_label();
            enter(asm, inside)?;
            asm.ret()?;
            nops(asm, room)?;
            asm.set_label(&mut inside)?;
            nops(asm, 9)?;
            asm.push(rax)
        })
    };
    let ways: [(&str, Enter<'_>); 8] = [
        ("jump", &|asm, inside| asm.jmp(inside)),
        ("conditional", &|asm, inside| asm.je(inside)),
        ("loop", &|asm, inside| asm.loop_(inside)),
        ("address", &|asm, inside| asm.lea(rdi, ptr(inside))),
        ("operand", &|asm, inside| asm.mov(rdi, qword_ptr(inside))),
        ("operand, a byte follows", &|asm, inside| asm.cmp(dword_ptr(inside), 5)),
        ("operand, two bytes follow", &|asm, inside| asm.cmp(word_ptr(inside), 0x1234)),
        ("operand, four bytes follow", &|asm, inside| asm.cmp(dword_ptr(inside), 0x1234_5678)),
    ];
    for (name, way) in ways {
        for room in [0, 6] {
            assert_eq!(entered(room, way).by(Method::Island), Err(Obstacle::NoPadding), "{name}");
        }
        assert!(entered(11, way).by(Method::Island).is_ok(), "{name}");
    }
    let none = |asm: &mut CodeAssembler, _| asm.push(rax);
    assert!(entered(6, &none).by(Method::Island).is_ok());
    assert_eq!(entered(6, &none).knows(10).by(Method::Island), Err(Obstacle::NoPadding));
}

#[test]
fn what_follows_is_decoded_up_to_a_start_that_disagrees() {
    // A byte that is no instruction, and a constant that looks like a return and padding, if one begins at the byte.
    let build = || {
        scene(nothing, |asm, _| {
            asm.ret()?;
            asm.db(&[0xE8, 0x48, 0xB9, 0x50, 0x50, 0xC3, 0x90, 0x90, 0x90, 0x90, 0x90])?;
            asm.nops_with_size(2)?;
            asm.ret()
        })
    };
    works(&build(), Method::Island);
    fails(&build().knows(4), Method::Island, Obstacle::NoPadding);
}

#[test]
fn padding_is_shared() {
    let build = || {
        scene(nothing, |asm, _| {
            asm.ret()?;
            nops(asm, 15)?;
            asm.push(rax)
        })
    };
    let second = build().takes(3..10);
    assert_eq!(works(&second, Method::Island).writes[0].at, second.at(10));
    fails(&build().takes(3..10).takes(10..17), Method::Island, Obstacle::NoPadding);
    // The site itself.
    fails(&build().takes(1..2), Method::Island, Obstacle::Taken { at: build().at(1) });
}

#[test]
fn forward_over_whole_instructions() {
    let scene = scene(mov_number, compare);
    let plan = works(&scene, Method::Forward);
    assert_eq!((plan.writes[0].at, plan.writes[0].new.len()), (scene.at(0), 7));
    assert_eq!(plan.occupied, vec![scene.at(0)..scene.at(8)]);
    let resume = plan.stub.descriptor.resume;
    assert_eq!(plan.map.redirect(scene.at(2)), Some(resume));
    assert_eq!(plan.map.plain(resume).unwrap().pc, scene.at(2));
    assert_eq!(plan.map.plain(resume + 6).unwrap().pc, scene.at(8));
    assert_eq!(plan.map.redirect(scene.at(8)), None);
}

#[test]
fn a_window_is_not_entered() {
    // Its own first byte, its middle, the first byte behind it.
    for (offset, is_fine) in [(0, true), (2, false), (6, false), (7, true), (8, true)] {
        let expected =
            |scene: &Scene| if is_fine { Ok(()) } else { Err(Obstacle::Entered { at: scene.at(offset) }) };
        let short = scene(|asm, _| asm.db(&[0x74, offset as u8]), |asm, _| pushes(asm, 9));
        assert_eq!(short.by(Method::Forward).map(|_| ()), expected(&short), "short branch to {offset}");
        // `jmp`, `call`, `jne`, `xbegin`, `lea`
        for opcode in [&[0xE9][..], &[0xE8], &[0x0F, 0x85], &[0xC7, 0xF8], &[0x48, 0x8D, 0x0D]] {
            let far = scene(nothing, |asm, _| {
                pushes(asm, 40_000)?;
                asm.db(opcode)?;
                asm.dd(&[(offset - (2 + 40_000 + opcode.len() as i64 + 4)) as u32])
            });
            assert_eq!(far.by(Method::Forward).map(|_| ()), expected(&far), "{opcode:x?} to {offset}");
        }
        let known = scene(mov_number, |asm, _| pushes(asm, 9)).knows(offset);
        assert_eq!(known.by(Method::Forward).map(|_| ()), expected(&known), "known {offset}");
    }
}

#[test]
fn what_is_not_decoded_may_be_any_branch() {
    // Data that looks like a short branch to S+2. Only if it is known to be an operand is it none.
    let build = || scene(|asm, _| asm.db(&[0xB8, 0x75, 0x03, 0, 0]), compare);
    works(&build(), Method::Forward);
    fails(&build().knows_nothing(), Method::Forward, Obstacle::Entered { at: build().at(1) });
}

#[test]
fn forward_to_a_return_and_into_padding() {
    let build = |room: usize| {
        scene(nothing, |asm, _| {
            asm.ret()?;
            nops(asm, room)?;
            asm.push(rax)
        })
    };
    let plan = works(&build(4), Method::Forward);
    assert_eq!(plan.occupied, vec![build(4).at(0)..build(4).at(7)]);
    fails(&build(3), Method::Forward, Obstacle::NoRoom { at: build(3).at(6) });
    fails(&build(4).knows(5), Method::Forward, Obstacle::Entered { at: build(4).at(5) });
}

#[test]
fn forward_refuses_what_cannot_be_moved() {
    let immovable: [(Mnemonic, Build); 10] = [
        (Mnemonic::Syscall, |asm| asm.syscall()),
        (Mnemonic::Call, |asm| asm.call(rax)),
        (Mnemonic::Int3, |asm| asm.int3()),
        (Mnemonic::Int, |asm| asm.int(0x80)),
        (Mnemonic::Ud2, |asm| asm.ud2()),
        (Mnemonic::Rdtsc, |asm| asm.rdtsc()),
        (Mnemonic::Cpuid, |asm| asm.cpuid()),
        (Mnemonic::Fld1, |asm| asm.fld1()),
        (Mnemonic::Popfq, |asm| asm.popfq()),
        (Mnemonic::Jmp, |asm| asm.db(&[0x66, 0xE9, 0, 0, 0, 0])),
    ];
    for (mnemonic, build) in immovable {
        let scene = scene(nothing, |asm, _| {
            build(asm)?;
            nops(asm, 9)
        });
        fails(&scene, Method::Forward, Obstacle::Immovable { at: scene.at(2), mnemonic });
    }
}

#[test]
fn calls_return_behind_the_window() {
    let behind = scene(nothing, |asm, _| asm.call(HIGH + 0x4000));
    let plan = works(&behind, Method::Forward);
    let push = plan.stub.descriptor.resume;
    assert_eq!(plan.map.plain(push).unwrap().pc, behind.at(2));
    assert_eq!(plan.map.plain(push + 6).unwrap().pc, CodeAddr(HIGH + 0x4000));
    // No compiler's call is shorter, but there are prefixes to be wrong about.
    let prefixed = scene(nothing, |asm, _| asm.db(&[0x66, 0xE8, 0, 0x10, 0, 0]));
    fails(&prefixed, Method::Forward, Obstacle::Immovable { at: prefixed.at(2), mnemonic: Mnemonic::Call });
}

#[test]
fn operands_relative_to_rip() {
    let build = |base, opcode: u8| {
        Scene::new(base, |asm, site| {
            asm.set_label(site)?;
            asm.syscall()?;
            asm.db(&[0x4C, opcode, 0x0D, 0, 0, 0x20, 0])
        })
    };
    let load = build(HIGH, 0x8B);
    let target = CodeAddr(HIGH + 9 + 0x20_0000);
    fails(&load, Method::Forward, Obstacle::OutOfReach { at: load.at(2), target });
    works(&build(LOW, 0x8B), Method::Forward);
    // Of `lea`, the address.
    let plan = works(&build(HIGH, 0x8D), Method::Forward);
    let at = (plan.stub.descriptor.resume - STUB) as usize;
    assert_eq!(plan.stub.bytes[at..at + 10], [&[0x49, 0xB9][..], &target.0.to_le_bytes()].concat());
}

#[test]
fn forward_ends_where_the_code_does() {
    let short = scene(nothing, |asm, _| asm.push(rax));
    fails(&short, Method::Forward, Obstacle::Undecodable { at: short.at(3) });
    let invalid = scene(nothing, |asm, _| asm.db(&[0x50, 0x06, 0x06, 0x06, 0x06, 0x06, 0x06]));
    fails(&invalid, Method::Forward, Obstacle::Undecodable { at: invalid.at(3) });
}

#[test]
fn backward_over_the_number() {
    let scene = scene(
        |asm, _| {
            asm.push(rbx)?;
            asm.mov(eax, 39)
        },
        compare,
    );
    let plan = works(&scene, Method::Backward);
    assert_eq!((plan.writes[0].at, plan.writes[0].new.len()), (scene.at(-5), 7));
    assert_eq!(plan.stub.descriptor.resume, scene.at(2).0);
    assert_eq!(plan.map.redirect(scene.at(-5)), Some(STUB + 16));
    // A call that is made again.
    assert_eq!(plan.map.redirect(scene.at(0)), Some(STUB + 21));
    assert_eq!(plan.map.redirect(scene.at(-6)), None);
}

#[test]
fn backward_is_not_entered() {
    let build =
        |offset: i64| scene(|asm, _| pushes(asm, 8), |asm, _| asm.db(&[0x74, (offset - 4) as u8, 0xC3]));
    for (offset, is_fine) in [(-6, true), (-5, true), (-4, false), (-1, false), (0, false), (2, true)] {
        let scene = build(offset);
        let expected = if is_fine { Ok(()) } else { Err(Obstacle::Entered { at: scene.at(offset) }) };
        assert_eq!(scene.by(Method::Backward).map(|_| ()), expected, "{offset}");
    }
}

#[test]
fn backward_needs_starts_that_agree() {
    let number = |asm: &mut CodeAssembler, _| asm.mov(eax, 0x5050_5050);
    let build = || scene(number, compare);
    works(&build(), Method::Backward);
    let unknown = Obstacle::Unknown { at: build().at(0) };
    fails(&build().knows_nothing(), Method::Backward, unknown);
    // An instruction is known to begin inside of another one.
    fails(&build().knows(-2), Method::Backward, unknown);
    // One is known from which no row of instructions leads to the site.
    let over = scene(|asm, _| asm.mov(eax, 0xB800_0027_u32), compare).knows(-1);
    fails(&over, Method::Backward, unknown);
    // So it is if a branch leads there.
    let branch = scene(number, |asm, _| asm.db(&[0x74, 0xFA, 0xC3]));
    fails(&branch, Method::Backward, unknown);
    // Unless that skips a prefix.
    let skips = |prefix| {
        let before = move |asm: &mut CodeAssembler, _| {
            asm.db(&[0x74, 1, prefix, 0x48, 0x0F, 0xB1, 0x0F])?;
            asm.mov(eax, 39)
        };
        scene(before, compare)
    };
    works(&skips(0xF0), Method::Backward);
    fails(&skips(0x26), Method::Backward, Obstacle::Unknown { at: skips(0x26).at(0) });
    // Padding and the target of a call are two starts.
    let found = |is_called: bool| {
        let before = move |asm: &mut CodeAssembler, _| {
            let mut function = asm.create_label();
            if is_called {
                asm.call(function)?
            } else {
                nops(asm, 5)?
            }
            nops(asm, 11)?;
            asm.set_label(&mut function)?;
            asm.mov(eax, 39)
        };
        scene(before, compare).knows_nothing()
    };
    works(&found(true), Method::Backward);
    fails(&found(false), Method::Backward, Obstacle::Unknown { at: found(false).at(0) });
}

#[test]
fn backward_does_not_run_through_an_end() {
    let before = |asm: &mut CodeAssembler, _| {
        nops(asm, 9)?;
        asm.ret()?;
        asm.mov(edi, eax)
    };
    let scene = scene(before, compare);
    fails(&scene, Method::Backward, Obstacle::NoRoom { at: scene.at(-2) });
}

#[test]
fn windows_do_not_overlap() {
    fails(
        &scene(mov_number, compare).takes(7..9),
        Method::Forward,
        Obstacle::Taken { at: scene(mov_number, compare).at(7) },
    );
    works(&scene(mov_number, compare).takes(8..9), Method::Forward);
    works(&scene(mov_number, compare).takes(2..9), Method::Backward);
    assert!(scene(mov_number, compare).takes(-5..-4).by(Method::Backward).is_err());
}

#[test]
fn sites_that_stay() {
    for bytes in [&[0x48, 0xC7, 0xC0, 15, 0, 0, 0][..], &[0xB8, 15, 0, 0, 0][..]] {
        let scene = scene(|asm, _| asm.db(bytes), compare);
        let text = Text::new(scene.bytes.clone());
        assert_eq!(scene.examine(&text, &[]).unwrap_err(), Refusal::Restorer { at: scene.at(0) });
    }
    let mut moved = scene(mov_number, compare);
    moved.site += 1;
    let text = Text::new(moved.bytes.clone());
    assert_eq!(moved.examine(&text, &[]).unwrap_err(), Refusal::NoTarget { at: moved.at(0) });
}

#[test]
fn numbers_that_show() {
    let shows: [(u32, bool, Build); 6] = [
        (39, true, |asm| asm.mov(eax, 39)),
        (39, true, |asm| asm.db(&[0x48, 0xC7, 0xC0, 39, 0, 0, 0]).and_then(|()| asm.xor(edi, edi))),
        (0, true, |asm| asm.xor(eax, eax)),
        (39, false, |asm| asm.mov(eax, 39).and_then(|()| asm.add(eax, 1))),
        (39, false, |asm| asm.mov(eax, 39).and_then(|()| asm.call(rdx))),
        (39, false, |asm| asm.mov(ecx, 39)),
    ];
    for (index, (number, is_shown, build)) in shows.into_iter().enumerate() {
        let scene = scene(|asm, _| build(asm), compare);
        let text = Text::new(scene.bytes.clone());
        let refusal = scene.examine(&text, &[number]).err();
        let expected = is_shown.then_some(Refusal::Number { at: scene.at(0), number });
        assert_eq!(refusal, expected, "case {index}");
    }
}

#[test]
fn a_refusal_names_what_stands_in_the_way() {
    let scene = scene(nothing, |asm, _| asm.cpuid());
    let text = Text::new(scene.bytes.clone());
    let facts = patch::Facts { entries: &scene.entries, ..patch::Facts::default() };
    let refusal = patch::plan(&text, crate::scene::site(scene.base, scene.site), facts).unwrap_err();
    assert_eq!(
        refusal.to_string(),
        "no method for the instruction at 0x600000100000 (island: no padding in reach; forward: Cpuid at 0x600000100002 \
         cannot be moved; backward: instructions before 0x600000100000 are not known)"
    );
}
