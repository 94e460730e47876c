//! The guest programs under `tests/programs`: each file is one behaviour, asserts itself and ends with the line `ok`.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The folder of guest programs.
pub fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("tests/").join("programs")
}

/// All guest programs, by name (file stem), sorted.
pub fn names() -> Vec<String> {
    let mut names: Vec<String> = fs::read_dir(folder())
        .expect("tests/programs is there")
        .map(|entry| entry.expect("readable entry").path())
        .filter(|path| path.extension().is_some_and(|e| e == "c" || e == "S" || e == "cc"))
        .map(|path| path.file_stem().expect("named").to_string_lossy().into_owned())
        .collect();
    names.sort();
    names
}

/// Builds a guest into `out_dir`; the first line `// BUILD: FLAGS` of its source adds flags. Panics with the compiler's words.
pub fn build(name: &str, out_dir: &Path) -> PathBuf {
    let source = ["c", "S", "cc"]
        .map(|ext| folder().join(format!("{name}.{ext}")))
        .into_iter()
        .find(|path| path.exists())
        .unwrap_or_else(|| panic!("no guest program {name}"));
    build_file(&source, out_dir)
}

/// Builds any C, C++ or assembly file the same way.
pub fn build_file(source: &Path, out_dir: &Path) -> PathBuf {
    let text = fs::read_to_string(source).expect("readable source");
    let flags = text.lines().next().and_then(|line| line.split_once("BUILD:")).map_or("", |(_, flags)| flags);
    let out = out_dir.join(source.file_stem().expect("named"));
    let compiler = if source.extension().is_some_and(|e| e == "cc") { "g++" } else { "gcc" };
    let output = Command::new(compiler)
        .args(["-g", "-O1", "-w"])
        .arg(source)
        .arg("-o")
        .arg(&out)
        .args(flags.split_whitespace())
        .output()
        .unwrap_or_else(|e| panic!("{compiler} runs: {e}"));
    assert!(output.status.success(), "{}: {}", source.display(), String::from_utf8_lossy(&output.stderr));
    out
}
