//! A trace of every released version stays readable.

use std::path::Path;

use crate::sample;
use trace::{Event, Header, Trace, Version};

#[test]
fn version_1_is_readable() {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/v1");
    if std::env::var_os("BACKSTORY_WRITE_GOLDEN").is_some() {
        sample::write(&dir, 5, usize::MAX);
    }
    let trace = Trace::open(&dir).unwrap();
    let read: Vec<Event> = trace.events().map(|item| sample::inlined(&trace, item.unwrap().1)).collect();
    assert_eq!(read, sample::events());
    let version = Version { major: 1, minor: 0 };
    assert_eq!(trace.header(), &Header { version, ..sample::header() });
    assert_eq!(trace::check(&trace), []);
}
