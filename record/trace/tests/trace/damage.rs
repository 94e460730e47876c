//! A damaged trace is an error or the identical result (for a cut-off one: a beginning of it), never a panic, never a wrong answer.

use std::fs;
use std::path::Path;

use crate::sample;
use trace::{Event, Header, Trace, TraceWriter, Version};

/// All that can be read of a trace, up to the first error.
fn read(dir: &Path) -> (Option<Header>, Vec<Event>, bool) {
    let Ok(trace) = Trace::open(dir) else { return (None, Vec::new(), true) };
    let mut events = Vec::new();
    for item in trace.events() {
        let Ok((_, event)) = item else { return (Some(trace.header().clone()), events, true) };
        if event.writes.iter().any(|write| trace.data(&write.data).is_err()) {
            return (Some(trace.header().clone()), events, true);
        }
        events.push(sample::inlined(&trace, event));
    }
    let _ = trace::check(&trace);
    (Some(trace.header().clone()), events, !trace.is_complete())
}

#[track_caller]
fn expect_beginning(dir: &Path, what: &str) {
    let (header, events, failed) = read(dir);
    let all = sample::events();
    assert!(header.is_none_or(|header| header == sample::header()), "{what}: another header");
    assert!(events.len() <= all.len() && events == all[..events.len()], "{what}: other events");
    assert!(failed || events.len() == all.len(), "{what}: events are missing and nothing says so");
}

#[test]
fn every_flipped_byte_is_noticed_or_harmless() {
    let scratch = tempfile::tempdir().unwrap();
    let dir = scratch.path().join("t");
    sample::write(&dir, 5, usize::MAX);
    for stream in ["events", "payload"] {
        let path = dir.join(stream);
        let good = fs::read(&path).unwrap();
        for at in 0..good.len() {
            for flip in [0x01, 0x80, 0xff] {
                let mut bad = good.clone();
                bad[at] ^= flip;
                fs::write(&path, &bad).unwrap();
                expect_beginning(&dir, &format!("{stream} byte {at} ^ {flip:#x}"));
            }
        }
        fs::write(&path, &good).unwrap();
    }
    assert!(!read(&dir).2);
}

#[test]
fn every_cut_leaves_a_beginning() {
    let scratch = tempfile::tempdir().unwrap();
    let dir = scratch.path().join("t");
    sample::write(&dir, 5, usize::MAX);
    for stream in ["events", "payload"] {
        let path = dir.join(stream);
        let good = fs::read(&path).unwrap();
        let mut longest = 0;
        for len in 0..good.len() {
            fs::write(&path, &good[..len]).unwrap();
            expect_beginning(&dir, &format!("{stream} cut to {len}"));
            let events = read(&dir).1.len();
            assert!(events >= longest, "{stream} cut to {len} has fewer events than when cut shorter");
            longest = events;
        }
        fs::write(&path, &good).unwrap();
    }
}

#[test]
fn other_versions_and_folders_are_named() {
    let scratch = tempfile::tempdir().unwrap();
    let message = |dir: &Path| Trace::open(dir).unwrap_err().to_string();
    assert!(message(scratch.path()).ends_with("is not a recording"));
    let taken = scratch.path().join("file");
    fs::write(&taken, "").unwrap();
    let refused = TraceWriter::create_with_store(&taken, &sample::header(), None);
    let refused = refused.err().unwrap().to_string();
    assert!(refused.ends_with("exists and is not an empty folder"), "{refused}");
    let dir = scratch.path().join("t");
    sample::write(&dir, 5, usize::MAX);
    let good = fs::read(dir.join("events")).unwrap();
    let mut newer = good.clone();
    newer[8] = 9;
    let crc = crc32fast::hash(&newer[..12]).to_le_bytes();
    newer[12..16].copy_from_slice(&crc);
    fs::write(dir.join("events"), newer).unwrap();
    let expected = format!("has format version 9.{}, this build reads 1", Version::CURRENT.minor);
    assert!(message(&dir).ends_with(&expected), "{}", message(&dir));
    fs::write(dir.join("events"), "something else entirely").unwrap();
    assert!(message(&dir).ends_with("is not a backstory file of this kind"));
    fs::write(dir.join("events"), &good[..10]).unwrap();
    assert!(message(&dir).ends_with("its recorder was killed at once"));
    fs::write(dir.join("events"), good).unwrap();
    fs::remove_file(dir.join("payload")).unwrap();
    assert!(message(&dir).starts_with("cannot read"));
}

#[test]
fn a_changed_kept_file_is_reported() {
    let scratch = tempfile::tempdir().unwrap();
    let dir = scratch.path().join("t");
    sample::write(&dir, 5, usize::MAX);
    let trace = Trace::open(&dir).unwrap();
    let path = trace.file_path(guest::FileId(0)).unwrap();
    let show = || trace::check(&trace).iter().map(ToString::to_string).collect::<Vec<_>>();
    fs::remove_file(&path).unwrap();
    assert_eq!(show(), ["kept file 0 is missing"]);
    assert!(matches!(trace.verified_file_path(guest::FileId(0)), Err(trace::ReadError::File { .. })));
    fs::write(&path, "short").unwrap();
    assert_eq!(show(), ["kept file 0 has 5 bytes, 25 were kept"]);
    fs::write(&path, sample::KEPT.to_ascii_uppercase()).unwrap();
    assert_eq!(show(), ["kept file 0 was changed"]);
    assert!(matches!(trace.verified_file_path(guest::FileId(0)), Err(trace::ReadError::Changed { .. })));
    fs::write(&path, sample::KEPT).unwrap();
    assert_eq!(trace.verified_file_path(guest::FileId(0)).unwrap(), path);
}
