//! `why` over a small index made by hand: remapped, moved and forked memory, partial writes, the kernel.
#![expect(clippy::unwrap_used, reason = "what fails here fails the test")]

#[path = "../../../record/trace/tests/empty/mod.rs"]
mod empty;

use backstory_why::{Answer, Question, Verdict, WhyError, Writer, why};
use granule::{
    BlockEnd, BlockInterner, BlockShape, Encoder, Frames, RawGranule, StoreAddress, StoreContents,
    StoreShape, StoreSize,
};
use guest::{EventId, GuestAddr, GuestRange, Moment, Prot, SpaceId, TaskId};
use store::{Facts, ImageRow, MappingRow, MappingSource, NewBlocks, Segment, SpaceRow, SyscallRow, TaskRow};
use symbols::Expression;
use tables::Database;

const UUID: [u8; 16] = *b"made by hand....";
const CODE: u64 = 0x40_0000;

/// A run of two spaces, the second a fork of the first.
struct Script {
    spaces: [RawGranule; 2],
    interner: BlockInterner,
    moment: u64,
    running: Option<usize>,
    facts: Facts,
}

impl Script {
    fn new() -> Self {
        let space = |id| RawGranule::new(SpaceId(id), 0);
        let interner = BlockInterner::default();
        let mut script = Self {
            spaces: [space(0), space(1)],
            interner,
            moment: 0,
            running: None,
            facts: Facts::default(),
        };
        script.facts.images.push(ImageRow {
            event: EventId(0),
            moment: Moment(0),
            task: TaskId(0),
            space: SpaceId(0),
            exe: "/bin/prog".to_owned(),
            argv: "prog".to_owned(),
            cwd: "/".to_owned(),
        });
        let task = |id, tid| TaskRow {
            task: TaskId(id),
            tid,
            pid: tid,
            parent: None,
            first: Moment(0),
            last: None,
            exit_code: None,
            signal: None,
        };
        script.facts.tasks = vec![task(0, 100), task(1, 101)];
        script
    }

    fn switch(&mut self, space: usize) {
        if self.running != Some(space) {
            self.running = Some(space);
            self.spaces[space].mark(Moment(self.moment), TaskId(space as u32));
        }
    }

    /// An instruction of space `space` that writes the low `size` bytes of `value`.
    fn store(&mut self, space: usize, addr: u64, value: u64, size: u8) -> u64 {
        self.instruction(space, Some((addr, value, size)))
    }

    fn instruction(&mut self, space: usize, store: Option<(u64, u64, u8)>) -> u64 {
        self.switch(space);
        let stores = store.map(|(addr, value, size)| StoreShape {
            instruction: 0,
            size: StoreSize::Fixed(size),
            address: StoreAddress::Fixed(addr),
            contents: StoreContents::Fixed(value),
        });
        let shape = BlockShape {
            pc: GuestAddr(CODE + self.moment * 4),
            lens: Box::new([4]),
            seams: Box::new([]),
            stores: stores.into_iter().collect(),
            record: 0,
            end: BlockEnd::Fall,
        };
        let id = self.interner.intern(&shape);
        self.spaces[space].block(id, 1);
        self.spaces[space].log_empty();
        self.moment += 1;
        self.moment - 1
    }

    /// A syscall of space `space` that fills `bytes` at `addr`.
    fn syscall(&mut self, space: usize, event: u64, nr: u32, args: [u64; 6], addr: u64, bytes: &[u8]) -> u64 {
        self.switch(space);
        if !bytes.is_empty() {
            self.spaces[space].system(EventId(event), GuestAddr(addr), bytes);
        }
        self.facts.syscalls.push(SyscallRow {
            event: EventId(event),
            moment: Moment(self.moment),
            task: TaskId(space as u32),
            space: SpaceId(space as u32),
            nr,
            name: kernel_name(nr).to_owned(),
            args,
            result: Some(bytes.len() as i64),
            fd: Some(3),
            path: Some("/tmp/file".to_owned()),
            offset: Some(0),
        });
        self.instruction(space, None)
    }

