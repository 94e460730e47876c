//! From the words typed to a program that can be executed, as `execvp` would find it. Starts nothing.

use std::ffi::{CString, OsStr, OsString};
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use crate::api::RecordError;

/// A command that was found.
#[derive(Debug)]
pub(crate) struct Prepared {
    /// The file to execute.
    pub(crate) path: CString,
    /// Argument vector.
    pub(crate) argv: Vec<CString>,
    /// Environment, `NAME=value` each.
    pub(crate) envp: Vec<CString>,
}

/// Finds the command and checks that it is a program of this machine's kind.
pub(crate) fn prepare(command: &[OsString]) -> Result<Prepared, RecordError> {
    let name = command.first().ok_or(RecordError::NoCommand)?;
    let path = find(name)?;
    check_program(&path)?;
    let argv = command.iter().map(|word| c_string(word.as_bytes())).collect::<Result<_, _>>()?;
    let envp = std::env::vars_os()
        .map(|(name, value)| c_string(&[name.as_bytes(), b"=", value.as_bytes()].concat()))
        .collect::<Result<_, _>>()?;
    Ok(Prepared { path: c_string(path.as_os_str().as_bytes())?, argv, envp })
}

fn c_string(bytes: &[u8]) -> Result<CString, RecordError> {
    CString::new(bytes).map_err(|error| RecordError::System {
        what: "an argument holds a NUL byte",
        source: io::Error::new(io::ErrorKind::InvalidInput, error),
    })
}

fn find(name: &OsStr) -> Result<PathBuf, RecordError> {
    let not_found = || RecordError::NotFound { name: name.to_string_lossy().into_owned() };
    if name.is_empty() {
        return Err(not_found());
    }
    if name.as_bytes().contains(&b'/') {
        let path = PathBuf::from(name);
        return match executable(&path) {
            Ok(()) => Ok(path),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Err(not_found()),
            Err(source) => Err(not_executable(&path, source)),
        };
    }
    let search = std::env::var_os("PATH").unwrap_or_else(|| OsString::from_vec(b"/bin:/usr/bin".to_vec()));
    let mut denied = None;
    for dir in std::env::split_paths(&search) {
        let path = if dir.as_os_str().is_empty() { Path::new(".").join(name) } else { dir.join(name) };
        match executable(&path) {
            Ok(()) => return Ok(path),
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                denied.get_or_insert((path, error));
            }
            Err(_) => {}
        }
    }
    match denied {
        Some((path, source)) => Err(not_executable(&path, source)),
        None => Err(not_found()),
    }
}

fn not_executable(path: &Path, source: io::Error) -> RecordError {
    RecordError::NotExecutable { path: path.display().to_string(), source }
}

fn executable(path: &Path) -> io::Result<()> {
    let meta = std::fs::metadata(path)?;
    if meta.is_dir() {
        return Err(io::Error::from_raw_os_error(libc::EISDIR));
    }
    let for_anyone = meta.permissions().mode() & 0o111 != 0;
    if !meta.is_file() || !for_anyone {
        return Err(io::Error::from_raw_os_error(libc::EACCES));
    }
    Ok(())
}

/// Refuses ELF files of another class or machine. Scripts and what cannot be read pass: the kernel decides.
fn check_program(path: &Path) -> Result<(), RecordError> {
    let mut head = [0; 20];
    let read = File::open(path).and_then(|mut file| file.read_exact(&mut head));
    if read.is_err() || head[..4] != *b"\x7fELF" {
        return Ok(());
    }
    match foreign(&head) {
        None => Ok(()),
        Some(what) => Err(RecordError::Foreign { path: path.display().to_string(), what }),
    }
}

/// What an ELF header stands for, unless it is a 64-bit x86 program.
fn foreign(head: &[u8; 20]) -> Option<String> {
    const CLASS_64: u8 = 2;
    const LITTLE_ENDIAN: u8 = 1;
    const EM_X86_64: u16 = 62;
    let machine = u16::from_le_bytes([head[18], head[19]]);
    if head[5] != LITTLE_ENDIAN {
        return Some("a big-endian program".into());
    }
    match (head[4], machine) {
        (CLASS_64, EM_X86_64) => None,
        (1, EM_X86_64) => Some("an x32 program".into()),
        (1, 3) => Some("a 32-bit x86 program".into()),
        (1, other) => Some(format!("a 32-bit program for machine {other}")),
        (_, 183) => Some("a program for AArch64".into()),
        (_, other) => Some(format!("a program for machine {other}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn foreign_programs_are_named() {
        let mut head = [0; 20];
        head[..6].copy_from_slice(b"\x7fELF\x02\x01");
        head[18] = 62;
        assert_eq!(foreign(&head), None);
        head[18] = 183;
        assert_eq!(foreign(&head).as_deref(), Some("a program for AArch64"));
        head[4] = 1;
        head[18] = 3;
        assert_eq!(foreign(&head).as_deref(), Some("a 32-bit x86 program"));
    }

    #[test]
    fn commands_are_found_as_shells_find_them() {
        assert!(prepare(&["true".into()]).unwrap().path.to_str().unwrap().ends_with("/true"));
        let class = |name: &str| prepare(&[name.into()]).unwrap_err().class();
        assert_eq!(class("surely-no-such-command"), crate::ErrorClass::NotFound);
        assert_eq!(class("/surely/no/such"), crate::ErrorClass::NotFound);
        assert_eq!(class("/etc/passwd"), crate::ErrorClass::NotExecutable);
        assert_eq!(class("/tmp"), crate::ErrorClass::NotExecutable);
        assert!(matches!(prepare(&[]), Err(RecordError::NoCommand)));
    }
}
