//! What calls read of files is kept once, however often it is read, and what is changed or missing is noticed.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use crate::sample;
use guest::{GuestAddr, PieceId};
use trace::{Data, Event, MemWrite, SourceFile, Trace, TraceWriter};

const FILE: SourceFile = SourceFile { dev: 1, ino: 2 };
const OTHER: SourceFile = SourceFile { dev: 1, ino: 3 };

/// Bytes that do not repeat.
fn noise(seed: u64, len: usize) -> Vec<u8> {
    let mut state = seed;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 56) as u8
    };
    (0..len).map(|_| next()).collect()
}

/// A recording whose second event is replaced by reads: of which file, at which offset, what.
struct Reads {
    writer: TraceWriter,
    expected: Vec<Vec<u8>>,
}

impl Reads {
    fn begin(dir: &Path, store: Option<&Path>) -> Self {
        let mut writer = sample::begin_in(dir, store);
        writer.event(&sample::events()[0]).unwrap();
        Self { writer, expected: Vec::new() }
    }

    fn read(&mut self, file: SourceFile, offset: u64, bytes: &[u8]) -> Data {
        let data = self.writer.of_file(file, &|| None, offset, bytes).unwrap();
        assert_eq!(data.len(), bytes.len());
        let mut event: Event = sample::events()[1].clone();
        event.maps.clear();
        event.writes = vec![MemWrite { addr: GuestAddr(0x10000), data: data.clone() }];
        self.writer.event(&event).unwrap();
        self.expected.push(bytes.to_vec());
        data
    }

    /// Checks that everything is there.
    fn end(mut self, dir: &Path) -> Trace {
        self.writer.flush().unwrap();
        drop(self.writer);
        let trace = Trace::open(dir).unwrap();
        assert_eq!(trace::check(&trace), []);
        assert!(contents(&trace) == self.expected, "other bytes than were read");
        trace
    }
}

/// What the reads of a recording got, up to the first that cannot be told.
fn contents(trace: &Trace) -> Vec<Vec<u8>> {
    let events = trace.events().map_while(Result::ok).skip(1);
    events.map_while(|(_, event)| Some(trace.data(&event.writes[0].data).ok()?.into_owned())).collect()
}

fn in_pieces(data: &Data) -> bool {
    matches!(data, Data::Pieces(_))
}

#[test]
fn what_is_read_again_is_kept_once() {
    let scratch = tempfile::tempdir().unwrap();
    let dir = scratch.path().join("t");
    let mut reads = Reads::begin(&dir, None);
    let bytes = noise(1, 3_000_000);
    let mut offsets = Vec::new();
    for round in 0..3 {
        for (i, part) in bytes.chunks(100_000).enumerate() {
            let data = reads.read(FILE, i as u64 * 100_000, part);
            assert!(round == 0 || in_pieces(&data) || i < 3);
            offsets.push(data);
        }
    }
    // In the middle of a piece and across pieces; of another file, little and much.
    assert!(in_pieces(&reads.read(FILE, 1_000_001, &bytes[1_000_001..2_500_007])));
    assert!(!in_pieces(&reads.read(OTHER, 0, &bytes[..4096])));
    assert!(in_pieces(&reads.read(OTHER, 4096, &bytes[4096..400_000])));
    let trace = reads.end(&dir);
    let kept: u64 = trace.pieces().iter().map(|piece| u64::from(piece.len)).sum();
    assert!((2_700_000..=3_500_000).contains(&kept), "{kept} bytes are kept");
    assert!(trace.stream_bytes() < 800_000);
}

#[test]
fn what_changed_is_kept_as_it_was_and_as_it_is() {
    let scratch = tempfile::tempdir().unwrap();
    let dir = scratch.path().join("t");
    let mut reads = Reads::begin(&dir, None);
    let mut bytes = noise(2, 2_000_000);
    reads.read(FILE, 0, &bytes);
    for round in 0..4 {
        let at = 300_000 * round + 17;
        bytes[at..at + 5000].copy_from_slice(&noise(at as u64, 5000));
        // Across what changed and what did not.
        reads.read(FILE, 200_000, &bytes[200_000..1_900_000]);
        reads.read(FILE, at as u64 - 10, &bytes[at - 10..at + 4000]);
        // As if the file had been cut short and written anew.
        reads.read(FILE, 0, &bytes[..at + 20]);
        reads.writer.flush().unwrap();
        // What was written is compared with, too.
        assert!(in_pieces(&reads.read(FILE, 0, &bytes[..100])));
    }
    reads.end(&dir);
}