    fn map(
        &mut self,
        space: u32,
        start: u64,
        from: u64,
        until: Option<u64>,
        source: MappingSource,
        event: u64,
    ) {
        self.facts.mappings.push(MappingRow {
            space: SpaceId(space),
            range: GuestRange::new(GuestAddr(start), 0x1000),
            prot: Prot::from_bits(3),
            shared: false,
            file: None,
            object: None,
            name: "[heap]".to_owned(),
            source,
            mapped_by: EventId(event),
            mapped_at: Moment(from),
            from: Moment(from),
            until: until.map(Moment),
        });
    }

    fn fork(&mut self, event: u64) -> u64 {
        let row = |space, parent, first, event| SpaceRow {
            space: SpaceId(space),
            parent,
            first: Moment(first),
            event: EventId(event),
        };
        self.facts.spaces = vec![row(0, None, 0, 0), row(1, Some(SpaceId(0)), self.moment, event)];
        self.moment
    }

    /// Encodes everything and opens it. The folder must live as long as the database.
    fn finish(mut self) -> (tempfile::TempDir, Database) {
        let folder = tempfile::tempdir().unwrap();
        let dir = folder.path().join("trace");
        empty::empty_trace(&dir, UUID);
        let (mut writer, _) = store::Writer::open(&dir, &UUID).unwrap();
        let mut encoder = Encoder::new().unwrap();
        let used = self.spaces.iter().filter(|raw| !raw.is_empty());
        let granules = used
            .map(|raw| encoder.encode(raw, self.interner.table(), &mut Frames::default()).unwrap())
            .collect();
        let table = self.interner.table();
        let blocks = NewBlocks { first: 0, count: table.len() as u64, data: table.write_from(0).unwrap() };
        writer.commit(&Segment { granules, ..Segment::default() }, &blocks).unwrap();
        if self.facts.spaces.is_empty() {
            self.fork(0);
            self.facts.spaces.truncate(1);
        }
        writer.commit_facts(&self.facts, true).unwrap();
        writer.finish().unwrap();
        let database = Database::open(&dir).unwrap();
        (folder, database)
    }
}

fn kernel_name(nr: u32) -> &'static str {
    if nr == 1 { "write" } else { "read" }
}

fn ask(database: &Database, addr: u64, size: Option<u64>, at: Option<u64>) -> Result<Answer, WhyError> {
    let target = Expression::Address(GuestAddr(addr));
    why(database, &Question { target, size, at: at.map(Moment), space: None })
}

/// Moment, space, covered bytes and values of the last write.
#[track_caller]
fn written(answer: &Answer) -> (u64, u32, (u64, u64), Option<u64>, Option<u64>) {
    let Verdict::Written(hop) = &answer.verdict else { panic!("{answer}") };
    let number = |bytes: &Option<backstory_why::Bytes>| bytes.as_ref().and_then(|b| b.number);
    (hop.moment, hop.space, (hop.coverage.first, hop.coverage.count), number(&hop.old), number(&hop.new))
}

#[test]
fn the_last_write_before_the_moment_with_old_and_new_value() {
    let mut script = Script::new();
    script.map(0, 0x1000, 0, None, MappingSource::Mapped, 0);
    script.instruction(0, None);
    let first = script.store(0, 0x1010, 41, 4);
    let second = script.store(0, 0x1010, 42, 4);
    script.store(0, 0x1018, 7, 8);
    let partial = script.store(0, 0x1012, 0x9999, 2);
    let (_folder, database) = script.finish();
    let at = |moment| written(&ask(&database, 0x1010, Some(4), Some(moment)).unwrap());
    assert_eq!(at(second), (first, 0, (0, 4), Some(0), Some(41)));
    assert_eq!(at(second + 1), (second, 0, (0, 4), Some(41), Some(42)));
    assert_eq!(at(partial + 1), (partial, 0, (2, 2), Some(42), Some(0x9999_002a)));
    // Without a size the first byte's write says how large the thing is, and later writes of its other bytes count.
    assert_eq!(written(&ask(&database, 0x1010, None, None).unwrap()).0, partial);
    assert_eq!(written(&ask(&database, 0x1011, None, Some(second + 1)).unwrap()).0, second);
    // Of a large target, what was written.
    let large = ask(&database, 0x1000, Some(64), Some(second + 1)).unwrap();
    assert_eq!(written(&large), (second, 0, (16, 4), Some(41), Some(42)));
    assert!(large.to_string().contains("  value  41 (0x29) -> 42 (0x2a) at 0x1010\n"), "{large}");
    let text = ask(&database, 0x1010, Some(4), None).unwrap().to_string();
    assert!(text.contains("2 bytes at 0x1012, which cover only bytes 2 to 3 of the target"), "{text}");
}

