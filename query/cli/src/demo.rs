//! `demo`: records the small buggy program that was built with this binary, finds its culprit, and shows how.

use std::fs;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context;
use guest::Moment;
use replayer::{Observer, Options, Position, Replay};
use trace::{OutputStream, Trace};
use why::{Answer, Verdict};

use crate::args::Demo;
use crate::exit::{Class, Classify, Failure};
use crate::scratch::Scratch;
use crate::{indexing, record, replay, text, why as ask};

/// The guest, compiled by the build script from `demo/guest.rs`.
const GUEST: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/demo-guest"));
/// Its name in the recording.
const NAME: &str = "ledger";
/// What it prints before the address.
const BEFORE_ADDRESS: &str = "(at ";

/// `backstory demo`
pub(crate) fn demo(args: &Demo) -> anyhow::Result<ExitCode> {
    let output = match &args.output {
        // One word would be taken for a recording's name.
        Some(dir) if dir.components().count() == 1 => Path::new(".").join(dir),
        Some(dir) => dir.clone(),
        None => record::fresh_folder(Some(NAME))?,
    };
    let scratch = Scratch::new("demo")?;
    let guest = write_guest(scratch.path())?;
    say(&format!("$ backstory record ./{NAME}"));
    let outcome = record::run(&recorder::Options {
        command: vec![guest.into()],
        output: output.clone(),
        paranoid: false,
        linger: None,
        chaos: None,
        buffer: recorder::Buffer::Worthwhile,
        counter: recorder::CounterChoice::default(),
    })?;
    if let Some(reason) = outcome.refused {
        return Err(Failure::new(Class::Unsupported, format!("recording stopped: {reason}")).into());
    }
    let trace = Trace::open(&output).class(Class::Trace)?;
    let shown = text::quoted(&output.display().to_string());

    say("\nThe balance is wrong. Which line wrote it last?");
    let address = printed_address(&trace)?;
    say(&format!("\n$ backstory index {shown}"));
    say(&indexing::summary(&indexing::build_all(&trace, 0, false)?));
    let database = indexing::database(Some(&output))?;
    say(&format!("\n$ backstory why -t {shown} {address}"));
    let answer = ask::ask(&database, &address, None, None, None)?;
    say(&answer.text(Some(&shown)));
    say(&format!("\nThe source is {}.", source().display()));
    if let Some(moment) = moment(&answer) {
        say(&format!(
            "\nOpen gdb there, just before that write, and go both ways:\n\n  backstory gdb -t {shown} --at {moment}"
        ));
    }
    say(&format!("\nAsk for every write to it:\n\n  {}", query(&shown, &address)));
    Ok(ExitCode::SUCCESS)
}

/// A line of the demo. A reader who has gone has seen enough.
fn say(line: &str) {
    let _ = writeln!(std::io::stdout(), "{line}");
}

fn query(trace: &str, address: &str) -> String {
    format!(
        "backstory query -t {trace} 'SELECT moment, value, sym(pc), line(pc) FROM writes WHERE addr = {address} ORDER BY moment'"
    )
}

fn source() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("demo/guest.rs")
}

fn write_guest(folder: &Path) -> anyhow::Result<PathBuf> {
    let path = folder.join(NAME);
    fs::write(&path, GUEST).with_context(|| format!("cannot write {}", path.display()))?;
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755))?;
    Ok(path)
}

fn moment(answer: &Answer) -> Option<Moment> {
    match &answer.verdict {
        Verdict::Written(hop) => Some(Moment(hop.moment)),
        Verdict::NeverWritten(_) => None,
    }
}

/// Keeps what the recorded program printed.
#[derive(Default)]
struct Printed(Vec<u8>);

impl Observer for Printed {
    fn output(&mut self, _stream: OutputStream, bytes: &[u8], _at: Position) -> replayer::Watched {
        self.0.extend_from_slice(bytes);
        Ok(())
    }
}

/// The address that the guest printed, read off a replay.
fn printed_address(trace: &Trace) -> anyhow::Result<String> {
    let mut printed = Printed::default();
    let mut run = Replay::open(trace, &Options::default()).class_by(replay::class_of)?;
    run.finish(&mut printed).class_by(replay::class_of)?;
    let text = String::from_utf8_lossy(&printed.0);
    let address = text.split(BEFORE_ADDRESS).nth(1).and_then(|rest| rest.split(')').next());
    address.map(str::to_owned).ok_or_else(|| Failure::new(Class::Bug, "the demo printed no address").into())
}
