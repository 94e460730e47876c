//! Units over workers, segments to the writer.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{PoisonError, RwLock};
use std::time::{Duration, Instant};

use engine::Mode;
use granule::BlockInterner;
use replayer::{Moments, Position, Replay, ReplayError, Unit, Until};
use store::{INDEX_FILE, NewBlocks, Resume, Segment, Store, Writer};
use trace::Trace;

use crate::error::{BuildError, FeedError};
use crate::facts;
use crate::options::{BuildReport, Options, Progress};
use crate::watch::{Shared, Start, Watch};

/// Room for the log that a space and its feed share. Little of it is used at a time, but every instruction could need much.
const LOG: usize = 128 << 20;

/// Instructions of a segment, about.
const SEGMENT: u64 = 64_000_000;

/// Segments that wait for the writer.
const WAITING: usize = 2;

/// The number of the unit that is a whole recording.
const WHOLE: u32 = u32::MAX;

/// How often progress is told.
const TELL: Duration = Duration::from_millis(200);

/// What is replayed on its own.
#[derive(Clone, Debug)]
enum Work {
    /// The whole recording, whose moments become known on the way.
    Whole,
    /// A unit of it.
    Unit(u32, Unit),
}

/// Builds the index of `trace`, or what is missing of it.
pub fn build(trace: &Trace, options: &Options<'_>) -> Result<BuildReport, BuildError> {
    build_in_steps(trace, options, SEGMENT)
}

/// The same, committed after every so many instructions: a killed build loses at most about as many.
pub fn build_in_steps(trace: &Trace, options: &Options<'_>, step: u64) -> Result<BuildReport, BuildError> {
    let began = Instant::now();
    let (writer, resume) = Writer::open(trace.dir(), &trace.uuid())?;
    let resumed = resume.instructions;
    let mut job = Job { trace, options, step, began, resumed, writer, flushed: resume.blocks.len() };
    if !resume.complete {
        job.build(resume)?;
    }
    job.report()
}

struct Job<'a> {
    trace: &'a Trace,
    options: &'a Options<'a>,
    step: u64,
    began: Instant,
    resumed: u64,
    writer: Writer,
    /// Blocks of the dictionary that were committed.
    flushed: usize,
}

