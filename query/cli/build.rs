//! Compiles the demo's guest, so that `backstory demo` needs nothing but this build; and how the binary is linked.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

fn main() {
    // At a fixed address: else the tables of instructions and calls are relocated at every start, a hundred pages of them.
    println!("cargo::rustc-link-arg-bins=-no-pie");
    let var = |name| env::var_os(name).map(PathBuf::from).expect("cargo sets it");
    if let Some(folder) = static_libraries(&var("OUT_DIR").join("static")) {
        println!("cargo::rustc-link-arg-bins=-static");
        println!("cargo::rustc-link-arg-bins=-L{}", folder.display());
    }
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

/// A folder in which the linker finds the C libraries for a program that loads none when it starts: to load them takes a short recording
/// longer than to record. `None` where they are not installed; then it loads them.
fn static_libraries(folder: &Path) -> Option<PathBuf> {
    let found = |name: &str| {
        let told = Command::new("cc").arg(format!("-print-file-name={name}")).output().ok()?;
        let path = PathBuf::from(String::from_utf8(told.stdout).ok()?.trim());
        // What is not found is told as it was asked for.
        path.is_absolute().then(|| path.display().to_string())
    };
    fs::create_dir_all(folder).ok()?;
    // The compiler asks for these by names of shared ones, and for those before any others that lie elsewhere.
    for name in ["c", "m", "dl", "pthread", "rt", "util"] {
        let script = format!("INPUT ( {} )\n", found(&format!("lib{name}.a"))?);
        fs::write(folder.join(format!("lib{name}.a")), script).ok()?;
    }
    let unwinder = ["libgcc_eh.a", "libgcc.a", "libc.a"].map(found);
    let unwinder = unwinder.into_iter().collect::<Option<Vec<_>>>()?.join(" ");
    fs::write(folder.join("libgcc_s.a"), format!("GROUP ( {unwinder} )\n")).ok()?;
    Some(folder.to_owned())
}
