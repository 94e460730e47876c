//! Which row of the table of codes this machine is: CPUID, and the units that sysfs shows.

use std::arch::x86_64::__cpuid_count;

use crate::codes::{Core, Processor, code};
use crate::error::Unavailable;
use crate::event::EventCode;

const UNITS: &str = "/sys/bus/event_source/devices";
/// `PERF_TYPE_RAW` (`include/uapi/linux/perf_event.h`).
const RAW: u32 = 4;

/// The units of hybrid processors, one per kind of core (Linux, `arch/x86/events/intel/core.c`).
const HYBRID: [(&str, Core); 3] =
    [("cpu_core", Core::Big), ("cpu_atom", Core::Small), ("cpu_lowpower", Core::Small)];

/// The code of retired conditional branches on one of this machine's processors, by its number. That there is a code does not mean that
/// there is a counter: virtual machines often have none.
///
/// # Errors
///
/// The table does not have this processor.
pub fn code_of_cpu(cpu: usize) -> Result<EventCode, Unavailable> {
    let [leaf_0, leaf_1] = [0, 1].map(|leaf| {
        let answer = __cpuid_count(leaf, 0);
        [answer.eax, answer.ebx, answer.ecx, answer.edx]
    });
    let processor = Processor::new(leaf_0, leaf_1);
    let file = |unit: &str, name: &str| std::fs::read_to_string(format!("{UNITS}/{unit}/{name}")).ok();
    let (core, unit) = unit_of_cpu(cpu, file);
    let (_, config) = code(processor, core).ok_or_else(|| Unavailable::UnknownProcessor {
        vendor: String::from_utf8_lossy(&processor.vendor).into_owned(),
        family: processor.family,
        model: processor.model,
    })?;
    Ok(EventCode { unit, config })
}

/// The kind of core of a processor, and the number of its unit; `file` reads one of a unit's files.
fn unit_of_cpu(cpu: usize, file: impl Fn(&str, &str) -> Option<String>) -> (Core, u32) {
    let of_hybrid = HYBRID.into_iter().find_map(|(unit, core)| {
        let has = has_cpu(&file(unit, "cpus")?, cpu);
        let number = file(unit, "type")?.trim().parse().ok()?;
        has.then_some((core, number))
    });
    of_hybrid.unwrap_or((Core::Big, RAW))
}

/// Whether a list such as `0-3,8` has a number.
fn has_cpu(list: &str, cpu: usize) -> bool {
    list.trim().split(',').any(|part| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        matches!((first.parse::<usize>(), last.parse::<usize>()), (Ok(first), Ok(last)) if (first..=last).contains(&cpu))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_of_hybrid_and_other_processors() {
        let hybrid = |unit: &str, name: &str| {
            let text = match (unit, name) {
                ("cpu_core", "cpus") => "0-7,16\n",
                ("cpu_core", "type") => "4\n",
                ("cpu_atom", "cpus") => "8-15\n",
                ("cpu_atom", "type") => "10\n",
                _ => return None,
            };
            Some(text.to_owned())
        };
        for (cpu, expected) in [
            (0, (Core::Big, 4)),
            (7, (Core::Big, 4)),
            (16, (Core::Big, 4)),
            (8, (Core::Small, 10)),
            (15, (Core::Small, 10)),
        ] {
            assert_eq!(unit_of_cpu(cpu, hybrid), expected, "{cpu}");
        }
        assert_eq!(unit_of_cpu(3, |_, _| None), (Core::Big, RAW));
        assert!(!has_cpu("", 0));
    }
}
