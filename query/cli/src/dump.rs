//! `backstory dump`: the events of a recording as lines, nothing replayed.

use std::io::{BufWriter, Write};
use std::process::ExitCode;

use guest::{EventId, GuestRange, Prot};
use trace::{Backing, Event, Fact, MapOp, Moments, SignalAction, Status, Stop, Trace, Trapped};

use crate::args::Dump;
use crate::exit::{Class, Classify};
use crate::{text, traces};

/// Prints one line per event, more with `--verbose`.
pub(crate) fn dump(args: &Dump) -> anyhow::Result<ExitCode> {
    let trace = traces::open(args.which.named())?;
    let moments = Moments::load(&trace).ok().flatten();
    let mut out = BufWriter::new(std::io::stdout().lock());
    let count = args.count.unwrap_or(u64::MAX);
    for item in trace.events_from(EventId(args.from)).take(usize::try_from(count).unwrap_or(usize::MAX)) {
        let (id, event) = item.class(Class::Trace)?;
        let moment = moments.as_ref().map(|moments| format!(" {}", moments.end(id))).unwrap_or_default();
        writeln!(
            out,
            "{id}{moment} task {} space {} {} {}: {}",
            event.task,
            event.space,
            stop(event.stop),
            event.before.pc(),
            what(&event)
        )?;
        if args.verbose {
            details(&trace, &event, &mut out)?;
        }
    }
    out.flush()?;
    Ok(ExitCode::SUCCESS)
}

/// What the task had to reach.
fn stop(stop: Stop) -> &'static str {
    match stop {
        Stop::None => "-",
        Stop::Syscall => "syscall",
        Stop::Instruction(Trapped::Rdtsc) | Stop::BufferedInstruction(Trapped::Rdtsc) => "rdtsc",
        Stop::Instruction(Trapped::Rdtscp) | Stop::BufferedInstruction(Trapped::Rdtscp) => "rdtscp",
        Stop::Instruction(Trapped::Cpuid) | Stop::BufferedInstruction(Trapped::Cpuid) => "cpuid",
        Stop::Instruction(Trapped::Rdrand) | Stop::BufferedInstruction(Trapped::Rdrand) => "rdrand",
        Stop::Instruction(Trapped::Rdseed) | Stop::BufferedInstruction(Trapped::Rdseed) => "rdseed",
        Stop::Instruction(Trapped::Rdpid) | Stop::BufferedInstruction(Trapped::Rdpid) => "rdpid",
        Stop::Fault => "fault",
        Stop::Point => "point",
        Stop::Buffered => "buffered",
        Stop::Narrow => "int 0x80",
    }
}

/// What happened there.
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
        Fact::Instruction => "answered".to_owned(),
        Fact::Signal(info) => format!("{name} {}, {}", info.signo, action(info.action)),
        Fact::Exit(Status::Exited(code)) => format!("{name} with {code}"),
        Fact::Exit(Status::Killed(killed)) => format!("{name} by signal {}", killed.signo),
        Fact::Traced(info) => match info.request {
            Some(request) => {
                let shown = kernel::ptrace_request(request).unwrap_or("ptrace");
                format!("{name} by task {}: {shown}", info.tracer)
            }
            None if event.stop == Stop::None => format!("{name} by task {}: its memory", info.tracer),
            None => format!("{name} by task {} at a system call", info.tracer),
        },
        Fact::Point(info) => format!(
            "{name} (signal {}, {} pages, {} pieces, {} ns{})",
            info.signal,
            info.pages.len(),
            info.key.len(),
            info.cpu_nanos,
            info.branches.map_or_else(String::new, |count| format!(", {count} branches"))
        ),
    }
}

/// What was done about a signal.
fn action(action: SignalAction) -> String {
    match action {
        SignalAction::Handler { handler } => format!("handler {handler}"),
        SignalAction::Fatal => "fatal".to_owned(),
        SignalAction::Ignored => "ignored".to_owned(),
        SignalAction::Stopped => "stopped".to_owned(),
        SignalAction::Traced => "shown to its tracer".to_owned(),
    }
}

/// A change of the address space.
fn change(trace: &Trace, op: &MapOp) -> String {
    let bounds = |range: &GuestRange| format!("{}-{}", range.start, range.end);
    match op {
        MapOp::UnmapAll => "unmap all".to_owned(),
        MapOp::Map { range, prot, shared, grows_down, no_reserve, backing, name } => {
            let sharing = if *shared { 's' } else { 'p' };
            let stack = if *grows_down { " growsdown" } else { "" };
            let reserve = if *no_reserve { " noreserve" } else { "" };
            let (contents, path) = match backing {
                Backing::Zero => ("zero".to_owned(), ""),
                Backing::File { file, offset } => {
                    let path = trace.file(*file).map_or("?", |kept| &kept.path);
                    (format!("file {file} offset {offset:#x} ({})", text::quoted(path)), path)
                }
            };
            let named = match name.is_empty() || name == path {
                true => String::new(),
                false => format!(" as {}", text::quoted(name)),
            };
            format!("map {} {}{sharing}{stack}{reserve} {contents}{named}", bounds(range), letters(*prot))
        }
        MapOp::Unmap { range } => format!("unmap {}", bounds(range)),
        MapOp::Protect { range, prot } => format!("protect {} {}", bounds(range), letters(*prot)),
        MapOp::Remap { from, to, keep } => {
            format!("remap {} to {}{}", bounds(from), bounds(to), if *keep { " keep" } else { "" })
        }
        MapOp::Discard { range } => format!("discard {}", bounds(range)),
        MapOp::Rewrite { addr, shown, own } => {
            let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
            format!("rewrite {addr} {} for {}", hex(shown), hex(own))
        }
    }
}

/// `rwx`, a `-` for what is not allowed.
fn letters(prot: Prot) -> String {
    let letter = |allowed, letter| if allowed { letter } else { '-' };
    [letter(prot.read, 'r'), letter(prot.write, 'w'), letter(prot.exec, 'x')].iter().collect()
}

fn details(trace: &Trace, event: &Event, out: &mut impl Write) -> std::io::Result<()> {
    for op in &event.maps {
        writeln!(out, "    {}", change(trace, op))?;
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

#[cfg(test)]
mod tests {
    use guest::GuestAddr;

    use super::*;

    #[test]
    fn words_are_the_documented_ones() {
        let all = [
            Stop::None,
            Stop::Syscall,
            Stop::Instruction(Trapped::Rdtsc),
            Stop::Instruction(Trapped::Rdtscp),
            Stop::Instruction(Trapped::Cpuid),
            Stop::Instruction(Trapped::Rdrand),
            Stop::Instruction(Trapped::Rdseed),
            Stop::Instruction(Trapped::Rdpid),
            Stop::Fault,
            Stop::Point,
            Stop::Buffered,
            Stop::Narrow,
            Stop::BufferedInstruction(Trapped::Rdtscp),
        ];
        for word in all.map(stop) {
            assert!(crate::args::DUMP.contains(&format!("`{word}`")), "{word} is not documented");
        }
        let handler = SignalAction::Handler { handler: GuestAddr(0x1000) };
        assert_eq!(action(handler), "handler 0x1000");
        assert_eq!(letters(Prot::from_bits(5)), "r-x");
    }
}
