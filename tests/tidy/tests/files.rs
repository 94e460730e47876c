//! Rules about files: their heads, their length, the top level, words that have no place.

use std::fs;
use std::path::{Path, PathBuf};

/// A module longer than this fails, tables of data (`EXEMPT`) aside.
const MAX_LINES: usize = 800;

/// Files that are tables of data. Paths relative to the root; a prefix covers a folder.
const EXEMPT: &[&str] = &["record/kernel/src/table", "record/kernel/src/names"];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .ancestors()
        .nth(2)
        .expect("tests/tidy lies two levels down")
        .to_owned()
}

fn sources(dir: &Path, out: &mut Vec<PathBuf>) {
    let mut entries: Vec<_> =
        fs::read_dir(dir).expect("readable folder").map(|e| e.expect("readable entry").path()).collect();
    entries.sort();
    for path in entries {
        let name = path.file_name().expect("named").to_string_lossy().into_owned();
        if path.is_dir() && name != "target" && !name.starts_with('.') {
            sources(&path, out);
        } else if name.ends_with(".rs") {
            out.push(path);
        }
    }
}

fn each_source(mut check: impl FnMut(&str, &str)) {
    let root = root();
    let mut files = Vec::new();
    sources(&root, &mut files);
    assert!(files.len() > 20, "the sources were found");
    for file in files {
        let text = fs::read_to_string(&file).expect("utf-8 source");
        let name = file.strip_prefix(&root).expect("below root").to_string_lossy().into_owned();
        check(&name, &text);
    }
}

#[test]
fn every_file_says_its_job_first() {
    each_source(|name, text| assert!(text.starts_with("//!"), "{name} does not open with //!"));
}

#[test]
fn modules_stay_short() {
    each_source(|name, text| {
        let lines = text.lines().count();
        let exempt = EXEMPT.iter().any(|prefix| name.starts_with(prefix));
        assert!(exempt || lines <= MAX_LINES, "{name} has {lines} lines");
    });
}

#[test]
fn lints_are_expected_not_allowed() {
    each_source(|name, text| {
        let needle = concat!("#[", "allow(");
        let inner = concat!("#![", "allow(");
        assert!(
            !text.contains(needle) && !text.contains(inner),
            "{name} allows a lint: use expect with a reason"
        );
        assert!(!text.contains(concat!("#[", "ignore")), "{name} ignores a test");
    });
}

#[test]
fn no_folder_for_leftovers() {
    let mut files = Vec::new();
    sources(&root(), &mut files);
    for file in files {
        for part in ["util", "utils", "common", "core", "helpers", "misc", "types"] {
            let stem = file.file_stem().expect("named").to_string_lossy();
            let in_folder = file.components().any(|c| c.as_os_str() == part);
            assert!(stem != part && !in_folder, "{} is a place for leftovers", file.display());
        }
    }
}

#[test]
fn top_level_is_as_documented() {
    let mut names: Vec<String> = fs::read_dir(root())
        .expect("readable root")
        .map(|e| e.expect("readable entry").file_name().to_string_lossy().into_owned())
        .filter(|name| !name.starts_with('.') && name != "target")
        .collect();
    names.sort();
    let expected = [
        "ARCHITECTURE.md",
        "Cargo.lock",
        "Cargo.toml",
        "LICENSE",
        "README.md",
        "index",
        "preload",
        "query",
        "record",
        "replay",
        "tests",
    ];
    assert_eq!(names, expected);
}