impl Job<'_> {
    fn build(&mut self, resume: Resume) -> Result<(), BuildError> {
        let moments = Moments::load(self.trace)?;
        let jobs = match self.options.jobs {
            0 => cpus().len().max(1),
            jobs => jobs,
        };
        let (moments, work) = self.plan(moments, &resume, jobs)?;
        let started = self.starts(&resume, &work)?;
        let shared = Shared {
            trace: self.trace.clone(),
            moments,
            step: self.step,
            one_by_one: self.options.one_by_one,
            dictionary: RwLock::new(BlockInterner::new(resume.blocks)?),
            done: AtomicU64::new(self.resumed),
        };
        let learned = self.run(&shared, started, jobs)?;
        let moments = match shared.moments.or(learned) {
            Some(moments) => moments,
            None => Moments::load(self.trace)?.ok_or(BuildError::Worker)?,
        };
        let paths = self.writer.paths()?;
        let facts = facts::read(self.trace, &moments, &paths)?;
        self.writer.commit_facts(&facts, true)?;
        Ok(())
    }

    /// What to replay: units side by side where their moments are known, or worth a plain replay first.
    fn plan(
        &self,
        moments: Option<Moments>,
        resume: &Resume,
        jobs: usize,
    ) -> Result<(Option<Moments>, Vec<Work>), BuildError> {
        let whole = resume.units.iter().any(|unit| unit.unit == WHOLE);
        let units = replayer::units(self.trace)?;
        if whole || units.len() <= 1 || (jobs == 1 && moments.is_none()) {
            return Ok((moments, vec![Work::Whole]));
        }
        let moments = match moments {
            Some(moments) => moments,
            None => replayer::learn(self.trace, &replayer::Options::default())?,
        };
        let work = (0..).zip(units).map(|(number, unit)| Work::Unit(number, unit)).collect();
        Ok((Some(moments), work))
    }

    /// Where each work begins; finished ones are left out.
    fn starts(&self, resume: &Resume, work: &[Work]) -> Result<Vec<(Work, Start)>, BuildError> {
        let frontier = match resume.units.is_empty() {
            true => Vec::new(),
            false => Store::open(self.trace.dir(), &self.trace.uuid())?.frontier()?,
        };
        let mut starts = Vec::new();
        for work in work {
            let known = resume.units.iter().find(|unit| unit.unit == work.number());
            let start = match known {
                None => Start::default(),
                Some(unit) => {
                    let Some((moment, event)) = unit.next else { continue };
                    let from = Some(Position { moment, event });
                    Start { part: unit.parts, from, spaces: frontier.clone() }
                }
            };
            starts.push((work.clone(), start));
        }
        Ok(starts)
    }

    /// Runs all work; commits what comes. Returns the moments that a whole replay found.
    fn run(
        &mut self,
        shared: &Shared,
        work: Vec<(Work, Start)>,
        jobs: usize,
    ) -> Result<Option<Moments>, BuildError> {
        let total = self.total(shared);
        let (segments, committed) = sync_channel(WAITING);
        let pool = rayon::ThreadPoolBuilder::new().num_threads(jobs.min(work.len()).max(1)).build()?;
        std::thread::scope(|scope| {
            let workers = scope.spawn(move || {
                let cpus = cpus();
                let results = pool.install(|| {
                    use rayon::prelude::*;
                    let one = |(work, start)| run_one(shared, &work, start, segments.clone(), &cpus);
                    work.into_par_iter().with_max_len(1).map(one).collect::<Vec<_>>()
                });
                drop(segments);
                results
            });
            let committed = self.commit_all(shared, &committed, total);
            let results = workers.join().map_err(|_| BuildError::Worker)?;
            committed?;
            let mut learned = None;
            for result in results {
                learned = result?.or(learned);
            }
            Ok(learned)
        })
    }

    fn total(&self, shared: &Shared) -> Option<u64> {
        shared.moments.as_ref().map(|moments| moments.total().0)
    }

    /// Commits segments until all workers are done.
    fn commit_all(
        &mut self,
        shared: &Shared,
        segments: &Receiver<Segment>,
        total: Option<u64>,
    ) -> Result<(), BuildError> {
        loop {
            match segments.recv_timeout(TELL) {
                Ok(segment) => {
                    let blocks = self.new_blocks(shared)?;
                    self.writer.commit(&segment, &blocks)?;
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return Ok(()),
            }
            if let Some(tell) = self.options.progress {
                tell(&Progress {
                    instructions: shared.done.load(Ordering::Relaxed),
                    total,
                    elapsed: self.began.elapsed(),
                    resumed: self.resumed,
                });
            }
        }
    }

    /// Blocks numbered since the last commit: those that the next one needs, and perhaps some more.
    fn new_blocks(&mut self, shared: &Shared) -> Result<NewBlocks, BuildError> {
        let dictionary = shared.dictionary.read().unwrap_or_else(PoisonError::into_inner);
        let table = dictionary.table();
        let first = self.flushed;
        let data = table.write_from(first)?;
        self.flushed = table.len();
        Ok(NewBlocks { first: first as u64, count: (table.len() - first) as u64, data })
    }

    fn report(self) -> Result<BuildReport, BuildError> {
        let instructions = self.writer.instructions()?;
        self.writer.finish()?;
        let bytes = std::fs::metadata(self.trace.dir().join(INDEX_FILE)).map_or(0, |file| file.len());
        Ok(BuildReport {
            instructions,
            resumed: self.resumed,
            events: self.trace.len(),
            bytes,
            elapsed: self.began.elapsed(),
        })
    }
}

impl Work {
    const fn number(&self) -> u32 {
        match self {
            Self::Whole => WHOLE,
            Self::Unit(number, _) => *number,
        }
    }
}

/// Replays one work in indexed mode and sends its segments.
fn run_one(
    shared: &Shared,
    work: &Work,
    start: Start,
    segments: SyncSender<Segment>,
    cpus: &[usize],
) -> Result<Option<Moments>, BuildError> {
    let worker = rayon::current_thread_index().unwrap_or(0);
    let cpu = (!cpus.is_empty()).then(|| cpus[worker % cpus.len()]);
    let options =
        replayer::Options { mode: Mode::Indexed, log_bytes: LOG, cpu, one_by_one: shared.one_by_one };
    let observer = |error: FeedError| BuildError::Replay(ReplayError::Observer(Box::new(error)));
    let from = start.from;
    let mut watch = Watch::new(shared, work.number(), start, segments).map_err(observer)?;
    let mut replay = match (work, &shared.moments) {
        (Work::Whole, _) => Replay::open(&shared.trace, &options)?,
        (Work::Unit(_, unit), Some(moments)) => Replay::open_unit(&shared.trace, unit, moments, &options)?,
        (Work::Unit(..), None) => return Ok(None),
    };
    if let Some(from) = from {
        // Blocks must end where those of the earlier build did.
        replay.run(Until::Position(from), &mut watch)?;
    }
    let learned = match work {
        Work::Whole => Some(replay.finish(&mut watch)?),
        Work::Unit(..) => replay.run(Until::End, &mut watch).map(|_| None)?,
    };
    watch.send(None).map_err(observer)?;
    Ok(learned)
}

/// The CPUs this process may run on, as `/proc/self/status` has them; none where that cannot be read.
fn cpus() -> Vec<usize> {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let list = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:")).unwrap_or_default();
    let mut cpus = Vec::new();
    for part in list.trim().split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        if let (Ok(first), Ok(last)) = (first.parse::<usize>(), last.parse::<usize>()) {
            cpus.extend(first..=last);
        }
    }
    cpus
}
