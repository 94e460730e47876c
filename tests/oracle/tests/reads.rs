//! Oracle: what a program reads of files is in the recording as it was read, whatever becomes of the files, and however it is read.
#![expect(clippy::unwrap_used, reason = "a test says what failed")]

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{Seek, SeekFrom, Write};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::Output;
use std::time::{Duration, Instant};

use backstory_oracle::command::{backstory, recorder};
use backstory_oracle::programs;
use trace::{Data, Fact, Trace};

/// Reads the files of a folder in every way there is and prints sums of what it got. Where it says so, it waits for another
/// program, which is not recorded, to change the files.
const READER: &str = r#"
    #define _GNU_SOURCE
    #include <errno.h>
    #include <fcntl.h>
    #include <stdio.h>
    #include <stdlib.h>
    #include <string.h>
    #include <sys/mman.h>
    #include <sys/stat.h>
    #include <sys/uio.h>
    #include <sys/wait.h>
    #include <unistd.h>
    static char buffer[3 << 20];
    static unsigned long sum(const char *what, const char *bytes, long len) {
        unsigned long s = len, word;
        for (long i = 0; i + 8 <= len; i += 8) { memcpy(&word, bytes + i, 8); s = (s ^ word) * 0x9e3779b97f4a7c15; }
        for (long i = len & ~7; i < len; i++) s = s * 31 + bytes[i];
        if (what) { printf("%s %ld %016lx\n", what, len, s); fflush(stdout); }
        return s;
    }
    static void whole(const char *what, int fd, long step) {
        unsigned long s = 0, len = 0;
        long n;
        lseek(fd, 0, SEEK_SET);
        while ((n = read(fd, buffer, step)) > 0) { s = s * 3 + sum(0, buffer, n); len += n; }
        printf("%s %ld %016lx\n", what, len, s);
        fflush(stdout);
    }
    static void meet(const char *name) {
        char path[64];
        snprintf(path, sizeof path, "ready-%s", name);
        mkdir(path, 0700);
        snprintf(path, sizeof path, "done-%s", name);
        while (access(path, F_OK)) usleep(2000);
    }
    int main(int argc, char **argv) {
        int fd = open("a", O_RDONLY);
        if (argc > 1) { whole("inherited and executed", 3, 70000); return 0; }
        whole("read", fd, 65536);
        whole("read again in other steps", fd, 100001);
        sum("pread", buffer, pread(fd, buffer, 1500000, 700001));
        struct iovec v[3] = {{buffer, 100}, {buffer + 200, 900000}, {buffer + 1000000, 300000}};
        memset(buffer, 0, sizeof buffer);
        lseek(fd, 400000, SEEK_SET);
        printf("%ld\n", readv(fd, v, 3));
        sum("readv", buffer, 1300000);
        printf("%ld\n", preadv(fd, v, 3, 1000001));
        sum("preadv", buffer, 1300000);
        lseek(fd, 5000, SEEK_SET);
        printf("%ld\n", preadv2(fd, v, 3, -1, 0));
        sum("preadv2", buffer, 1300000);
        int other = dup(fd);
        lseek(fd, 123456, SEEK_SET);
        sum("dup", buffer, read(other, buffer, 500000));
        printf("buffer %p\n", buffer);
        fflush(stdout);
        if (!fork()) { sum("inherited", buffer, read(fd, buffer, 600000)); exit(0); }
        wait(0);
        if (!fork()) { execl("/proc/self/exe", "reader", "again", (char *)0); exit(1); }
        wait(0);
        char *mapped = mmap(0, 1 << 20, PROT_READ, MAP_PRIVATE, fd, 4096);
        memcpy(buffer, mapped, 1 << 20);
        sum("mapped", buffer, 1 << 20);
        meet("in-place");
        whole("changed in place", fd, 65536);
        sum("pread", buffer, pread(fd, buffer, 1500000, 700001));
        meet("cut");
        whole("cut", fd, 65536);
        meet("replaced");
        whole("the old one", fd, 65536);
        other = open("a", O_RDONLY);
        whole("the new one", other, 65536);
        meet("unlinked");
        whole("unlinked", other, 50000);
        int sparse = open("sparse", O_RDONLY);
        for (long at = 0; at < 5l << 30; at += 1l << 29) sum("sparse", buffer, pread(sparse, buffer, 1 << 20, at + 12345));
        puts("ok");
        return 0;
    }"#;

const LEN: usize = 2_600_000;

fn noise(seed: u64, len: usize) -> Vec<u8> {
    let mut state = seed;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 56) as u8
    };
    (0..len).map(|_| next()).collect()
}

