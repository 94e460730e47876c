//! Damage to an index: whatever byte is another one, a question gets the right answer or an error of the index.
#![expect(clippy::unwrap_used, reason = "what fails here fails the test")]

extern crate store as backstory_store;

use ::granule;

#[path = "../../../record/trace/tests/empty/mod.rs"]
mod empty;
#[expect(dead_code, reason = "shared with the tests of the codec")]
#[path = "../../../index/granule/tests/made/mod.rs"]
mod made;
#[expect(dead_code, reason = "shared with the tests of the index")]
#[path = "../../../index/store/tests/world/mod.rs"]
mod world;

use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::Path;

use backstory_tables::{Database, Format, OpenError, RenderError};
use world::World;

/// Reads every table, and every granule.
const EVERYTHING: &str = "SELECT * FROM writes; SELECT * FROM calls; SELECT count(*), sum(pc) FROM executions; \
    SELECT * FROM main.meta; SELECT * FROM main.segments; SELECT * FROM main.granules; SELECT * FROM main.blocks; \
    SELECT * FROM main.page_index; SELECT * FROM main.code_index; SELECT * FROM main.open_calls; \
    SELECT * FROM main.events; SELECT * FROM main.spaces; SELECT * FROM main.tasks; SELECT * FROM main.mappings";

/// A byte of each so many is changed: as many as there is time for, in each page others.
const STEP: usize = 131;

fn recorded(dir: &Path) {
    empty::empty_trace(dir, world::UUID);
    std::fs::copy(World::new(5, 60).folder.path().join("index.db"), dir.join("index.db")).unwrap();
}

/// Everything that the index says, or what is wrong with it.
fn asked(dir: &Path) -> Result<Vec<u8>, String> {
    let database = Database::open(dir).map_err(|error| match error {
        OpenError::Index(_) | OpenError::Query(_) => error.to_string(),
        other => panic!("not an error of the index: {other:?}"),
    })?;
    let mut out = Vec::new();
    database.run(EVERYTHING, Format::Csv, &mut out).map_err(|error| match error {
        RenderError::Index(error) => error.to_string(),
        other => panic!("not an error of the index: {other:?}"),
    })?;
    Ok(out)
}

fn set(file: &File, at: usize, byte: u8) {
    file.write_all_at(&[byte], at as u64).unwrap();
}

#[test]
fn no_damaged_byte_changes_an_answer() {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path().join("trace");
    recorded(&dir);
    let path = dir.join("index.db");
    let bytes = std::fs::read(&path).unwrap();
    let file = OpenOptions::new().write(true).open(&path).unwrap();
    let right = asked(&dir).unwrap();
    let mut noticed = 0;
    // All of the file's own header, then a sample.
    for at in (0..100).chain((100..bytes.len()).step_by(STEP)) {
        set(&file, at, bytes[at] ^ 1 << (at % 8));
        match asked(&dir) {
            Ok(answer) => assert!(answer == right, "byte {at} changes the answer"),
            Err(_) => noticed += 1,
        }
        set(&file, at, bytes[at]);
    }
    let sampled = 100 + (bytes.len() - 100).div_ceil(STEP);
    assert!(noticed * 2 > sampled, "{noticed} of {sampled} noticed: most pages are read");
    assert!(asked(&dir).unwrap() == right);
}

#[test]
fn no_cut_changes_an_answer() {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path().join("trace");
    recorded(&dir);
    let path = dir.join("index.db");
    let bytes = std::fs::read(&path).unwrap();
    let right = asked(&dir).unwrap();
    for len in (0..bytes.len()).step_by(4096).chain([1, 99, 100, bytes.len() - 1]) {
        std::fs::write(&path, &bytes[..len]).unwrap();
        // Half of a page that nothing asks about may be gone.
        let whole = len.next_multiple_of(8192) == bytes.len();
        assert!(asked(&dir).map_or(true, |answer| whole && answer == right), "{len} bytes");
    }
    std::fs::write(&path, &bytes).unwrap();
    assert!(asked(&dir).unwrap() == right);
}
