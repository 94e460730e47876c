//! Symbols of programs that the compiler of this machine builds, mapped as the kernel would map them.
#![expect(clippy::unwrap_used, reason = "what fails here fails the test")]

use std::path::{Path, PathBuf};
use std::process::Command;

use backstory_symbols::{
    self as symbols, Expression, KeptFile, Layout, MappedFile, Mapping, ResolveError, Symbols,
};
use guest::{FileId, GuestAddr, GuestRange, Moment, Prot, SpaceId};
use object::{Object, ObjectSegment, ObjectSymbol, SegmentFlags};

const SPACE: SpaceId = SpaceId(0);
const NOW: Moment = Moment(10);
const BIAS: u64 = 0x5555_5555_4000;

/// A built program with its symbols, and the folder it lies in.
struct Program {
    folder: tempfile::TempDir,
    symbols: Symbols,
    bytes: Vec<u8>,
    bias: u64,
}

/// Builds `source` with `compiler`; `None` (a named skip) where there is none.
fn build(compiler: &str, extension: &str, source: &str, options: &[&str]) -> Option<Program> {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join(format!("prog.{extension}"));
    std::fs::write(&file, source).unwrap();
    let output = folder.path().join("prog");
    let mut command = Command::new(compiler);
    command.arg("-g").args(options).arg(&file).arg("-o").arg(&output).env("TMPDIR", folder.path());
    match command.status() {
        Ok(status) => assert!(status.success(), "{compiler} failed"),
        Err(error) => {
            println!("skipped: no {compiler} here ({error})");
            return None;
        }
    }
    let bias = if options.contains(&"-no-pie") { 0 } else { BIAS };
    let bytes = std::fs::read(&output).unwrap();
    let layout = Layout::new(mappings(&bytes, bias));
    let kept = KeptFile { stored: output, original: PathBuf::from("/home/user/prog") };
    Some(Program { folder, symbols: Symbols::new(vec![kept], layout), bytes, bias })
}

fn mappings(bytes: &[u8], bias: u64) -> Vec<Mapping> {
    let file = object::File::parse(bytes).unwrap();
    let segments = file.segments().map(|segment| {
        let SegmentFlags::Elf { p_flags, .. } = segment.flags() else { panic!("not ELF") };
        let flags = p_flags.0;
        let (offset, size) = segment.file_range();
        let start = GuestAddr(segment.address() + bias).page();
        Mapping {
            space: SPACE,
            range: GuestRange { start, end: GuestAddr(segment.address() + bias + size).page_up() },
            prot: Prot { read: flags & 4 != 0, write: flags & 2 != 0, exec: flags & 1 != 0 },
            file: Some(MappedFile { file: FileId(0), offset: offset & !0xfff }),
            name: "/home/user/prog".to_owned(),
            from: Moment(5),
            until: Moment(u64::MAX),
        }
    });
    segments.collect()
}

impl Program {
    /// The run-time address of a symbol, from the symbol table as `object` reads it.
    fn address(&self, name: &str) -> GuestAddr {
        let file = object::File::parse(&*self.bytes).unwrap();
        let symbol = file.symbols().find(|s| s.name() == Ok(name)).expect(name);
        GuestAddr(symbol.address() + self.bias)
    }

    fn resolve(&self, text: &str) -> Result<(GuestAddr, u64), ResolveError> {
        let expression: Expression = text.parse().unwrap();
        // Every pointer holds its own address and 0x1000.
        let mut pointer = |addr: GuestAddr| Some(GuestAddr(addr.0 + 0x1000));
        self.symbols.resolve(SPACE, NOW, &expression, &mut pointer).map(|r| (r.addr, r.size))
    }

    /// Some pc in the function called `name` whose frames satisfy `wanted`.
    fn find_pc(&self, name: &str, wanted: impl Fn(&[symbols::Frame]) -> bool) -> Option<GuestAddr> {
        let range = self.symbols.function_range(SPACE, NOW, self.address(name))?;
        let pcs = (range.start.0..range.end.0).map(GuestAddr);
        pcs.into_iter().find(|&pc| wanted(&self.symbols.frames(SPACE, NOW, pc)))
    }
}

