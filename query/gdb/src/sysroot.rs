//! A folder of links that looks to gdb like the recorded machine's files: the kept ones, at the paths they had.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::symlink;
use std::path::{Component, Path, PathBuf};

use guest::FileId;
use object::read::ReadCache;
use object::read::elf::{Dyn, FileHeader};
use trace::Trace;

type Elf = object::elf::FileHeader64<object::LittleEndian>;

/// Top-level folders that merged systems link into `/usr`.
const MERGED: [&str; 5] = ["lib", "lib64", "lib32", "bin", "sbin"];

/// The two folders of a sysroot: what `set sysroot` and `set solib-search-path` are given.
#[derive(Debug)]
pub struct Sysroot {
    /// Kept files at their paths.
    pub root: PathBuf,
    /// Kept libraries by file name and by the name they go by (`DT_SONAME`).
    pub names: PathBuf,
}

impl Sysroot {
    /// Where [`make_sysroot`] makes its root.
    pub fn root_below(folder: &Path) -> PathBuf {
        folder.join("root")
    }
}

/// Makes the links below `folder`. Where a path had several contents in turn, the last one kept counts.
pub fn make_sysroot(trace: &Trace, folder: &Path) -> io::Result<Sysroot> {
    let sysroot = Sysroot { root: Sysroot::root_below(folder), names: folder.join("names") };
    fs::create_dir_all(&sysroot.root)?;
    fs::create_dir_all(&sysroot.names)?;
    let merged = |name: &&&str| !trace.files().iter().any(|file| file.path.starts_with(&format!("/{name}/")));
    for name in MERGED.iter().filter(merged) {
        symlink(format!("usr/{name}"), sysroot.root.join(name))?;
    }
    for (i, file) in trace.files().iter().enumerate() {
        let Ok(kept) = trace.file_path(FileId(i as u32)) else { continue };
        let kept = fs::canonicalize(&kept).unwrap_or(kept);
        let path = sysroot.root.join(inside(&file.path));
        link(&kept, &path)?;
        let Some(name) = path.file_name() else { continue };
        link(&kept, &sysroot.names.join(name))?;
        if let Some(soname) = soname(&kept) {
            link(&kept, &sysroot.names.join(&soname))?;
            // The interpreter is named by a path that is itself a link on most systems.
            if soname.starts_with("ld-") {
                link(&kept, &sysroot.root.join("lib64").join(soname))?;
            }
        }
    }
    Ok(sysroot)
}

/// Where the file that was at `path` is in a sysroot whose folder is `root`.
pub fn path_in(root: &Path, path: &str) -> PathBuf {
    root.join(inside(path))
}

/// A recorded path without its root and without steps upwards.
fn inside(path: &str) -> PathBuf {
    let path = Path::new(path.strip_suffix(" (deleted)").unwrap_or(path));
    path.components().filter(|part| matches!(part, Component::Normal(_))).collect()
}

/// Makes `at` a link to `kept`: a hard one where that can be, for gdb names some files by what symbolic links lead to. A file where a folder is needed, or the other way round, is left out.
fn link(kept: &Path, at: &Path) -> io::Result<()> {
    if let Some(folder) = at.parent() {
        make_folder(folder)?;
    }
    let _ = fs::remove_file(at);
    match fs::hard_link(kept, at).or_else(|_| symlink(kept, at)) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        other => other,
    }
}

/// As `create_dir_all`, but also makes what a dangling link points at.
fn make_folder(folder: &Path) -> io::Result<()> {
    if folder.is_dir() {
        return Ok(());
    }
    if let Some(parent) = folder.parent() {
        make_folder(parent)?;
    }
    match fs::read_link(folder) {
        Ok(target) => make_folder(&folder.parent().unwrap_or(Path::new("/")).join(target)),
        Err(_) => fs::create_dir(folder),
    }
}

/// The name a library goes by. `None` for what is no library, or is damaged.
fn soname(path: &Path) -> Option<String> {
    let cache = ReadCache::new(File::open(path).ok()?);
    let header = Elf::parse(&cache).ok()?;
    let endian = header.endian().ok()?;
    let sections = header.sections(endian, &cache).ok()?;
    let (entries, strings) = sections.dynamic(endian, &cache).ok()??;
    let strings = sections.strings(endian, &cache, strings).ok()?;
    let entry = entries.iter().find(|entry| entry.tag(endian) == object::elf::DT_SONAME)?;
    let name = entry.string(endian, strings).ok()?;
    let name = std::str::from_utf8(name).ok()?;
    (!name.is_empty() && !name.contains('/')).then(|| name.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn libraries_say_what_they_are_called() {
        let libc = fs::read_to_string("/proc/self/maps").unwrap();
        let path =
            libc.lines().filter_map(|line| line.split_whitespace().nth(5)).find(|p| p.contains("libc.so"));
        if let Some(path) = path {
            assert_eq!(soname(Path::new(path)).as_deref(), Some("libc.so.6"));
        }
        assert_eq!(soname(Path::new("/proc/self/maps")), None);
    }

    #[test]
    fn links_stay_inside_and_go_through_merged_folders() {
        assert_eq!(inside("/usr/../../etc/passwd"), Path::new("usr/etc/passwd"));
        assert_eq!(inside("/tmp/a (deleted)"), Path::new("tmp/a"));
        let scratch = tempfile::tempdir().unwrap();
        symlink("usr/lib64", scratch.path().join("lib64")).unwrap();
        link(Path::new("/proc/self/exe"), &scratch.path().join("lib64/ld.so")).unwrap();
        assert!(fs::symlink_metadata(scratch.path().join("usr/lib64/ld.so")).is_ok());
    }
}
