//! Golden texts of answers.

use crate::answer::{
    Answer, Bytes, Coverage, Hop, Origin, Place, Source, StackFrame, Target, Verdict, Writer,
};

fn place(function: &str, file: &str, line: u32, source: &str) -> Place {
    Place {
        pc: "0x555555555189".to_owned(),
        function: Some(function.to_owned()),
        module: Some("s1+0x1189".to_owned()),
        file: Some(format!("/home/user/{file}")),
        line: Some(line),
        source: Some(source.to_owned()),
        source_changed: false,
    }
}

fn frame(place: Place) -> StackFrame {
    StackFrame { place, entered: Some(90), ..StackFrame::default() }
}

fn number(value: u64, size: usize) -> Option<Bytes> {
    let bytes: Vec<_> = value.to_le_bytes()[..size].iter().copied().map(Some).collect();
    Bytes::new(&bytes, None)
}

fn target(name: Option<&str>, size: u64) -> Target {
    Target {
        addr: "0x5555555592b0".to_owned(),
        size,
        name: name.map(str::to_owned),
        space: 0,
        field: None,
        program: None,
    }
}

fn whole(len: u64) -> Coverage {
    Coverage { addr: "0x5555555592b0".to_owned(), len, first: 0, count: len }
}

#[track_caller]
fn check(answer: &Answer, expected: &str) {
    assert_eq!(answer.to_string(), expected.trim_start_matches('\n'));
}

#[test]
fn a_store_in_a_program_with_symbols() {
    let culprit = place("fill_metric", "s1.c", 16, "m->value = v;");
    let hop = Hop {
        moment: 123_456,
        task: 0,
        tid: Some(4242),
        space: 0,
        aliased: false,
        program: None,
        writer: Writer::Instruction {
            place: culprit.clone(),
            text: Some("mov qword ptr [rax+0x10], rdx".to_owned()),
        },
        coverage: whole(8),
        values_at: "0x5555555592b0".to_owned(),
        old: number(42, 8),
        new: number(9001, 8),
        stack: vec![frame(culprit), frame(place("main", "s1.c", 24, "fill_metric(m, 9001);"))],
    };
    let answer =
        Answer { target: target(None, 8), before: 200_000, verdict: Verdict::Written(Box::new(hop)) };
    check(
        &answer,
        "
0x5555555592b0, 8 bytes: last written at @123456 by task 0 (tid 4242)
  by     fill_metric at s1.c:16
         m->value = v;
  insn   0x555555555189  mov qword ptr [rax+0x10], rdx
  write  8 bytes at 0x5555555592b0
  value  42 (0x2a) -> 9001 (0x2329)
  stack
    #0  fill_metric at s1.c:16
    #1  main at s1.c:24
  go     backstory gdb --at @123456",
    );
    assert!(answer.text(Some("'my trace'")).ends_with("  go     backstory gdb -t 'my trace' --at @123456"));
    let json: serde_json::Value = serde_json::from_str(&answer.to_json()).expect("json");
    assert_eq!(json["verdict"], "written");
    assert_eq!(json["moment"], 123_456);
    assert_eq!(json["writer"]["instruction"]["place"]["line"], 16);
    assert_eq!(json["new"]["number"], 9001);
}