const C_PROGRAM: &str = r#"#include <string.h>
static struct { long canvas[64]; void (*draw)(void); } ops;
int counter = 3;
static char *target; __thread int mine;
static inline __attribute__((always_inline)) void store(int i, long v) {
  ops.canvas[i] = v; /* the store */
}
__attribute__((noinline)) void blit(int i) { store(i, 7); counter++; }
__attribute__((noinline)) void copy(const char *s, size_t n) {
  memcpy(target, s, n); /* the tail call */
}
int main(int argc, char **argv) { static int calls; calls++; mine = 1; target = (char *)&ops; blit(argc); copy(argv[0], argc); return calls; }
"#;

const SPLIT_PROGRAM: &str = "struct pt { int x; short y; char name[8]; } where = {3, 4, \"abc\"};
typedef struct pt pair[2]; pair both; static double ratio;
int main(void) { where.y = 5; both[1].y = 6; ratio = 2.5; return 0; }
";

/// Types that units leave to files of their own: beside the object, in a package, of another build, gone.
#[test]
fn types_in_split_debug_information() {
    for version in ["-gdwarf-4", "-gdwarf-5"] {
        let Some(mut program) = build("gcc", "c", SPLIT_PROGRAM, &["-gsplit-dwarf", version]) else { return };
        let folder = program.folder.path().to_owned();
        let output = folder.join("prog");
        let again = |program: &mut Program| {
            let kept = KeptFile { stored: output.clone(), original: output.clone() };
            program.symbols = Symbols::new(vec![kept], Layout::new(mappings(&program.bytes, program.bias)));
        };
        let typed = |program: &Program| {
            let (start, both) = (program.address("where"), program.address("both"));
            assert_eq!(program.resolve("where.y"), Ok((GuestAddr(start.0 + 4), 2)), "{version}");
            assert_eq!(program.resolve("both[1].y"), Ok((GuestAddr(both.0 + 20), 2)), "{version}");
            assert_eq!(program.resolve("ratio"), Ok((program.address("ratio"), 8)), "{version}");
            let expression: Expression = "ratio".parse().unwrap();
            let found = program.symbols.resolve(SPACE, NOW, &expression, &mut |_| None).unwrap();
            let shown = found.value.and_then(|value| value.shown(&2.5_f64.to_le_bytes()));
            assert_eq!(shown.as_deref(), Some("2.5"), "{version}");
        };
        let untyped = |program: &Program| {
            let expected = Err(ResolveError::Untyped { name: "where".to_owned() });
            assert_eq!(program.resolve("where.y"), expected, "{version}");
            assert_eq!(program.resolve("where"), Ok((program.address("where"), 16)), "{version}");
        };
        typed(&program);
        let split = std::fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path());
        let split: Vec<PathBuf> = split.filter(|path| path.extension().is_some_and(|e| e == "dwo")).collect();
        let [split] = &split[..] else { panic!("{split:?}") };
        let mut dwp = Command::new("dwp");
        dwp.arg(split).arg("-o").arg(folder.join("prog.dwp"));
        // It makes an empty one of newer debug information.
        let packed = version == "-gdwarf-4" && dwp.status().is_ok_and(|status| status.success());
        let mut other = std::fs::read(split).unwrap();
        std::fs::remove_file(split).unwrap();
        again(&mut program);
        if packed {
            typed(&program);
            std::fs::remove_file(folder.join("prog.dwp")).unwrap();
            again(&mut program);
        } else {
            println!("skipped: no package for {version}");
        }
        untyped(&program);
        // A file of that name which belongs to something else.
        let len = other.len();
        other.truncate(len / 2);
        std::fs::write(split, &other).unwrap();
        again(&mut program);
        untyped(&program);
        let changed = SPLIT_PROGRAM.replace("short y", "long long y");
        let Some(newer) = build("gcc", "c", &changed, &["-gsplit-dwarf", version]) else { return };
        let newer = newer.folder.path().join(split.file_name().unwrap());
        std::fs::copy(newer, split).unwrap();
        again(&mut program);
        untyped(&program);
    }
}