#[test]
fn reads_all_over_many_files_are_whole() {
    let scratch = tempfile::tempdir().unwrap();
    let dir = scratch.path().join("t");
    let mut reads = Reads::begin(&dir, None);
    let bytes = noise(3, 1 << 20);
    for i in 0..3000u64 {
        let file = SourceFile { dev: 2, ino: i % 23 };
        let offset = i.wrapping_mul(2_654_435_761) % (1 << 40);
        let from = (i as usize * 331) % (1 << 19);
        reads.read(file, offset, &bytes[from..from + 4096 + i as usize % 5000]);
    }
    assert!(in_pieces(&reads.read(OTHER, u64::MAX - (1 << 21), &bytes)));
    assert!(!in_pieces(&reads.read(OTHER, u64::MAX - 1, &bytes)), "there are no such offsets");
    reads.end(&dir);
}

#[test]
fn recordings_share_what_they_read() {
    let scratch = tempfile::tempdir().unwrap();
    let store = scratch.path().join("store");
    let bytes = noise(4, 3_500_000);
    let mut paths = Vec::new();
    for name in ["a", "b"] {
        let dir = scratch.path().join(name);
        let mut reads = Reads::begin(&dir, Some(&store));
        for (i, part) in bytes.chunks(1 << 16).enumerate() {
            reads.read(FILE, (i as u64) << 16, part);
        }
        let trace = reads.end(&dir);
        paths.push(trace.piece_path(PieceId(1)).unwrap());
    }
    let inode = |path| fs::metadata(path).unwrap().ino();
    assert_eq!(inode(&paths[0]), inode(&paths[1]));
}

#[test]
fn changed_and_missing_pieces_are_reported() {
    let scratch = tempfile::tempdir().unwrap();
    let dir = scratch.path().join("t");
    let mut reads = Reads::begin(&dir, None);
    let bytes = noise(5, 400_000);
    reads.read(FILE, 0, &bytes);
    reads.read(FILE, 1000, &bytes[1000..300_000]);
    let expected = reads.expected.clone();
    let path = reads.end(&dir).piece_path(PieceId(0)).unwrap();
    let good = fs::read(&path).unwrap();
    let found = |trace: &Trace| {
        let all = trace::check(trace);
        assert!(all.iter().filter(|violation| violation.event.is_some()).count() >= 1, "{all:?}");
        all.last().unwrap().to_string()
    };
    for at in [0, 1, 1000, 200_000, good.len() - 1] {
        for flip in [0x01, 0x80, 0xff] {
            let mut bad = good.clone();
            bad[at] ^= flip;
            // A file of its own: pieces are read-only.
            fs::remove_file(&path).unwrap();
            fs::write(&path, &bad).unwrap();
            let trace = Trace::open(&dir).unwrap();
            assert!(contents(&trace).is_empty(), "byte {at} ^ {flip:#x}");
            assert_eq!(found(&trace), "kept piece 0 was changed");
        }
    }
    for len in [0, 1, good.len() / 2, good.len() - 1] {
        fs::write(&path, &good[..len]).unwrap();
        assert_eq!(found(&Trace::open(&dir).unwrap()), "kept piece 0 was changed");
    }
    fs::remove_file(&path).unwrap();
    assert_eq!(found(&Trace::open(&dir).unwrap()), "kept piece 0 is missing");
    fs::write(&path, &good).unwrap();
    // What names the pieces: flipped and cut, there is a beginning of what was read.
    let events = fs::read(dir.join("events")).unwrap();
    for at in 0..events.len() {
        let mut bad = events.clone();
        bad[at] ^= 0x40;
        fs::write(dir.join("events"), &bad).unwrap();
        let found = Trace::open(&dir).map(|trace| contents(&trace)).unwrap_or_default();
        assert!(expected.starts_with(&found), "events byte {at}");
        fs::write(dir.join("events"), &events[..at]).unwrap();
        let found = Trace::open(&dir).map(|trace| contents(&trace)).unwrap_or_default();
        assert!(expected.starts_with(&found), "events cut to {at}");
    }
}
