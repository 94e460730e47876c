//! Events one after the other, as their frames hold them. Knows no file: frames and payload come from the trace.

use std::sync::Arc;

use abi::calls::{Noted, first};
use guest::{EventId, TaskId};

use super::{ReadError, Trace};
use crate::batch;
use crate::codec::{self, Batch, Context, Item};
use crate::event::{Event, Stop};
use crate::validate::{Problem, Sequence, Violation, check_alone};

/// What is left of a batch.
#[derive(Clone)]
struct Unpacked {
    batch: Batch,
    bytes: Arc<Vec<u8>>,
    /// Position of the next call.
    at: usize,
    /// Calls left.
    left: u32,
}

/// Iterates over events. After an error it ends.
#[derive(Clone)]
pub struct Events {
    trace: Trace,
    sequence: Option<Sequence>,
    context: Context,
    /// Next frame to read.
    frame: usize,
    body: Vec<u8>,
    /// Position of the next event in `body`.
    at: usize,
    /// Events left in `body`, and in `batch`.
    left: u32,
    /// Calls made without a stop, of which the next events are made.
    batch: Option<Unpacked>,
    /// What comes behind them, if it was looked at.
    ahead: Option<Item>,
    next: u64,
    first: u64,
}

impl Events {
    pub(super) fn new(trace: Trace, first: EventId, sequence: Option<Sequence>) -> Self {
        let frames = &trace.0.event_frames;
        let frame = frames.partition_point(|head| head.first <= first.0).saturating_sub(1);
        let beyond = first.0 >= trace.0.event_count;
        let frame = if beyond { frames.len() } else { frame };
        let next = frames.get(frame).map_or(trace.0.event_count, |head| head.first);
        let context = Context::default();
        Self {
            trace,
            sequence,
            context,
            frame,
            body: Vec::new(),
            at: 0,
            left: 0,
            batch: None,
            ahead: None,
            next,
            first: first.0,
        }
    }

    /// How many of the next events are calls made without a stop that lie together: all of one task.
    pub fn calls_left(&self) -> usize {
        self.batch.as_ref().map_or(0, |batch| batch.left as usize)
    }

    /// The task and the stop of the event behind them, where that is at hand.
    pub fn behind_calls(&mut self) -> Option<(TaskId, Stop)> {
        if self.left as usize <= self.calls_left() {
            return None;
        }
        // What cannot be decoded is found out again when its turn comes.
        self.ahead = Some(self.item()?);
        self.ahead.as_ref().map(|item| match item {
            Item::Event(event) => (event.task, event.stop),
            Item::Batch(batch) => (batch.task, Stop::Buffered),
        })
    }

    /// Those calls and readings. Ends where one cannot be read.
    pub fn calls(&self) -> impl Iterator<Item = Noted<'_>> {
        let rest = self.batch.as_ref().and_then(|batch| Some((batch.bytes.get(batch.at..)?, batch.left)));
        let (mut rest, left) = rest.unwrap_or((&[], 0));
        let next = move |_| {
            let (call, len) = first(rest)?;
            rest = rest.get(len..)?;
            Some(call)
        };
        (0..left).map_while(next)
    }

    fn load(&mut self) -> Result<bool, ReadError> {
        let inner = &self.trace.0;
        let Some(head) = inner.event_frames.get(self.frame) else { return Ok(false) };
        self.body = inner.events.body(head)?;
        self.at = 0;
        self.left = head.count;
        self.frame += 1;
        self.context.clear();
        (self.batch, self.ahead) = (None, None);
        Ok(true)
    }

    fn decode(&mut self) -> Result<(EventId, Event), ReadError> {
        let id = EventId(self.next);
        let undecodable = || ReadError::Decode { event: id };
        let event = match self.unpack()? {
            Some(event) => event,
            None => match self.item().ok_or_else(undecodable)? {
                Item::Event(event) => *event,
                Item::Batch(batch) => {
                    if batch.count == 0 || batch.count > self.left {
                        return Err(undecodable());
                    }
                    let bytes = Arc::new(self.trace.0.payload(batch.at)?);
                    self.batch = Some(Unpacked { batch, bytes, at: 0, left: batch.count });
                    self.unpack()?.ok_or_else(undecodable)?
                }
            },
        };
        self.left -= 1;
        self.next += 1;
        if self.left == 0 && self.at != self.body.len() {
            return Err(undecodable());
        }
        Ok((id, event))
    }

    /// The next item of the frame.
    fn item(&mut self) -> Option<Item> {
        if let Some(item) = self.ahead.take() {
            return Some(item);
        }
        let bytes = &self.body[self.at..];
        let (item, rest) = codec::decode_item(&mut self.context, bytes)?;
        self.at += bytes.len() - rest.len();
        Some(item)
    }

    /// The next event of the batch.
    fn unpack(&mut self) -> Result<Option<Event>, ReadError> {
        let Some(Unpacked { batch, bytes, at, left }) = &mut self.batch else { return Ok(None) };
        let invalid = |problem| Violation { event: Some(EventId(self.next)), problem };
        let offset = batch.at.offset + *at as u64;
        let (event, len) = batch::take_first((batch.task, batch.space), offset, &bytes[*at..])
            .ok_or_else(|| invalid(Problem::Calls { offset }))?;
        *at += len;
        *left -= 1;
        if *left == 0 {
            if *at != bytes.len() {
                let (expected, found) = (batch.count, batch.count + 1);
                return Err(invalid(Problem::CallCount { expected, found }).into());
            }
            self.batch = None;
        }
        Ok(Some(event))
    }

    fn read(&mut self) -> Result<Option<(EventId, Event)>, ReadError> {
        loop {
            if self.left == 0 && !self.load()? {
                return Ok(None);
            }
            let (id, event) = self.decode()?;
            if id.0 < self.first {
                continue;
            }
            let invalid = |problem: Problem| Violation { event: Some(id), problem };
            check_alone(&event, self.trace.bounds()).map_err(invalid)?;
            if let Some(sequence) = &mut self.sequence {
                sequence.follow(&event).map_err(invalid)?;
            }
            return Ok(Some((id, event)));
        }
    }

    /// The checks of the sequence so far, for what only its end shows.
    pub(crate) fn into_sequence(self) -> Option<Sequence> {
        self.sequence
    }
}

impl Iterator for Events {
    type Item = Result<(EventId, Event), ReadError>;

    fn next(&mut self) -> Option<Self::Item> {
        let item = self.read().transpose();
        if !matches!(item, Some(Ok(_))) {
            self.frame = self.trace.0.event_frames.len();
            self.left = 0;
        }
        item
    }
}