#[test]
fn what_nobody_wrote_says_where_it_came_from() {
    let mut script = Script::new();
    script.map(0, 0x1000, 0, Some(3), MappingSource::Mapped, 0);
    script.instruction(0, None);
    script.store(0, 0x1000, 5, 8);
    script.instruction(0, None);
    // Unmapped and mapped again: what was written before is gone.
    let event = script.syscall(0, 9, 0, [0; 6], 0, &[]);
    script.map(0, 0x1000, event, None, MappingSource::Mapped, 9);
    script.instruction(0, None);
    let (_folder, database) = script.finish();
    let Verdict::NeverWritten(origin) = ask(&database, 0x1000, None, None).unwrap().verdict else { panic!() };
    assert_eq!((origin.mapped_at, origin.file.clone()), (event, None));
    assert_eq!(origin.value.unwrap().number, Some(0));
    assert!(origin.mapped_by.starts_with("read("), "{}", origin.mapped_by);
    assert_eq!(written(&ask(&database, 0x1000, Some(8), Some(2)).unwrap()).0, 1);
    let error = ask(&database, 0x8000, None, None).unwrap_err().to_string();
    assert!(error.starts_with("0x8000 is not mapped at @"), "{error}");
    let error = ask(&database, 0x1000, None, Some(1000)).unwrap_err().to_string();
    assert_eq!(error, "@1000 is out of range: the index ends at @5");
    let error = ask(&database, 0x1000, Some(0), None).unwrap_err().to_string();
    assert_eq!(error, "a size of 0 bytes cannot be asked about (1 to 1048576)");
}

#[test]
fn moved_memory_keeps_its_history() {
    let mut script = Script::new();
    script.map(0, 0x1000, 0, Some(3), MappingSource::Mapped, 0);
    script.instruction(0, None);
    let stored = script.store(0, 0x1020, 77, 8);
    script.instruction(0, None);
    let moved = script.syscall(0, 9, 0, [0; 6], 0, &[]);
    script.map(0, 0x9000, moved, None, MappingSource::Moved { from: GuestAddr(0x1000) }, 9);
    script.instruction(0, None);
    let later = script.store(0, 0x9024, 1, 1);
    let (_folder, database) = script.finish();
    assert_eq!(
        written(&ask(&database, 0x9020, Some(4), None).unwrap()),
        (stored, 0, (0, 4), Some(0), Some(77))
    );
    let (moment, _, part, old, new) = written(&ask(&database, 0x9020, Some(8), None).unwrap());
    assert_eq!((moment, part, old, new), (later, (4, 1), Some(77), Some(77 + (1 << 32))));
}

#[test]
fn a_fork_has_its_parents_history() {
    let mut script = Script::new();
    script.map(0, 0x1000, 0, None, MappingSource::Mapped, 0);
    script.instruction(0, None);
    let before = script.store(0, 0x1000, 1, 8);
    script.store(0, 0x1010, 10, 8);
    let forked = script.fork(5);
    script.map(1, 0x1000, forked, None, MappingSource::Copied, 5);
    script.instruction(1, None);
    let child = script.store(1, 0x1010, 20, 8);
    let parent = script.store(0, 0x1000, 2, 8);
    let (_folder, database) = script.finish();
    let ask_in = |space, addr| {
        let target = Expression::Address(GuestAddr(addr));
        why(&database, &Question { target, size: Some(8), at: None, space: Some(SpaceId(space)) }).unwrap()
    };
    assert_eq!(written(&ask_in(1, 0x1000)), (before, 0, (0, 8), Some(0), Some(1)));
    assert_eq!(written(&ask_in(0, 0x1000)), (parent, 0, (0, 8), Some(1), Some(2)));
    assert_eq!(written(&ask_in(1, 0x1010)), (child, 1, (0, 8), Some(10), Some(20)));
    // Without a space, the latest write of all.
    assert_eq!(written(&ask(&database, 0x1010, Some(8), None).unwrap()).0, child);
    assert!(ask_in(1, 0x1000).to_string().contains("in space 0, before space 1 was forked from it"));
    let target = Expression::Address(GuestAddr(0x1000));
    let stranger = why(&database, &Question { target, size: None, at: None, space: Some(SpaceId(9)) });
    assert_eq!(stranger.unwrap_err().to_string(), "there is no space 9 (the recording has 2)");
}

