//! The crate-to-crate edges that are allowed. A new edge is a commit of its own that edits this table and says why.

use std::collections::{BTreeMap, BTreeSet};

use cargo_metadata::{DependencyKind, MetadataCommand};

/// Each crate and what it may depend on. Listed in an order in which every crate comes after what it stands on, so the
/// table itself shows that there are no cycles.
const EDGES: &[(&str, &[&str])] = &[
    ("guest", &[]),
    ("abi", &[]),
    // The stub's descriptor is read by what it jumps to.
    ("patch", &["abi"]),
    ("buffer", &["abi"]),
    ("kernel", &["guest"]),
    // What a tracee notes of its calls is kept as it is.
    ("trace", &["guest", "abi"]),
    ("ptrace", &["guest"]),
    ("counter", &["guest", "ptrace"]),
    ("translate", &["guest"]),
    ("granule", &["guest"]),
    ("recorder", &["guest", "kernel", "trace", "ptrace", "abi", "patch", "buffer", "counter"]),
    ("engine", &["guest", "ptrace", "abi", "translate"]),
    ("replayer", &["guest", "kernel", "trace", "engine"]),
    ("timeline", &["guest", "trace", "engine", "replayer"]),
    ("store", &["guest", "trace", "granule"]),
    ("symbols", &["guest", "trace"]),
    ("index-build", &["guest", "kernel", "trace", "translate", "engine", "replayer", "granule", "store"]),
    ("tables", &["guest", "kernel", "trace", "granule", "store", "symbols"]),
    ("why", &["guest", "trace", "granule", "store", "symbols", "tables"]),
    ("gdb", &["guest", "trace", "timeline", "symbols"]),
    (
        "cli",
        &[
            "guest",
            "kernel",
            "trace",
            "recorder",
            "replayer",
            "timeline",
            "store",
            "symbols",
            "index-build",
            "tables",
            "why",
            "gdb",
        ],
    ),
];

/// Crates that only test; they may use anything.
const TEST_CRATES: &[&str] = &["tidy", "oracle", "bench", "conformance"];

fn short(name: &str) -> Option<&str> {
    name.strip_prefix("backstory-")
}

#[test]
fn every_edge_is_in_the_table() {
    let metadata = MetadataCommand::new().no_deps().exec().expect("cargo metadata runs");
    let table: BTreeMap<&str, BTreeSet<&str>> =
        EDGES.iter().map(|(name, to)| (*name, to.iter().copied().collect())).collect();
    let mut seen = BTreeSet::new();
    for package in &metadata.packages {
        let name = short(&package.name).expect("every crate is named backstory-*");
        if TEST_CRATES.contains(&name) {
            continue;
        }
        seen.insert(name.to_owned());
        let allowed = table.get(name).unwrap_or_else(|| panic!("crate {name} is not in the table"));
        for dependency in package.dependencies.iter().filter(|d| d.kind == DependencyKind::Normal) {
            if let Some(to) = short(&dependency.name) {
                assert!(allowed.contains(to), "{name} depends on {to}: not in the table of edges");
            }
        }
    }
    let listed: BTreeSet<String> = EDGES.iter().map(|(name, _)| (*name).to_owned()).collect();
    assert_eq!(seen, listed, "the table lists exactly the crates there are");
}

#[test]
fn the_table_has_no_cycles() {
    let mut done = BTreeSet::new();
    for (name, to) in EDGES {
        for dependency in *to {
            assert!(done.contains(dependency), "{name} is listed before {dependency}, which it depends on");
        }
        done.insert(name);
    }
}

fn reach(from: &str) -> BTreeSet<&str> {
    let mut todo = vec![from];
    let mut seen = BTreeSet::new();
    while let Some(name) = todo.pop() {
        if seen.insert(name) {
            let (_, to) = EDGES.iter().find(|(n, _)| *n == name).expect("listed");
            todo.extend(to.iter().copied());
        }
    }
    seen
}

#[test]
fn recorder_and_replay_never_meet() {
    for (from, never) in [
        ("recorder", "replayer"),
        ("recorder", "engine"),
        ("timeline", "recorder"),
        ("index-build", "recorder"),
    ] {
        assert!(!reach(from).contains(never), "{from} reaches {never}");
    }
}