#[test]
fn c_functions_variables_lines_and_inlining() {
    for options in [&["-O2", "-fno-builtin-memcpy"][..], &["-O2", "-fno-builtin-memcpy", "-no-pie"]] {
        let Some(program) = build("gcc", "c", C_PROGRAM, options) else { return };
        let blit = program.address("blit");
        assert_eq!(program.symbols.name(SPACE, NOW, blit), "blit");
        assert_eq!(program.symbols.name(SPACE, NOW, GuestAddr(blit.0 + 1)), "blit+0x1");
        let main = program.symbols.line(SPACE, NOW, program.address("main")).unwrap();
        assert!(main.ends_with("prog.c:12"), "{main}");
        let store = program.find_pc("blit", |frames| frames.len() == 2 && frames[0].line == Some(6)).unwrap();
        let frames = program.symbols.frames(SPACE, NOW, store);
        assert_eq!(frames[0].function.as_deref(), Some("store"));
        assert!(frames[0].inlined && !frames[1].inlined);
        assert_eq!(frames[1].function.as_deref(), Some("blit"));
        assert_eq!(frames[1].line, Some(8));
        let file = frames[0].file.clone().unwrap();
        let text = program.symbols.source_line(&file, 6).unwrap();
        assert_eq!(text, "  ops.canvas[i] = v; /* the store */");
        let module = frames[1].module.clone().unwrap();
        assert_eq!(module.path, Path::new("/home/user/prog"));
        assert_eq!(module.offset, store.0 - program.bias);

        assert_eq!(program.resolve("ops").unwrap(), (program.address("ops"), 520));
        assert_eq!(program.resolve("ops+0x200").unwrap().0, program.address("ops").wrapping_add(0x200));
        assert_eq!(program.resolve("counter").unwrap(), (program.address("counter"), 4));
        assert_eq!(program.resolve("main").unwrap().0, program.address("main"));
        let calls = program.resolve("calls").unwrap();
        assert_eq!(calls.1, 4, "a static variable of a function is found without its number");
        let draw = program.address("ops").wrapping_add(0x200);
        assert_eq!(program.symbols.variable(SPACE, NOW, draw).as_deref(), Some("ops+0x200"));
        let error = program.resolve("mine").unwrap_err();
        assert!(matches!(error, ResolveError::ThreadLocal { .. }), "{error}");
        let error = program.resolve("count").unwrap_err().to_string();
        assert!(error.contains("no symbol `count`") && error.contains("counter"), "{error}");
        let error = program.resolve("s").unwrap_err().to_string();
        assert!(error.contains("local variable") && !error.contains("there are"), "{error}");
        let initial = program.symbols.file_bytes(SPACE, NOW, program.address("counter"), 4);
        assert_eq!(initial, Some(vec![3, 0, 0, 0]));
        drop(program.folder);
    }
}

#[test]
fn linkage_stubs_have_the_names_of_what_they_call() {
    let Some(program) = build("gcc", "c", C_PROGRAM, &["-O2", "-fno-builtin-memcpy"]) else { return };
    let file = object::File::parse(&*program.bytes).unwrap();
    let mut found = false;
    for section in object::Object::sections(&file) {
        let name = object::ObjectSection::name(&section).unwrap();
        if name.starts_with(".plt") {
            let start = object::ObjectSection::address(&section);
            let end = start + object::ObjectSection::size(&section);
            for at in (start..end).step_by(8) {
                let target = program.symbols.stub_target(SPACE, NOW, GuestAddr(at + program.bias));
                found |= target.as_deref() == Some("memcpy");
            }
        }
    }
    assert!(found, "a stub of memcpy");
}

