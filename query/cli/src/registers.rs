//! Registers at a moment, for SQL: a replay on a thread of its own, started when first asked, that goes from one moment to the
//! next.

use std::path::PathBuf;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};

use guest::{Moment, Registers};
use tables::Database;
use timeline::{Bias, Timeline};
use trace::Trace;

use crate::exit::one_line;

/// A question, and where the answer goes.
type Request = (Moment, Sender<Result<Registers, String>>);

/// What there is once somebody has asked.
#[derive(Default)]
struct Started {
    thread: Option<Sender<Request>>,
    /// The last answer: one row often asks for several registers.
    last: Option<(Moment, Registers)>,
}

/// Lets the SQL functions of `database` that need registers have them.
pub(crate) fn offer(database: &Database) {
    let dir = database.trace().dir().to_owned();
    let started = Mutex::new(Started::default());
    database.set_registers(Arc::new(move |moment| {
        let mut started = started.lock().map_err(|_| "the replay failed before".to_owned())?;
        started.at(moment, &dir)
    }));
}

impl Started {
    fn at(&mut self, moment: Moment, dir: &std::path::Path) -> Result<Registers, String> {
        if let Some((at, registers)) = self.last
            && at == moment
        {
            return Ok(registers);
        }
        let thread = self.thread.get_or_insert_with(|| {
            let (requests, received) = channel();
            let dir = dir.to_owned();
            // A replay belongs to the thread that made it, and SQLite may call from any.
            std::thread::spawn(move || answer(dir, received));
            requests
        });
        let (reply, answered) = channel();
        let gone = |_| "the replay has ended".to_owned();
        thread.send((moment, reply)).map_err(|_| "the replay has ended".to_owned())?;
        let registers = answered.recv().map_err(gone)??;
        self.last = Some((moment, registers));
        Ok(registers)
    }
}

/// Answers until nobody can ask any more.
fn answer(dir: PathBuf, requests: Receiver<Request>) {
    let opened = Trace::open(&dir).map_err(anyhow::Error::from);
    let mut timeline = opened.and_then(|trace| Ok(Timeline::open(&trace)?)).map_err(|e| one_line(&e));
    for (moment, reply) in requests {
        let found = match &mut timeline {
            Ok(timeline) => registers(timeline, moment).map_err(|error| one_line(&error)),
            Err(error) => Err(error.clone()),
        };
        // Whoever asked may have gone meanwhile.
        let _ = reply.send(found);
    }
}

fn registers(timeline: &mut Timeline, moment: Moment) -> anyhow::Result<Registers> {
    timeline.seek(moment, Bias::NextInstruction)?;
    Ok(timeline.registers(timeline.task())?)
}
