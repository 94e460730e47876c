//! The answer as text, compact, with what to type next.

use std::fmt;

use crate::answer::{Answer, Bytes, Field, Hop, Origin, Place, StackFrame, Target, Verdict, Writer};

/// An answer about a recording, which what to type next names; without a name, it is the latest.
pub(crate) struct Shown<'a> {
    pub(crate) answer: &'a Answer,
    pub(crate) trace: Option<&'a str>,
}

impl fmt::Display for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Shown { answer: self, trace: None }.fmt(f)
    }
}

impl fmt::Display for Shown<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let target = &self.answer.target;
        write!(f, "{}", target.addr)?;
        if let Some(name) = &target.name {
            write!(f, " <{name}>")?;
        }
        write!(f, ", {}", plural(target.size, "byte"))?;
        if let Some(program) = &target.program {
            write!(f, " in space {} ({program})", target.space)?;
        }
        match &self.answer.verdict {
            Verdict::Written(hop) => {
                written(f, hop, target)?;
                next(f, hop, self.trace)
            }
            Verdict::NeverWritten(origin) => never_written(f, origin, target.size),
        }
    }
}

fn written(f: &mut fmt::Formatter<'_>, hop: &Hop, target: &Target) -> fmt::Result {
    let (size, space) = (target.size, target.space);
    write!(f, ": last written at @{} by task {}", hop.moment, hop.task)?;
    if let Some(tid) = hop.tid {
        write!(f, " (tid {tid})")?;
    }
    if hop.aliased && hop.space != space {
        let program = hop.program.as_ref().map(|program| format!(" ({program})")).unwrap_or_default();
        write!(f, " in space {}{program}, which shares that memory", hop.space)?;
    } else if hop.aliased {
        write!(f, " through another mapping of that memory")?;
    } else if hop.space != space {
        write!(f, " in space {}, before space {space} was forked from it", hop.space)?;
    }
    writeln!(f)?;
    match &hop.writer {
        Writer::Instruction { place, text } => {
            writeln!(f, "  by     {}", summary(place))?;
            source(f, place)?;
            writeln!(f, "  insn   {}  {}", place.pc, text.as_deref().unwrap_or("?"))?;
        }
        Writer::Kernel { text, offset, .. } => {
            writeln!(f, "  by     the kernel, {text}")?;
            if let Some(offset) = offset {
                writeln!(f, "  file   the first byte comes from file offset {offset}")?;
            }
        }
    }
    caller(f, hop)?;
    let cover = &hop.coverage;
    if cover.count == size && cover.len == size {
        writeln!(f, "  write  {} at {}", plural(cover.len, "byte"), cover.addr)?;
    } else if cover.count == size {
        writeln!(f, "  write  {} at {}, the target among them", plural(cover.len, "byte"), cover.addr)?;
    } else {
        let last = cover.first + cover.count - 1;
        let which = if cover.count == 1 {
            format!("byte {last}")
        } else {
            format!("bytes {} to {last}", cover.first)
        };
        let write = plural(cover.len, "byte");
        let covers = if cover.len == 1 { "covers" } else { "cover" };
        writeln!(f, "  write  {write} at {}, which {covers} only {which} of the target", cover.addr)?;
    }
    if let Some(Field { first, count, changed }) = &target.field {
        let which = if *count == 1 {
            format!("bit {first}")
        } else {
            format!("bits {first} to {}", first + count - 1)
        };
        let what = if *changed {
            "the last write that changed them"
        } else {
            "the last write, which did not change them"
        };
        writeln!(f, "  field  {which} of the target: {what}")?;
    }
    write!(f, "  value  {} -> {}", shown(hop.old.as_ref()), shown(hop.new.as_ref()))?;
    // A forked space has the target where it was; a moved one shows where it was then.
    let elsewhere = hop.values_at != target.addr;
    if elsewhere {
        writeln!(f, " at {}", hop.values_at)?
    } else {
        writeln!(f)?
    }
    if !hop.stack.is_empty() {
        writeln!(f, "  stack")?;
        for (index, frame) in hop.stack.iter().enumerate() {
            writeln!(f, "    #{index:<2} {}", stack_line(frame))?;
        }
    }
    Ok(())
}