#[test]
fn cxx_names_are_demangled_and_found() {
    const SOURCE: &str = "#include <vector>\n\
        namespace shop { struct Item { long id; }; struct Shop { static long total; void put(long id); }; }\n\
        long shop::Shop::total;\n\
        __attribute__((noinline)) void shop::Shop::put(long id) { total += id; }\n\
        int main() { shop::Shop s; s.put(3); return 0; }\n";
    let Some(program) = build("g++", "cc", SOURCE, &["-O0"]) else { return };
    let put = program.address("_ZN4shop4Shop3putEl");
    assert_eq!(program.symbols.name(SPACE, NOW, put), "shop::Shop::put(long)");
    assert_eq!(program.resolve("shop::Shop::put").unwrap().0, put);
    assert_eq!(program.resolve("shop::Shop::total").unwrap(), (program.address("_ZN4shop4Shop5totalE"), 8));
}

#[test]
fn debug_information_in_a_file_of_its_own_is_found_by_link() {
    let Some(program) = build("gcc", "c", C_PROGRAM, &["-O2", "-fno-builtin-memcpy"]) else { return };
    let folder = program.folder.path();
    let run = |args: &[&str]| {
        let status = Command::new("objcopy").args(args).current_dir(folder).status().expect("binutils");
        assert!(status.success());
    };
    let blit = program.address("blit");
    run(&["--only-keep-debug", "prog", "prog.debug"]);
    run(&["--strip-all", "--remove-section=.note.gnu.build-id", "prog", "stripped"]);
    run(&["--add-gnu-debuglink=prog.debug", "stripped"]);
    let kept = KeptFile { stored: folder.join("stripped"), original: folder.join("stripped") };
    let linked = Symbols::new(vec![kept], Layout::new(mappings(&program.bytes, program.bias)));
    assert_eq!(linked.name(SPACE, NOW, blit), "blit");
    assert_eq!(linked.frames(SPACE, NOW, blit).last().unwrap().line, Some(8));

    run(&["--strip-all", "--remove-section=.gnu_debuglink", "stripped"]);
    let kept = KeptFile { stored: folder.join("stripped"), original: "/bin/stripped".into() };
    let bare = Symbols::new(vec![kept], Layout::new(mappings(&program.bytes, program.bias)));
    let offset = blit.0 - program.bias;
    assert_eq!(bare.name(SPACE, NOW, blit), format!("stripped+{offset:#x}"));
    assert_eq!(bare.line(SPACE, NOW, blit), None);
}

#[test]
fn memory_without_a_file_has_no_names() {
    let symbols = Symbols::new(Vec::new(), Layout::default());
    assert_eq!(symbols.name(SPACE, NOW, GuestAddr(0x1234)), "0x1234");
    assert_eq!(symbols.frames(SPACE, NOW, GuestAddr(0x1234)).len(), 1);
    assert_eq!(symbols.line(SPACE, NOW, GuestAddr(0x1234)), None);
}

/// Resolves each of the names that an ambiguous one is said to mean; they must mean different places.
#[track_caller]
fn check_candidates(program: &Program, name: &str, expected: &[&str]) {
    let ResolveError::Ambiguous { candidates, .. } = program.resolve(name).unwrap_err() else {
        panic!("{name}")
    };
    assert_eq!(candidates, expected, "{name}");
    let mut places: Vec<_> = candidates.iter().map(|c| program.resolve(c).expect(c).0).collect();
    places.sort();
    places.dedup();
    assert_eq!(places.len(), expected.len(), "{name}");
}