#[test]
fn shared_memory_is_written_through_every_mapping() {
    let mut script = Script::new();
    let shows = |script: &mut Script, offset| {
        let mapping = script.facts.mappings.last_mut().unwrap();
        (mapping.shared, mapping.object) = (true, Some((7, offset)));
        script.facts.mappings.len() - 1
    };
    script.map(0, 0x1000, 0, None, MappingSource::Mapped, 0);
    shows(&mut script, 0);
    script.map(0, 0x8000, 0, None, MappingSource::Mapped, 0);
    let gone = shows(&mut script, 0);
    script.instruction(0, None);
    let own = script.store(0, 0x1010, 1, 8);
    let other = script.store(0, 0x8010, 2, 8);
    let unmapped = script.instruction(0, None);
    script.facts.mappings[gone].until = Some(Moment(unmapped));
    // What is written there now is something else.
    script.map(0, 0x8000, unmapped, None, MappingSource::Mapped, 0);
    let unrelated = script.store(0, 0x8010, 3, 8);
    let forked = script.fork(5);
    script.map(1, 0x5000, forked, None, MappingSource::Mapped, 5);
    let child = shows(&mut script, 0);
    script.instruction(1, None);
    let stored = script.store(1, 0x5014, 4, 4);
    // The kernel unlocks what the child held when it ended.
    script.facts.mappings[child].until = Some(Moment(script.moment));
    let ended = script.syscall(1, 6, 0, [0; 6], 0x5020, &[9, 0, 0, 0]);
    script.instruction(0, None);
    let (_folder, database) = script.finish();
    let at = |addr, moment| ask(&database, addr, Some(8), Some(moment)).unwrap();
    assert_eq!(written(&at(0x1010, other)), (own, 0, (0, 8), Some(0), Some(1)));
    assert_eq!(written(&at(0x1010, unrelated + 1)), (other, 0, (0, 8), Some(1), Some(2)));
    assert_eq!(written(&at(0x8010, unrelated + 1)), (unrelated, 0, (0, 8), Some(0), Some(3)));
    let last = ask(&database, 0x1010, Some(8), None).unwrap();
    assert_eq!(written(&last), (stored, 1, (4, 4), Some(2), Some(2 + (4 << 32))));
    assert!(last.to_string().contains("in space 1 (/bin/prog), which shares that memory\n"), "{last}");
    let last = ask(&database, 0x1020, Some(4), None).unwrap();
    assert_eq!(written(&last), (ended, 1, (0, 4), Some(0), Some(9)));
    let Verdict::NeverWritten(_) = ask(&database, 0x1040, None, None).unwrap().verdict else { panic!() };
}

#[test]
fn the_kernel_names_its_call_and_where_the_byte_came_from() {
    let mut script = Script::new();
    script.map(0, 0x1000, 0, None, MappingSource::Mapped, 0);
    script.map(0, 0x3000, 0, None, MappingSource::Mapped, 0);
    script.instruction(0, None);
    let put = script.syscall(0, 3, 1, [3, 0x3000, 16, 0, 0, 0], 0x3000, &[0; 16]);
    let got = script.syscall(0, 4, 0, [3, 0x1000, 16, 0, 0, 0], 0x1000, &[7; 16]);
    let (_folder, database) = script.finish();
    let answer = ask(&database, 0x1005, Some(1), None).unwrap();
    assert_eq!(written(&answer), (got, 0, (0, 1), Some(0), Some(7)));
    let Verdict::Written(hop) = &answer.verdict else { panic!() };
    let Writer::Kernel { text, fd, path, offset, source, .. } = &hop.writer else { panic!("{answer}") };
    assert!(text.starts_with("read(3, 0x1000, 16) = 16 </tmp/file> offset 0"), "{text}");
    assert_eq!((*fd, path.as_deref(), *offset), (Some(3), Some("/tmp/file"), Some(5)));
    let source = source.as_ref().unwrap();
    assert_eq!((source.moment, source.addr.as_str()), (put, "0x3005"));
}
