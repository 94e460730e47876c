//! `backstory dump`: the events of a recording as lines, nothing replayed.

use std::io::{BufWriter, Write};
use std::process::ExitCode;

use guest::EventId;
use trace::{Event, Fact, Moments, SignalAction, Status, Stop};

use crate::args::Dump;
use crate::exit::{Class, Classify};
use crate::traces;

/// Prints one line per event, more with `--verbose`.
pub(crate) fn dump(args: &Dump) -> anyhow::Result<ExitCode> {
    let trace = traces::open(args.which.trace.as_deref())?;
    let moments = Moments::load(&trace).ok().flatten();
    let mut out = BufWriter::new(std::io::stdout().lock());
    let count = args.count.unwrap_or(u64::MAX);
    for item in trace.events_from(EventId(args.from)).take(usize::try_from(count).unwrap_or(usize::MAX)) {
        let (id, event) = item.class(Class::Trace)?;
        let moment = moments.as_ref().map(|moments| format!(" {}", moments.end(id))).unwrap_or_default();
        writeln!(
            out,
            "{id}{moment} task {} space {} {:?} {}: {}",
            event.task,
            event.space,
            event.stop,
            event.before.pc(),
            what(&event)
        )?;
        if args.verbose {
            details(&event, &mut out)?;
        }
    }
    out.flush()?;
    Ok(ExitCode::SUCCESS)
}

fn what(event: &Event) -> String {
    let name = event.fact.name();
    match &event.fact {
        Fact::Exec(info) => format!("{name} {} (tid {})", info.exe, info.tid),
        Fact::Syscall(info) | Fact::SyscallEnter(info) | Fact::SyscallLeave(info) => {
            format!("{name} {}", kernel::format_call(info.nr, &info.args, info.result, None))
        }
        Fact::Spawn(info) => {
            format!("{name} task {} (tid {}, pid {}) in space {}", info.child, info.tid, info.pid, info.space)
        }
        Fact::Instruction => match event.stop {
            Stop::Instruction(kind) => format!("{kind:?}").to_lowercase(),
            _ => name.into(),
        },
        Fact::Signal(info) => match info.action {
            SignalAction::Handler { handler } => format!("{name} {} to its handler {handler}", info.signo),
            action => format!("{name} {} {action:?}", info.signo).to_lowercase(),
        },
        Fact::Exit(Status::Exited(code)) => format!("{name} with {code}"),
        Fact::Exit(Status::Killed(killed)) => format!("{name} by signal {}", killed.signo),
        Fact::Point(info) => format!(
            "{name} (signal {}, {} pages, {} pieces, {} ns)",
            info.signal,
            info.pages.len(),
            info.key.len(),
            info.cpu_nanos
        ),
    }
}

fn details(event: &Event, out: &mut impl Write) -> std::io::Result<()> {
    for op in &event.maps {
        writeln!(out, "    {op:?}")?;
    }
    let spawned = match &event.fact {
        Fact::Spawn(info) => &info.writes[..],
        _ => &[],
    };
    for write in event.writes.iter().chain(spawned) {
        writeln!(out, "    write {} of {} bytes", write.addr, write.data.len())?;
    }
    for (name, (before, after)) in
        guest::Registers::NAMES.iter().zip(event.before.to_words().into_iter().zip(event.after.to_words()))
    {
        if before == after {
            writeln!(out, "    {name} {before:#x}")?;
        } else {
            writeln!(out, "    {name} {before:#x} -> {after:#x}")?;
        }
    }
    Ok(())
}