#[test]
fn each_of_several_statics_of_one_name_can_be_named() {
    const A: &str = "static struct { int on, off; } state = {1, 1}; int fa(void) { static int calls; return ++calls + state.off++; }\n";
    const B: &str = "static struct { int on, off; } state = {2, 2}; int fa(void);\n\
        int fb(void) { static int calls; return ++calls + state.off++; }\n\
        int fc(void) { static int calls; return ++calls; }\n\
        int main(void) { return fa() + fb() + fc() == 0; }\n";
    let folder = tempfile::tempdir().unwrap();
    let a = folder.path().join("a.c");
    std::fs::write(&a, A).unwrap();
    let Some(program) = build("gcc", "c", B, &["-O0", a.to_str().unwrap()]) else { return };
    check_candidates(&program, "state", &["a.c:state", "prog.c:state"]);
    check_candidates(&program, "calls", &["fa::calls", "fb::calls", "fc::calls"]);
    let state = program.resolve("a.c:state").unwrap();
    for name in ["a.c::state", "'a.c'::state", "a.c:state.on", "src/a.c:state"] {
        assert_eq!(program.resolve(name).expect(name).0, state.0, "{name}");
    }
    assert_eq!(
        program.resolve("'prog.c'::state.off+4").unwrap().0,
        program.resolve("prog.c:state").unwrap().0.wrapping_add(8)
    );
    let ResolveError::Ambiguous { candidates, .. } = program.resolve("state.on").unwrap_err() else {
        panic!()
    };
    assert_eq!(candidates.len(), 2);
}

#[test]
fn names_with_abi_tags_are_found_without_them_and_with_them() {
    const SOURCE: &str = "#include <string>\n#include <list>\n\
        std::string g = \"init\"; std::list<std::string> lst;\n\
        namespace n { std::string h; struct S { static std::string cls; }; std::string S::cls; }\n\
        namespace shop { template <class T> struct Box { T it; int count; static int made; }; Box<std::string> box; \
        template <class T> int Box<T>::made = 2; }\n\
        static int f(int) { static int calls; return ++calls; } namespace { int hidden; }\n\
        int main() { g = \"abc\"; n::S::cls = g; return shop::box.count++ + f(shop::box.made++) + hidden++; }\n";
    let Some(program) = build("g++", "cc", SOURCE, &["-O0"]) else { return };
    let named = [
        ("g", "_Z1gB5cxx11"),
        ("g[abi:cxx11]", "_Z1gB5cxx11"),
        ("lst", "_Z3lstB5cxx11"),
        ("n::h", "_ZN1n1hB5cxx11E"),
        ("h", "_ZN1n1hB5cxx11E"),
        ("n::S::cls[abi:cxx11]", "_ZN1n1S3clsB5cxx11E"),
        ("cls", "_ZN1n1S3clsB5cxx11E"),
        ("f::calls", "_ZZL1fiE5calls"),
        ("calls", "_ZZL1fiE5calls"),
        ("hidden", "_ZN12_GLOBAL__N_16hiddenE"),
    ];
    for (name, raw) in named {
        assert_eq!(program.resolve(name).expect(name).0, program.address(raw), "{name}");
    }
    let count = program.address("_ZN4shop3boxB5cxx11E").wrapping_add(32);
    for name in ["shop::box.count", "box.count", "shop::box[abi:cxx11].count"] {
        assert_eq!(program.resolve(name).expect(name), (count, 4), "{name}");
    }
}

const TYPES: &str = r#"struct item { int id; long field; struct item *next; char name[3][5]; };
typedef struct item item_t;
static volatile item_t u[10]; item_t *p; void *nothing;
struct ops { union { int number; void (*draw)(void); }; unsigned low : 3, high : 20; const int *deep[2]; } ops;
int main(int argc, char **argv) { p = (item_t *)&u[argc]; ops.number = ops.high; return u[3].id + (nothing != 0); }
"#;

