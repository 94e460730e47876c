//! Measuring a counter, and the verdict on this machine.

use std::path::Path;

use backstory_counter::{
    Event, EventCode, MeasureError, OpenError, Unavailable, Verdict, code_of_cpu, measure, probe,
    probed_branch,
};

#[test]
fn a_counter_of_traps_is_exact_and_on_time() {
    let quality = measure(Event::Breakpoint(probed_branch()), ptrace::current_cpu()).unwrap();
    assert!(quality.exact, "{quality}");
    assert_eq!((quality.overcount, quality.missed, quality.of), (0, 0, 4_000), "{quality}");
    assert!(quality.skid <= 1, "{quality}");
    assert!(!quality.loops, "the other loop is not where the breakpoint is");
}

#[test]
fn what_does_not_count_is_found_out() {
    // A few bytes before the branch: inside another instruction.
    let elsewhere = probed_branch().wrapping_add(0u64.wrapping_sub(1));
    let error = measure(Event::Breakpoint(elsewhere), ptrace::current_cpu()).unwrap_err();
    assert!(matches!(error, MeasureError::NoSignal { due: 200, within: 1_200 }), "{error}");
}

#[test]
fn an_event_that_nothing_counts_is_no_pmu() {
    // No unit has this number.
    let code = EventCode { unit: 0x7fff_0000, config: 0xD1 };
    let error = measure(Event::RetiredConditionalBranches(code), ptrace::current_cpu()).unwrap_err();
    assert!(matches!(error, MeasureError::Open(OpenError::NoPmu)), "{error}");
}

/// Where there is a performance monitoring unit, that the verdict is one; where there is none, that it says so.
#[test]
fn the_verdict_on_this_machine() {
    let cpu = ptrace::current_cpu();
    let verdict = probe(cpu);
    let units = Path::new("/sys/bus/event_source/devices");
    let has_unit = ["cpu", "cpu_core"].iter().any(|unit| units.join(unit).exists());
    let line = verdict.to_string();
    assert!(!line.contains('\n'), "{line}");
    match (verdict, code_of_cpu(cpu)) {
        (Verdict::Avoid(Unavailable::UnknownProcessor { .. }), Err(_)) => {
            assert!(line.contains("no code for retired conditional branches is known"), "{line}");
        }
        (Verdict::Avoid(Unavailable::Measure(MeasureError::Open(OpenError::NoPmu))), Ok(_)) => {
            assert!(!has_unit, "{line}");
            assert_eq!(
                line,
                "no hardware counter is used: this machine has no hardware performance counters \
                 (virtual machines often have none)"
            );
        }
        (Verdict::Use { code, quality }, known) => {
            assert!(has_unit);
            assert_eq!(code, known.unwrap());
            assert_eq!(quality.missed, 0, "{line}");
        }
        (Verdict::Avoid(why), Ok(_)) => assert!(has_unit, "{why}"),
        (Verdict::Avoid(why), Err(error)) => panic!("{why}, {error}"),
    }
}
