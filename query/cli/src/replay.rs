//! `replay`: runs a recording again and prints its output again, or up to a moment; and finding moments.

use std::process::ExitCode;

use guest::{Moment, When};
use replayer::{Bias, Observer, Options, Printer, Replay, ReplayError, Silent, Stopped, Until};
use trace::{Moments, Trace};

use crate::args;
use crate::exit::{Class, Classify, Failure};
use crate::traces;

/// `backstory replay`
pub(crate) fn replay(args: &args::Replay) -> anyhow::Result<ExitCode> {
    let trace = traces::open(args.which.named())?;
    let (mut printer, mut silent) = (Printer, Silent);
    let observer: &mut dyn Observer = if args.quiet { &mut silent } else { &mut printer };
    let end = match args.until {
        None => Some(to_end(&trace, observer)?),
        Some(when) => {
            to_moment(&trace, when, observer)?;
            None
        }
    };
    traces::say_if_cut(&trace, end);
    Ok(ExitCode::SUCCESS)
}

fn to_end(trace: &Trace, observer: &mut dyn Observer) -> anyhow::Result<Moment> {
    let mut replay = Replay::open(trace, &Options::default()).class_by(class_of)?;
    Ok(replay.finish(observer).class_by(class_of)?.total())
}

fn to_moment(trace: &Trace, when: When, observer: &mut dyn Observer) -> anyhow::Result<()> {
    // A plain number needs no counts of an earlier replay: without them, one run finds it, or that it is out of range.
    let goal = match (when, Moments::load(trace)) {
        (When::Exactly(moment), Err(_) | Ok(None)) => moment,
        _ => resolve(trace, when)?,
    };
    let mut replay = Replay::open(trace, &Options::default()).class_by(class_of)?;
    let stopped = replay.run(Until::Moment(goal, Bias::NextInstruction), observer).class_by(class_of)?;
    let end = replay.position().moment;
    if stopped == Stopped::End && end < goal {
        return Err(guest::WhenError::OutOfRange { moment: goal, end }).class(Class::Input);
    }
    Ok(())
}

/// The moments of a recording, learned now (by replaying it once) if no replay has yet.
pub(crate) fn learn(trace: &Trace) -> anyhow::Result<Moments> {
    replayer::learn(trace, &Options::default()).class_by(class_of)
}

/// The moment that `when` means.
pub(crate) fn resolve(trace: &Trace, when: When) -> anyhow::Result<Moment> {
    let moments = learn(trace)?;
    trace::resolve_when(trace, &moments, when).class(Class::Trace)?.class(Class::Input)
}

/// Whose matter it is when a replay fails.
pub(crate) fn class_of(error: &anyhow::Error) -> Class {
    let replay = error.chain().find_map(|cause| cause.downcast_ref::<ReplayError>());
    match replay {
        Some(ReplayError::Divergence(_) | ReplayError::NotAlive { .. }) => Class::Bug,
        Some(ReplayError::Read(_)) => Class::Trace,
        Some(ReplayError::Unsupported { .. } | ReplayError::Unrecorded { .. }) => Class::Unsupported,
        Some(ReplayError::Ticks(trace::TicksError::Io { .. }) | ReplayError::Observer(_)) => Class::System,
        Some(ReplayError::Ticks(_)) => Class::Trace,
        Some(ReplayError::New { .. } | ReplayError::Fork { .. }) => Class::System,
        Some(_) => Class::Bug,
        None => Failure::class_of(error),
    }
}