#[test]
fn parts_of_variables_are_found_by_type() {
    for options in [
        &["-O1"][..],
        &["-O1", "-gdwarf-4"],
        &["-O1", "-no-pie", "-gz"],
        &["-O1", "-gdwarf-4", "-fdebug-types-section"],
        &["-O1", "-gdwarf-5", "-fdebug-types-section"],
    ] {
        let Some(program) = build("gcc", "c", TYPES, options) else { return };
        let (u, p, ops) = (program.address("u"), program.address("p"), program.address("ops"));
        let check = |text: &str, base: GuestAddr, offset: u64, size: u64| {
            assert_eq!(program.resolve(text).unwrap(), (base.wrapping_add(offset), size), "{text}");
        };
        // An item is 40 bytes: 4, 4 unused, 8, 8, 15, 1 unused.
        check("u[7].field", u, 7 * 40 + 8, 8);
        check("u[2]", u, 80, 40);
        check("u[2].name", u, 80 + 24, 15);
        check("u[2].name[1]", u, 80 + 24 + 5, 5);
        check("u[2].name[1][4]+1", u, 80 + 24 + 10, 1);
        check("u->field", u, 8, 8);
        check("*u", u, 0, 40);
        check("ops.draw", ops, 0, 8);
        check("ops.number", ops, 0, 4);
        check("ops.low", ops, 8, 1);
        check("ops.high", ops, 8, 3);
        // The pointers hold their own addresses and 0x1000 each.
        check("*p", p, 0x1000, 40);
        check("p->next", p, 0x1010, 8);
        check("p[2].field", p, 0x1000 + 88, 8);
        check("p->next->id", p, 0x2010, 4);
        check("*ops.deep[1]", ops, 16 + 8 + 0x1000, 4);
        check("**ops.deep", ops, 16 + 0x1000, 4);
        for (text, error) in [
            (
                "u[10]",
                "`u` has 10 elements: there is none with index 10 (what lies behind it has an address: say `&u+BYTES`)",
            ),
            ("u[1].fild", "`u[1]` has no member `fild` (there are id, field, next, name)"),
            ("u[1].id.x", "`u[1].id` has no member `x`"),
            ("*u[1].id", "`u[1].id` is no array, and no pointer to something known"),
            ("*nothing", "`nothing` is no array, and no pointer to something known"),
            ("main.x", "no debug information says what `main` consists of: give an address or an offset"),
        ] {
            assert_eq!(program.resolve(text).unwrap_err().to_string(), error, "{text}");
        }
    }
}

const CLASSES: &str = r#"struct Base { long first; }; struct Left : Base { int left; }; static int hidden;
struct Both : Left { static int count; int own; Both *&self() { static Both *me; me = this; return me; } };
int Both::count = 3; namespace shop { Both it; int total; static int only; } namespace bank { int total; }
Both &alias = shop::it; Both *pointer = &shop::it; extern "C" int only() { return 1; }
int main() { shop::it.self(); return alias.own + shop::total + bank::total + ++shop::only + ++hidden; }
"#;

#[test]
fn bases_references_and_ends_of_qualified_names() {
    let Some(program) = build("g++", "cc", CLASSES, &["-O0"]) else { return };
    let it = program.address("_ZN4shop2itE");
    let check = |text: &str, expected: (GuestAddr, u64)| {
        assert_eq!(program.resolve(text).unwrap(), expected, "{text}");
    };
    check("shop::it", (it, 16));
    check("it.own", (it.wrapping_add(12), 4));
    check("it.left", (it.wrapping_add(8), 4));
    check("shop::it.first", (it, 8));
    check("only", (program.address("_ZN4shopL4onlyE"), 4));
    // A reference is followed, and a pointer to a member: they hold their own address and 0x1000.
    check("alias.own", (program.address("alias").wrapping_add(0x1000 + 12), 4));
    check("alias", (program.address("alias").wrapping_add(0x1000), 16));
    check("pointer", (program.address("pointer"), 8));
    check("pointer.own", (program.address("pointer").wrapping_add(0x1000 + 12), 4));
    check("pointer->own", (program.address("pointer").wrapping_add(0x1000 + 12), 4));
    // A variable comes before a function of just that name.
    check("main", (program.address("main"), program.resolve("main").unwrap().1));
    check("count", (program.address("_ZN4Both5countE"), 4));
    let error = program.resolve("total").unwrap_err().to_string();
    assert_eq!(error, "`total` can be any of bank::total, shop::total");
    let error = program.resolve("it.count").unwrap_err().to_string();
    assert_eq!(error, "`it` has no member `count` (there are own, left, first)");
}

