//! Compiles the demo's guest, so that `backstory demo` needs nothing but this build; and where the binary lies in memory.

use std::env;
use std::path::PathBuf;
use std::process::Command;

fn main() {
    // At a fixed address: else the tables of instructions and calls are relocated at every start, a hundred pages of them.
    println!("cargo::rustc-link-arg-bins=-no-pie");
    let var = |name| env::var_os(name).map(PathBuf::from).expect("cargo sets it");
    let source = var("CARGO_MANIFEST_DIR").join("demo/guest.rs");
    println!("cargo::rerun-if-changed={}", source.display());
    // Unoptimized and without checks of the language, so that the bug is the one in the source. Absolute source path, so
    // that its lines can be shown.
    let status = Command::new(var("RUSTC"))
        .args(["--edition=2024", "--crate-name=ledger", "-Cdebuginfo=2", "-Copt-level=0"])
        .args(["-Cdebug-assertions=off", "-Cpanic=abort", "-o"])
        .arg(var("OUT_DIR").join("demo-guest"))
        .arg(&source)
        .status();
    match status {
        Ok(status) if status.success() => {}
        Ok(status) => panic!("the demo's guest does not compile: {status}"),
        Err(error) => panic!("cannot run the compiler for the demo's guest: {error}"),
    }
}
