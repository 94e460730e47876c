//! A recording that says something else than what runs is found out, by name.

use replayer::{Difference, Divergence, Options, Replay, ReplayError, Silent, Until};
use trace::{Data, Fact, Stop, Trace};

use crate::recorded::{altered, find, record, turn};

#[track_caller]
fn divergence(trace: &Trace) -> Divergence {
    let mut replay = Replay::open(trace, &Options::default()).unwrap();
    match replay.run(Until::End, &mut Silent) {
        Err(ReplayError::Divergence(found)) => *found,
        other => panic!("no divergence: {other:?}"),
    }
}

#[test]
fn a_changed_register_is_named() {
    let _turn = turn();
    let scratch = tempfile::tempdir().unwrap();
    let trace = record(scratch.path(), &["/bin/echo", "hello"]);
    let at = find(&trace, |event| matches!(event.fact, Fact::Syscall(_)));
    let bad = altered(&trace, &scratch.path().join("bad"), |id, event| {
        if id == at {
            event.before.rbx ^= 1;
        }
    });
    let found = divergence(&bad);
    assert_eq!((found.event.0, found.last_good.map(|good| good.0)), (at, at.checked_sub(1)));
    let Difference::Registers(registers) = &found.what else { panic!("{found}") };
    assert_eq!(registers.len(), 1);
    assert_eq!(registers[0].register.to_string(), "rbx");
    assert_eq!(registers[0].expected ^ 1, registers[0].actual);
    assert!(found.to_string().contains("rbx is"), "{found}");
}

#[test]
fn changed_output_is_noticed() {
    let _turn = turn();
    let scratch = tempfile::tempdir().unwrap();
    let trace = record(scratch.path(), &["/bin/echo", "hello"]);
    let bad = altered(&trace, &scratch.path().join("bad"), |_, event| {
        if let Fact::Syscall(info) = &mut event.fact
            && info.output.is_some()
        {
            info.output_crc ^= 1;
        }
    });
    assert!(matches!(divergence(&bad).what, Difference::Output { .. }));
}

#[test]
fn changed_input_leads_elsewhere() {
    let _turn = turn();
    let scratch = tempfile::tempdir().unwrap();
    let input = scratch.path().join("input");
    std::fs::write(&input, "what the program read\n").unwrap();
    let trace = record(scratch.path(), &["cat", input.to_str().unwrap()]);
    let bad = altered(&trace, &scratch.path().join("bad"), |_, event| {
        for write in &mut event.writes {
            if let Data::Inline(bytes) = &mut write.data
                && bytes.starts_with(b"what the")
            {
                bytes[0] = b'W';
            }
        }
    });
    assert!(matches!(divergence(&bad).what, Difference::Output { .. }));
}

#[test]
fn a_missing_event_is_noticed() {
    let _turn = turn();
    let scratch = tempfile::tempdir().unwrap();
    let trace = record(scratch.path(), &["/bin/echo", "hello"]);
    // An instruction is recorded where the program makes a syscall.
    let at = find(&trace, |event| matches!(event.fact, Fact::Syscall(_)));
    let bad = altered(&trace, &scratch.path().join("bad"), |id, event| {
        if id == at {
            event.stop = Stop::Instruction(trace::Trapped::Rdtsc);
            event.fact = Fact::Instruction;
        }
    });
    let found = divergence(&bad);
    assert_eq!(found.event.0, at);
    assert!(matches!(found.what, Difference::Stop { .. }), "{found}");
}