fn reader(scratch: &Path) -> PathBuf {
    let source = scratch.join("reader.c");
    fs::write(&source, READER).unwrap();
    programs::build_file(&source, scratch)
}

fn prepare(folder: &Path) {
    fs::create_dir(folder).unwrap();
    fs::write(folder.join("a"), noise(1, LEN)).unwrap();
    fs::write(folder.join("b"), noise(2, LEN / 2)).unwrap();
    let sparse = File::create(folder.join("sparse")).unwrap();
    sparse.set_len(5 << 30).unwrap();
    for at in [20_000, 1 << 30, (5 << 30) - 100] {
        sparse.write_all_at(b"not a hole", at).unwrap();
    }
}

/// Changes the files when the reader has come that far.
fn change(folder: &Path) {
    let file = || File::options().write(true).open(folder.join("a")).unwrap();
    let steps: [(&str, &dyn Fn()); 4] = [
        ("in-place", &|| file().write_all_at(&noise(3, 300_000), 1_000_100).unwrap()),
        ("cut", &|| {
            file().set_len(1_200_000).unwrap();
            let mut file = file();
            file.seek(SeekFrom::End(0)).unwrap();
            file.write_all(&noise(4, 500_000)).unwrap();
        }),
        ("replaced", &|| fs::rename(folder.join("b"), folder.join("a")).unwrap()),
        ("unlinked", &|| fs::remove_file(folder.join("a")).unwrap()),
    ];
    let until = Instant::now() + Duration::from_secs(120);
    for (name, step) in steps {
        while !folder.join(format!("ready-{name}")).exists() {
            assert!(Instant::now() < until, "the reader never came to {name}");
            std::thread::yield_now();
        }
        step();
        fs::create_dir(folder.join(format!("done-{name}"))).unwrap();
    }
}

/// Records the reader while its files are changed, into `dir`.
fn recorded(scratch: &Path, name: &str, root: &Path) -> (PathBuf, Output) {
    let (program, dir, folder) = (reader(scratch), scratch.join(name), scratch.join("files"));
    let _ = fs::remove_dir_all(&folder);
    prepare(&folder);
    let output = std::thread::scope(|scope| {
        scope.spawn(|| change(&folder));
        recorder(&dir, &[program]).current_dir(&folder).env("BACKSTORY_TRACE_DIR", root).output().unwrap()
    });
    assert!(output.stdout.ends_with(b"ok\n"), "{output:?}");
    (dir, output)
}

fn expect_whole(dir: &Path, recorded: &Output) {
    let trace = Trace::open(dir).unwrap();
    assert_eq!(trace::check(&trace), []);
    for _ in 0..2 {
        let replayed = backstory(["replay"]).arg(dir).output().unwrap();
        let [got, expected] = [&replayed, recorded].map(|output| String::from_utf8_lossy(&output.stdout));
        assert_eq!(got, expected, "{}", String::from_utf8_lossy(&replayed.stderr));
    }
}

#[test]
fn whatever_becomes_of_files_what_was_read_is_recorded() {
    let scratch = tempfile::tempdir().unwrap();
    let root = scratch.path().join("root");
    let (dir, output) = recorded(scratch.path(), "first", &root);
    fs::remove_dir_all(scratch.path().join("files")).unwrap();
    expect_whole(&dir, &output);

    let trace = Trace::open(&dir).unwrap();
    let mut kept = BTreeSet::new();
    for item in trace.events() {
        let (_, event) = item.unwrap();
        if let Fact::Syscall(info) | Fact::SyscallLeave(info) = event.fact
            && event.writes.iter().any(|write| matches!(write.data, Data::Pieces(_)))
        {
            kept.insert(info.nr);
        }
    }
    // read, pread64, readv, preadv, preadv2
    assert_eq!(Vec::from_iter(kept), [0, 17, 19, 295, 327]);
    // What was read more than once is kept once; of the long file, ten parts of a mebibyte; a changed part takes what was read with it.
    let bytes: u64 = trace.pieces().iter().map(|piece| u64::from(piece.len)).sum();
    let most = 2 * LEN as u64 + LEN as u64 / 2 + (12 << 20) + 4_000_000;
    assert!(bytes < most, "{bytes} bytes are kept");
    assert!(trace.stream_bytes() < 2_500_000, "{} bytes of streams", trace.stream_bytes());

    // Moved, and without the recording it shares pieces with.
    let (second, output) = recorded(scratch.path(), "second", &root);
    let shared = |dir: &Path| {
        let files = fs::read_dir(dir.join("files")).unwrap();
        files.filter(|file| file.as_ref().unwrap().metadata().unwrap().nlink() > 2).count()
    };
    assert!(shared(&second) > 4, "nothing is shared");
    assert!(backstory(["rm"]).arg(&dir).status().unwrap().success());
    let moved = scratch.path().join("moved");
    fs::rename(&second, &moved).unwrap();
    fs::remove_dir_all(&root).unwrap();
    expect_whole(&moved, &output);
}