#[test]
fn what_the_program_has_comes_before_what_libraries_have() {
    const PROGRAM: &str = "namespace app { int message; } int main() { return app::message++; }";
    const LIBRARY: &str = "static int message; int more; int main() { return message++ + more++; }";
    let Some(mut program) = build("g++", "cc", PROGRAM, &["-O0"]) else { return };
    let Some(library) = build("gcc", "c", LIBRARY, &["-O0"]) else { return };
    const ABOVE: u64 = 1 << 40;
    let ours: Vec<_> = program.symbols.layout().all().cloned().collect();
    let theirs = mappings(&library.bytes, library.bias + ABOVE).into_iter().map(|mut mapping| {
        mapping.file = mapping.file.map(|at| MappedFile { file: FileId(1), ..at });
        mapping
    });
    let layout = Layout::new(ours.into_iter().chain(theirs).collect());
    let files = program.symbols.files().iter().chain(library.symbols.files()).cloned().collect();
    program.symbols = Symbols::new(files, layout);
    for name in ["message", "app::message"] {
        assert_eq!(program.resolve(name).unwrap().0, program.address("_ZN3app7messageE"), "{name}");
    }
    let more = library.address("more").wrapping_add(ABOVE);
    assert_eq!(program.resolve("more").unwrap().0, more);
}

const CONTAINERS: &str = r#"#include <array>
#include <memory>
#include <string>
#include <vector>
struct Item { long key; int count; };
std::vector<Item> items; std::vector<int> numbers; std::array<short, 5> shorts; std::string text; std::unique_ptr<Item> one; std::shared_ptr<Item> two;
int main() { return items.size() + numbers.size() + shorts[1] + text.size() + (one && two); }
"#;

#[test]
fn elements_of_containers() {
    let Some(program) = build("g++", "cc", CONTAINERS, &["-O0", "-std=c++17"]) else { return };
    let check = |text: &str, expected: (GuestAddr, u64)| {
        assert_eq!(program.resolve(text).expect(text), expected, "{text}");
    };
    // A pointer holds its own address and 0x1000: a vector's end is 8 bytes behind its start.
    let pointed = |name: &str, offset: u64| program.address(name).wrapping_add(0x1000 + offset);
    check("numbers[1]", (pointed("numbers", 4), 4));
    check("shorts[3]", (program.address("shorts").wrapping_add(6), 2));
    check("text[7]", (pointed("_Z4textB5cxx11", 7), 1));
    check("one->count", (pointed("one", 8), 4));
    check("*two", (pointed("two", 0), 16));
    check("two->key", (pointed("two", 0), 8));
    for (text, error) in [
        ("numbers[2]", "`numbers` has 2 elements then: there is none with index 2"),
        ("items[0].key", "`items` has 0 elements then: there is none with index 0"),
        ("shorts[5]", "`shorts` has 5 elements: there is none"),
    ] {
        let said = program.resolve(text).unwrap_err().to_string();
        assert!(said.starts_with(error), "{text}: {said}");
    }
}

const RUST: &str = r#"mod t { pub static mut G: [u32; 4] = [0; 4]; pub static mut PAIR: (u8, Option<u64>) = (1, None); }
fn main() { unsafe { (&raw mut t::G[1]).write_volatile(7); (&raw mut t::PAIR).write_volatile((2, Some(3))); } }
"#;

#[test]
fn statics_of_rust() {
    let Some(program) = build("rustc", "rs", RUST, &["-Copt-level=0"]) else { return };
    let (g, size) = program.resolve("t::G").unwrap();
    assert_eq!(size, 16);
    assert_eq!(program.resolve("G").unwrap(), (g, 16));
    assert_eq!(program.resolve("G[1]").unwrap(), (g.wrapping_add(4), 4));
    let (pair, size) = program.resolve("PAIR").unwrap();
    let (first, one) = program.resolve("PAIR.__0").unwrap();
    assert!(size == 24 && one == 1 && first >= pair && first < pair.wrapping_add(24));
}
