//! Binaries of this machine: their code, and the `syscall` instructions in it.

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use iced_x86::{Code, Decoder, DecoderOptions};
use object::{
    Object, ObjectSection, ObjectSegment, ObjectSymbol, RelocationTarget, SectionKind, SegmentFlags,
};
use patch::{CodeAddr, Text};

/// The code of a binary.
pub(crate) struct Binary {
    pub(crate) name: String,
    /// As linked: where the text begins, and what is known of it.
    pub(crate) base: u64,
    pub(crate) text: Text,
    pub(crate) bytes: Vec<u8>,
    pub(crate) entries: Vec<u64>,
    pub(crate) sites: Vec<u64>,
}

impl Binary {
    /// Reads the first executable segment of a file.
    pub(crate) fn read(name: &str, path: &Path) -> Self {
        let file = fs::read(path).unwrap();
        Self::parse(name, &file)
    }

    /// The shared object that the kernel maps.
    fn vdso() -> Option<Self> {
        let maps = fs::read_to_string("/proc/self/maps").unwrap();
        let line = maps.lines().find(|line| line.ends_with("[vdso]"))?;
        let (start, end) = line.split_whitespace().next()?.split_once('-')?;
        let number = |text| u64::from_str_radix(text, 16).unwrap();
        let mut bytes = vec![0; (number(end) - number(start)) as usize];
        fs::File::open("/proc/self/mem").unwrap().read_exact_at(&mut bytes, number(start)).unwrap();
        Some(Self::parse("vdso", &bytes))
    }

    fn parse(name: &str, file: &[u8]) -> Self {
        let elf = object::File::parse(file).unwrap();
        let is_code = |flags| matches!(flags, SegmentFlags::Elf { p_flags, .. } if p_flags.0 & object::elf::PF_X.0 != 0);
        let segment = elf.segments().find(|segment| is_code(segment.flags())).unwrap();
        let bytes = segment.data().unwrap().to_vec();
        let base = segment.address();
        let range = base..base + bytes.len() as u64;
        let mut entries: Vec<u64> = elf.symbols().chain(elf.dynamic_symbols()).map(|s| s.address()).collect();
        let relocations = elf.dynamic_relocations().into_iter().flatten();
        entries.extend(relocations.filter_map(|(_, relocation)| match relocation.target() {
            RelocationTarget::Absolute => Some(relocation.addend() as u64),
            _ => None,
        }));
        entries.retain(|at| range.contains(at));
        entries.sort_unstable();
        entries.dedup();
        let mut sites = Vec::new();
        for section in
            elf.sections().filter(|s| s.kind() == SectionKind::Text && range.contains(&s.address()))
        {
            find_sites(section.address(), section.data().unwrap(), &entries, &mut sites);
        }
        Self { name: name.to_owned(), base, text: Text::new(bytes.clone()), bytes, entries, sites }
    }

    /// What is known, mapped at `base`.
    pub(crate) fn entries_at(&self, base: u64) -> Vec<CodeAddr> {
        self.entries.iter().map(|at| CodeAddr(at - self.base + base)).collect()
    }
}

/// Decodes a section in a row, anew at each symbol.
fn find_sites(base: u64, bytes: &[u8], symbols: &[u64], sites: &mut Vec<u64>) {
    let mut decoder = Decoder::with_ip(64, bytes, base, DecoderOptions::NONE);
    while decoder.can_decode() {
        let step = decoder.decode();
        let next_symbol = symbols.partition_point(|&at| at <= step.ip());
        if let Some(&symbol) = symbols.get(next_symbol)
            && symbol < step.next_ip()
        {
            decoder.set_position((symbol - base) as usize).unwrap();
            decoder.set_ip(symbol);
            continue;
        }
        if step.code() == Code::Syscall {
            sites.push(step.ip());
        }
    }
}

/// All binaries that are here. The C library always is.
pub(crate) fn all(scratch: &Path) -> Vec<Binary> {
    let mut found = vec![c_library()];
    for (name, path) in [
        ("ld.so", "/lib64/ld-linux-x86-64.so.2"),
        ("musl", "/lib/ld-musl-x86_64.so.1"),
        ("libasan", "/usr/lib/x86_64-linux-gnu/libasan.so.8"),
        ("libtsan", "/usr/lib/x86_64-linux-gnu/libtsan.so.2"),
        ("go tool", "/usr/lib/go/bin/go"),
    ] {
        let path = Path::new(path);
        if path.exists() {
            found.push(Binary::read(name, path));
        } else {
            eprintln!("skipped: no {}", path.display());
        }
    }
    found.extend(Binary::vdso());
    found.push(Binary::read("this test", &std::env::current_exe().unwrap()));
    found.extend(cargo().map(|path| Binary::read("cargo", &path)));
    found.extend(built(scratch));
    found
}

/// The C library that this test itself has mapped.
pub(crate) fn c_library() -> Binary {
    let maps = fs::read_to_string("/proc/self/maps").unwrap();
    let path = maps
        .lines()
        .filter_map(|line| line.split_whitespace().nth(5))
        .find(|p| p.contains("/libc.so"))
        .unwrap();
    Binary::read("glibc", Path::new(path))
}

/// The real one: behind the name there may be a launcher.
fn cargo() -> Option<PathBuf> {
    let out = Command::new("rustc").args(["--print", "sysroot"]).output().ok()?;
    let path = Path::new(String::from_utf8(out.stdout).ok()?.trim()).join("bin/cargo");
    path.exists().then_some(path)
}

/// What the compilers that are here make of a small program.
pub(crate) fn built(scratch: &Path) -> Vec<Binary> {
    let c = scratch.join("small.c");
    fs::write(&c, "#include <stdio.h>\nint main(void) { puts(\"small\"); return 0; }\n").unwrap();
    let go = scratch.join("small.go");
    fs::write(&go, "package main\nimport \"os\"\nfunc main() { os.Stdout.WriteString(\"small\\n\") }\n")
        .unwrap();
    let source = |path: &Path| path.to_str().unwrap().to_owned();
    let mut found = Vec::new();
    for (name, compiler, args) in [
        ("static glibc", "gcc", vec!["-O2".into(), "-static".into(), source(&c), "-o".into()]),
        ("static musl", "musl-gcc", vec!["-O2".into(), "-static".into(), source(&c), "-o".into()]),
        ("go program", "go", vec!["build".into(), "-o".into()]),
    ] {
        let out = scratch.join(name.replace(' ', "-"));
        let mut command = Command::new(compiler);
        command.args(&args).arg(&out).current_dir(scratch);
        if compiler == "go" {
            command
                .arg(&go)
                .env("GOCACHE", scratch.join("cache"))
                .env("CGO_ENABLED", "0")
                .env("GO111MODULE", "off");
        }
        match command.output() {
            Ok(done) if done.status.success() => found.push(Binary::read(name, &out)),
            Ok(done) => eprintln!("skipped: {compiler}: {}", String::from_utf8_lossy(&done.stderr)),
            Err(error) => eprintln!("skipped: {compiler}: {error}"),
        }
    }
    found
}