/// What to type next.
fn next(f: &mut fmt::Formatter<'_>, hop: &Hop, trace: Option<&str>) -> fmt::Result {
    let about = trace.map(|trace| format!("-t {trace} ")).unwrap_or_default();
    write!(f, "  go     backstory gdb {about}--at @{}", hop.moment)?;
    if let Writer::Kernel { source: Some(source), .. } = &hop.writer {
        writeln!(f, "\n  next   backstory why {about}{} --at @{}", source.addr, source.moment)?;
        write!(f, "         it came into the file by {}", source.text)?;
    }
    Ok(())
}

/// Where the writer has no source, the nearest caller that has; that which is on this machine comes first.
fn caller(f: &mut fmt::Formatter<'_>, hop: &Hop) -> fmt::Result {
    let writer_known = matches!(&hop.writer, Writer::Instruction { place, .. } if place.line.is_some());
    if writer_known {
        return Ok(());
    }
    let find = |has: fn(&Place) -> bool| hop.stack.iter().find(|frame| has(&frame.place));
    let Some(frame) = find(|place| place.source.is_some()).or_else(|| find(|place| place.line.is_some()))
    else {
        return Ok(());
    };
    writeln!(f, "  from   {}", summary(&frame.place))?;
    source(f, &frame.place)
}

fn source(f: &mut fmt::Formatter<'_>, place: &Place) -> fmt::Result {
    match &place.source {
        Some(text) => writeln!(f, "         {text}")?,
        None => return Ok(()),
    }
    match &place.file {
        Some(file) if place.source_changed => {
            writeln!(
                f,
                "         ({} was changed since the recording: the line may be another one)",
                short(file)
            )
        }
        _ => Ok(()),
    }
}

fn never_written(f: &mut fmt::Formatter<'_>, origin: &Origin, size: u64) -> fmt::Result {
    writeln!(f, ": never written since it was mapped at @{} by {}", origin.mapped_at, origin.mapped_by)?;
    match &origin.file {
        Some((path, offset)) => writeln!(f, "  from   {path} offset {offset:#x}")?,
        None => writeln!(f, "  from   zeroes")?,
    }
    if !origin.name.is_empty() {
        writeln!(f, "  in     {}", origin.name)?;
    }
    let part = origin.value.as_ref().is_some_and(|value| (value.hex.len() as u64) < size * 2);
    write!(f, "  value  {}{}", shown(origin.value.as_ref()), if part { ".." } else { "" })
}

/// `fill_metric at s1.c:16`, or the module where there is no source.
fn summary(place: &Place) -> String {
    let function = place.function.as_deref();
    match (&place.file, place.line) {
        (Some(file), Some(line)) => format!("{} at {}:{line}", function.unwrap_or("?"), short(file)),
        _ => match (function, &place.module) {
            (Some(function), Some(module)) => format!("{function} in {module}"),
            (Some(function), None) => function.to_owned(),
            (None, Some(module)) => module.clone(),
            (None, None) => format!("generated code at {}", place.pc),
        },
    }
}

fn stack_line(frame: &StackFrame) -> String {
    if frame.signal {
        return "<signal delivered>".to_owned();
    }
    let mut line = summary(&frame.place);
    if frame.inlined {
        line.push_str(" (inlined)");
    }
    if let Some(moment) = frame.jumped {
        line.push_str(&format!(" (left by a jump at @{moment})"));
    }
    if let Some(moment) = frame.switched {
        line.push_str(&format!(" (its stack was switched to at @{moment})"));
    }
    line
}

/// The file's name: its folder is in the JSON.
fn short(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}

fn plural(count: u64, noun: &str) -> String {
    if count == 1 { format!("1 {noun}") } else { format!("{count} {noun}s") }
}

/// `64 (0x40)`, `-7 (0xfff9)`, `"text" (7465787400)`; bytes in memory order where they are no number.
fn shown(bytes: Option<&Bytes>) -> String {
    match bytes {
        None => "?".to_owned(),
        Some(Bytes { typed: Some(typed), number: Some(n), .. }) if *typed != n.to_string() => {
            match format!("{n:#x}") {
                raw if raw == *typed => raw,
                raw => format!("{typed} ({raw})"),
            }
        }
        Some(Bytes { typed: Some(typed), number: None, hex }) => format!("{typed} ({hex})"),
        Some(Bytes { number: Some(n), .. }) if *n < 10 => n.to_string(),
        Some(Bytes { number: Some(n), .. }) => format!("{n} ({n:#x})"),
        Some(Bytes { hex, .. }) => hex.clone(),
    }
}