#[test]
fn a_partial_write_in_a_library_behind_a_tail_call() {
    let libc = Place {
        pc: "0x7ffff7f2a1d4".to_owned(),
        function: Some("memcpy".to_owned()),
        module: Some("libc.so.6+0x1751d4".to_owned()),
        ..Place::default()
    };
    let tail =
        StackFrame { jumped: Some(99), ..frame(place("set_name", "s2.c", 15, "memcpy(u[i].name, s, n);")) };
    let hop = Hop {
        moment: 100,
        task: 0,
        tid: None,
        space: 0,
        aliased: false,
        program: None,
        writer: Writer::Instruction {
            place: libc.clone(),
            text: Some("movups xmmword ptr [rdi], xmm0".to_owned()),
        },
        coverage: Coverage { addr: "0x5555555592a4".to_owned(), len: 16, first: 0, count: 4 },
        values_at: "0x5555555592b0".to_owned(),
        old: number(0, 8),
        new: number(0x616e_2d67, 8),
        stack: vec![
            StackFrame { entered: None, ..frame(libc) },
            tail,
            frame(place("main", "s2.c", 21, "set_name();")),
        ],
    };
    let answer = Answer {
        target: target(Some("users+0xb8"), 8),
        before: 200_000,
        verdict: Verdict::Written(Box::new(hop)),
    };
    check(
        &answer,
        "
0x5555555592b0 <users+0xb8>, 8 bytes: last written at @100 by task 0
  by     memcpy in libc.so.6+0x1751d4
  insn   0x7ffff7f2a1d4  movups xmmword ptr [rdi], xmm0
  from   set_name at s2.c:15
         memcpy(u[i].name, s, n);
  write  16 bytes at 0x5555555592a4, which cover only bytes 0 to 3 of the target
  value  0 -> 1634610535 (0x616e2d67)
  stack
    #0  memcpy in libc.so.6+0x1751d4
    #1  set_name at s2.c:15 (left by a jump at @99)
    #2  main at s2.c:21
  go     backstory gdb --at @100",
    );
}

#[test]
fn the_kernel_and_a_forked_space() {
    let read = Writer::Kernel {
        text: "read(3, 0x4060, 400) = 400 </tmp/storyX>".to_owned(),
        fd: Some(3),
        path: Some("/tmp/storyX".to_owned()),
        offset: Some(300),
        place: None,
        source: Some(Source {
            moment: 3,
            text: "write(3, 0x7ffc10, 400) = 400 </tmp/storyX>".to_owned(),
            addr: "0x7ffd3c".to_owned(),
        }),
    };
    let hop = Hop {
        moment: 7,
        task: 1,
        tid: Some(11),
        space: 0,
        aliased: false,
        program: None,
        writer: read,
        coverage: Coverage { addr: "0x4060".to_owned(), len: 400, first: 0, count: 1 },
        values_at: "0x5555555592b0".to_owned(),
        old: None,
        new: number(64, 1),
        stack: vec![
            StackFrame { signal: true, ..StackFrame::default() },
            frame(place("load", "s6.c", 20, "read(fd, inbuf, 400);")),
        ],
    };
    let target = Target { space: 2, ..target(Some("inbuf+0x12c"), 1) };
    let answer = Answer { target, before: 9, verdict: Verdict::Written(Box::new(hop)) };
    check(
        &answer,
        "
0x5555555592b0 <inbuf+0x12c>, 1 byte: last written at @7 by task 1 (tid 11) in space 0, before space 2 was forked from it
  by     the kernel, read(3, 0x4060, 400) = 400 </tmp/storyX>
  file   the first byte comes from file offset 300
  from   load at s6.c:20
         read(fd, inbuf, 400);
  write  400 bytes at 0x4060, the target among them
  value  ? -> 64 (0x40)
  stack
    #0  <signal delivered>
    #1  load at s6.c:20
  go     backstory gdb --at @7
  next   backstory why 0x7ffd3c --at @3
         it came into the file by write(3, 0x7ffc10, 400) = 400 </tmp/storyX>",
    );
}

#[test]
fn nobody_wrote_it() {
    let origin = Origin {
        mapped_at: 5,
        mapped_by: "exec of /bin/true".to_owned(),
        name: "/bin/true".to_owned(),
        file: Some(("/bin/true".to_owned(), 0x3010)),
        value: Bytes::new(&[Some(1), Some(2), Some(3)], None),
    };
    let answer =
        Answer { target: target(Some("counter"), 3), before: 9, verdict: Verdict::NeverWritten(origin) };
    check(
        &answer,
        "
0x5555555592b0 <counter>, 3 bytes: never written since it was mapped at @5 by exec of /bin/true
  from   /bin/true offset 0x3010
  in     /bin/true
  value  010203",
    );
    let answer = Answer { target: target(Some("counter"), 30), ..answer };
    assert!(answer.to_string().ends_with("  value  010203.."), "{answer}");
}
