//! The checker: reports every violated invariant of a trace. Changes nothing.

use std::fs::File;
use std::io;

use guest::{FileId, PieceId};

use crate::event::{Event, Fact};
use crate::files::{KeptFile, KeptState};
use crate::reader::{ReadError, Trace};
use crate::ticks::Moments;
use crate::validate::{Problem, Violation};

/// Everything that is wrong with a trace, in order; empty when nothing is. Reads all of it, kept files included.
pub fn check(trace: &Trace) -> Vec<Violation> {
    let mut found = Vec::new();
    check_events(trace, &mut found);
    for (i, kept) in trace.files().iter().enumerate() {
        if let Some(problem) = check_file(trace, FileId(i as u32), kept) {
            found.push(Violation { event: None, problem });
        }
    }
    for piece in (0..trace.pieces().len() as u32).map(PieceId) {
        if let Some(problem) = check_piece(trace, piece) {
            found.push(Violation { event: None, problem });
        }
    }
    check_ticks(trace, &mut found);
    found
}

fn check_events(trace: &Trace, found: &mut Vec<Violation>) {
    let mut events = trace.events();
    for item in events.by_ref() {
        match item {
            Ok((id, event)) => {
                if let Err(error) = check_data(trace, &event) {
                    let problem = Problem::Unreadable { what: error.to_string() };
                    found.push(Violation { event: Some(id), problem });
                }
            }
            Err(crate::ReadError::Invalid(violation)) => found.push(violation),
            Err(error) => {
                found.push(Violation {
                    event: None,
                    problem: Problem::Unreadable { what: error.to_string() },
                });
            }
        }
    }
    let (Some(summary), Some(sequence), true) = (trace.summary(), events.into_sequence(), found.is_empty())
    else {
        return;
    };
    let counts = [("tasks", summary.tasks, sequence.tasks()), ("spaces", summary.spaces, sequence.spaces())];
    for (what, expected, seen) in counts {
        if expected != seen {
            let problem = Problem::Summary { what, expected: u64::from(expected), found: u64::from(seen) };
            found.push(Violation { event: None, problem });
        }
    }
    if let Some(task) = sequence.alive().filter(|_| summary.refused.is_none()) {
        found.push(Violation { event: None, problem: Problem::Alive { task } });
    }
}

/// Reads all data an event refers to.
fn check_data(trace: &Trace, event: &Event) -> Result<(), crate::ReadError> {
    let more = match &event.fact {
        Fact::Spawn(info) => info.writes.as_slice(),
        _ => &[],
    };
    event.writes.iter().chain(more).try_for_each(|write| trace.data(&write.data).map(|_| ()))
}

fn check_file(trace: &Trace, file: FileId, kept: &KeptFile) -> Option<Problem> {
    let path = trace.file_path(file).ok()?;
    let Ok(open) = File::open(path) else { return Some(Problem::FileMissing { file }) };
    match kept.state(&open, trace.header().version) {
        Err(error) => Some(Problem::Unreadable { what: format!("kept file {file} cannot be read: {error}") }),
        Ok(KeptState::OtherSize(found)) => Some(Problem::FileSize { file, found, expected: kept.size }),
        Ok(KeptState::Changed) => Some(Problem::FileHash { file }),
        Ok(KeptState::Whole) => None,
    }
}

fn check_piece(trace: &Trace, piece: PieceId) -> Option<Problem> {
    match trace.piece(piece) {
        Ok(_) => None,
        Err(ReadError::File { source, .. }) if source.kind() == io::ErrorKind::NotFound => {
            Some(Problem::PieceMissing { piece })
        }
        Err(ReadError::Changed { .. }) => Some(Problem::PieceChanged { piece }),
        Err(error) => {
            Some(Problem::Unreadable { what: format!("kept piece {piece} cannot be read: {error}") })
        }
    }
}

fn check_ticks(trace: &Trace, found: &mut Vec<Violation>) {
    if let Err(error) = Moments::load(trace) {
        found.push(Violation { event: None, problem: Problem::Ticks { what: error.to_string() } });
    }
}