/// Where the reader's buffer is, printed when it holds what `dup`'s read put there.
fn buffer(output: &Output) -> u64 {
    let text = String::from_utf8_lossy(&output.stdout);
    let at = text.lines().find_map(|line| line.strip_prefix("buffer 0x")).unwrap();
    u64::from_str_radix(at, 16).unwrap()
}

#[test]
fn why_names_the_file_and_the_offset_of_what_was_read() {
    let scratch = tempfile::tempdir().unwrap();
    let (dir, output) = recorded(scratch.path(), "trace", &scratch.path().join("root"));
    let indexed = backstory(["index", "-q"]).arg(&dir).output().unwrap();
    assert!(indexed.status.success(), "{}", String::from_utf8_lossy(&indexed.stderr));
    let asked = |args: &[&str]| {
        let output = backstory(&args[..1]).arg("-t").arg(&dir).args(&args[1..]).output().unwrap();
        assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    };
    let moment = asked(&["query", "SELECT moment FROM syscalls WHERE path = 'a' AND offset = 123456"]);
    let after = moment.lines().last().unwrap().trim().parse::<u64>().unwrap() + 1;
    let address = format!("{:#x}", buffer(&output) + 300_000);
    let text = asked(&["why", "--at", &format!("@{after}"), &address]);
    let bytes = *noise(1, LEN)[423_456..].first_chunk().unwrap();
    for part in [
        " = 500000 <a> offset 123456",
        "the first byte comes from file offset 423456",
        &format!("({:#x})", u64::from_le_bytes(bytes)),
    ] {
        assert!(text.contains(part), "{part} is not in {text}");
    }
}

#[test]
fn what_is_read_while_others_run_is_kept_too() {
    let scratch = tempfile::tempdir().unwrap();
    let source = scratch.path().join("threads.c");
    fs::write(
        &source,
        "// BUILD: -pthread
        #include <fcntl.h>
        #include <pthread.h>
        #include <stdio.h>
        #include <unistd.h>
        static unsigned char buffers[4][70000];
        static unsigned long sums[4];
        static void *reads(void *which) {
            long at = (long)which;
            int fd = open(\"a\", O_RDONLY);
            for (long n; (n = read(fd, buffers[at], 60000 + at)) > 0;)
                for (long i = 0; i < n; i += 61) sums[at] = sums[at] * 31 + buffers[at][i];
            return 0;
        }
        int main(void) {
            pthread_t threads[4];
            for (long i = 0; i < 4; i++) pthread_create(&threads[i], 0, reads, (void *)i);
            for (long i = 0; i < 4; i++) pthread_join(threads[i], 0);
            for (int i = 0; i < 4; i++) printf(\"%lu\\n\", sums[i]);
        }",
    )
    .unwrap();
    let program = programs::build_file(&source, scratch.path());
    fs::write(scratch.path().join("a"), noise(7, LEN)).unwrap();
    let dir = scratch.path().join("trace");
    let output = recorder(&dir, &[program]).current_dir(scratch.path()).output().unwrap();
    assert_eq!((output.status.signal(), output.status.code()), (None, Some(0)));
    fs::remove_file(scratch.path().join("a")).unwrap();
    expect_whole(&dir, &output);
    let trace = Trace::open(&dir).unwrap();
    let bytes: u64 = trace.pieces().iter().map(|piece| u64::from(piece.len)).sum();
    assert!((LEN as u64 / 2..2 * LEN as u64).contains(&bytes), "{bytes} bytes are kept of one file");
}

#[test]
fn little_that_is_read_is_packed_and_what_the_program_wrote_too() {
    let scratch = tempfile::tempdir().unwrap();
    let dir = scratch.path().join("trace");
    fs::write(scratch.path().join("small"), noise(8, 100_000)).unwrap();
    let script = "cat small small > large; cat large large large large > larger; cat larger | wc -c";
    let output = {
        let mut command = recorder(&dir, &["sh", "-c", script]);
        command.current_dir(scratch.path()).output().unwrap()
    };
    assert_eq!(String::from_utf8_lossy(&output.stdout).trim(), "800000");
    let trace = Trace::open(&dir).unwrap();
    assert_eq!(trace.pieces(), []);
    expect_whole(&dir, &output);
}
