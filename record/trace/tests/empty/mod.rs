//! A recording in which nothing happened, for tests that make up its index.

use std::path::Path;

use trace::{Header, Machine, Summary, TraceWriter, Version};

/// Writes one to the folder `dir`.
pub(crate) fn empty_trace(dir: &Path, uuid: [u8; 16]) {
    let header = Header {
        version: Version::CURRENT,
        uuid,
        started: 0,
        argv: vec![b"synthetic".to_vec()],
        envp: Vec::new(),
        cwd: "/".to_owned(),
        machine: Machine::default(),
        fds: Vec::new(),
    };
    let writer = TraceWriter::create_with_store(dir, &header, None).unwrap();
    let summary = Summary { exit_code: 0, nanos: 0, events: 0, tasks: 0, spaces: 0, refused: None };
    writer.finish(&summary).unwrap();
}
