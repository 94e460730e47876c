//! The coverage page: every call and request with its support, as Markdown. Made from the tables alone.

use std::fmt::Write as _;

use crate::inside::Mark;
use crate::narrow;
use crate::requests::{self, Requests};
use crate::row::{Answer, Class, Effect, MapCall, Support};
use crate::table;

/// How many rows there are of each kind of support.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Counts {
    /// Rows recorded and replayed exactly.
    pub full: usize,
    /// Rows with something missing, or answered in the kernel's place.
    pub partial: usize,
    /// Rows that stop the recording.
    pub refused: usize,
}

impl Counts {
    fn add(&mut self, support: Support) {
        match support {
            Support::Full => self.full += 1,
            Support::Partial(_) => self.partial += 1,
            Support::Refused(_) => self.refused += 1,
        }
    }
}

/// The rows of the table of system calls, counted.
pub fn call_counts() -> Counts {
    let mut counts = Counts::default();
    table::all().for_each(|row| counts.add(row.support));
    counts
}

/// The rows of all request tables, counted.
pub fn request_counts() -> Counts {
    let mut counts = Counts::default();
    requests::ALL.iter().flat_map(|table| table.all()).for_each(|request| counts.add(request.support));
    counts
}

/// The page.
pub fn coverage() -> String {
    let mut page = String::from(INTRODUCTION);
    line(&mut page, &format!("System calls: {}.", counted(call_counts())));
    line(&mut page, &format!("Requests and options: {}.\n", counted(request_counts())));
    line(&mut page, "## System calls\n");
    line(&mut page, "| number | call | what the recorder does | support |\n|---|---|---|---|");
    for row in table::all() {
        let class = if row.requests.is_some() && !matches!(row.support, Support::Refused(_)) {
            "by request, see below".to_string()
        } else {
            class_text(row.class, row.support)
        };
        let (by_hand, inside) = (by_hand(row.effect), inside_text(row.inside));
        line(
            &mut page,
            &format!("| {} | {} | {class}{by_hand}{inside} | {} |", row.nr, row.name, support(row.support)),
        );
    }
    for table in requests::ALL {
        request_table(&mut page, table);
    }
    narrow_table(&mut page);
    page
}

const INTRODUCTION: &str = "\
# What is recorded

Made from the tables of this crate; do not edit. Numbers and names are those of Linux 6.18 on x86-64. A call or request that is not
listed is refused by name. *By hand* marks effects that code describes rather than the row.

No row can tell what a descriptor leads to. Writes to `/proc/PID/mem` of recorded processes are followed. Not seen are changes of
memory that is shared with a process outside the recording, or with a device.

*Without a stop* marks calls that a program makes itself, from code of the recorder's, where its descriptors are good for that and it would
not wait; else they stop, as all others always do. Stopped at are calls whose effects the recorder must see or undo:

- those that change mappings, among them `madvise` that drops contents, where these are more than memory of the program's own: files,
  what is shared, stacks that grow
- those that make, replace or end tasks, change what signals do, or what another task may see of this one
- `dup2`, `dup3`, `close_range`, `F_SETFL`, `FIONBIO` and others after which a descriptor may be good for something else; writes to files
  that mappings show; writes to the run's own output
- `futex` operations that change a lock word, for they do so when they begin to wait, and waits that end at a time
- `ppoll`, `epoll_pwait` and the like with a signal mask, and `ppoll` with a time, which is counted down
- messages with an address or control data; more than 16 vectors, 32 polled descriptors, 128 KiB, or 8 KiB of a file
- `sched_yield` while others wait for their turn

Instructions that read the time stamp counter (`rdtsc`, `rdtscp`) are no calls, but answered in the same way where they are run often.

";

fn request_table(page: &mut String, table: &Requests) {
    line(page, &format!("\n## {}\n", table.call));
    line(page, "| request | name | what the recorder does | support |\n|---|---|---|---|");
    for request in table.all() {
        let class = class_text(request.class, request.support);
        let (by_hand, inside) = (by_hand(request.effect), inside_text(request.inside));
        let (value, name, support) = (request.value, request.name, support(request.support));
        line(page, &format!("| {value:#x} | {name} | {class}{by_hand}{inside} | {support} |"));
    }
}

fn narrow_table(page: &mut String) {
    line(page, "\n## int 0x80\n");
    line(
        page,
        "Calls of the 32-bit table that a 64-bit program can make, and what they are recorded as. Others are refused by number.\n",
    );
    line(page, "| number | call |\n|---|---|");
    for call in narrow::CALLS {
        line(page, &format!("| {} | {} |", call.nr, table::name(call.twin).unwrap_or("?")));
    }
}

fn line(page: &mut String, text: &str) {
    let _ = writeln!(page, "{text}");
}

fn counted(counts: Counts) -> String {
    let Counts { full, partial, refused } = counts;
    format!("{} rows, {full} full, {partial} partial, {refused} refused", full + partial + refused)
}

fn by_hand(effect: Effect) -> &'static str {
    if matches!(effect, Effect::Hand(_)) { ", by hand" } else { "" }
}

fn inside_text(inside: Option<Mark>) -> &'static str {
    if inside.is_some() { ", also without a stop" } else { "" }
}

fn support(support: Support) -> String {
    match support {
        Support::Full => "full".into(),
        Support::Partial(missing) => format!("partial: {missing}"),
        Support::Refused(why) => format!("refused: {why}"),
    }
}

fn class_text(class: Class, support: Support) -> String {
    if matches!(support, Support::Refused(_)) {
        return "stops".into();
    }
    match class {
        Class::Plain => "runs it".into(),
        Class::MayBlock => "runs it, may wait".into(),
        Class::Map(call) => format!("follows the address space: {}", map_text(call)),
        Class::Spawn => "follows the new task".into(),
        Class::Exec => "keeps the new program".into(),
        Class::Exit => "ends the task".into(),
        Class::SignalReturn => "restores from the signal frame".into(),
        Class::Emulate(errno) => format!("answers {errno}"),
        Class::Trace => "does it for the caller".into(),
        Class::Restrict => "keeps the filter and applies it".into(),
        Class::Adjusted => "runs it, takes out what is hidden".into(),
        Class::Unknown => "lets the kernel say that it does not know it".into(),
        Class::Answer(answer) => format!("answers from its own state: {}", answer_text(answer)),
    }
}

fn map_text(call: MapCall) -> &'static str {
    match call {
        MapCall::Mmap => "maps",
        MapCall::Munmap => "unmaps",
        MapCall::Mprotect => "protects",
        MapCall::Mremap => "moves",
        MapCall::Brk => "moves the heap's end",
        MapCall::Discard => "drops pages",
        MapCall::DiscardLater => "drops pages at once",
        MapCall::Remove => "takes out what it shows",
        MapCall::ForkRule => "decides what a child gets",
        MapCall::Shmat => "attaches",
        MapCall::Shmdt => "detaches",
    }
}

fn answer_text(answer: Answer) -> &'static str {
    match answer {
        Answer::GetDumpable | Answer::SetDumpable => "dumpable",
        Answer::SetMm => "bounds of memory",
        Answer::OpenCounter => "counters",
        Answer::LoadProgram | Answer::DescribeProgram => "programs in the kernel",
        Answer::GetTsc | Answer::SetTsc => "time stamp counter",
        Answer::GetSeccomp => "restrictions",
        Answer::GetNoNewPrivs | Answer::SetNoNewPrivs => "no new privileges",
        Answer::GetAffinity | Answer::SetAffinity => "processors",
        Answer::GetCpuid | Answer::SetCpuid => "cpuid faulting",
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::row::Hand;

    const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/COVERAGE.md");

    /// `BACKSTORY_WRITE_COVERAGE=1` writes the page anew.
    #[test]
    fn the_page_is_what_the_tables_say() {
        if std::env::var_os("BACKSTORY_WRITE_COVERAGE").is_some() {
            std::fs::write(PAGE, coverage()).unwrap();
        }
        let committed = std::fs::read_to_string(PAGE).unwrap();
        assert!(committed == coverage(), "COVERAGE.md is stale: run with BACKSTORY_WRITE_COVERAGE=1");
    }

    #[test]
    fn hand_written_effects_are_named_and_counted() {
        let calls = table::all().map(|row| row.effect);
        let more = requests::ALL.iter().flat_map(|table| table.all()).map(|request| request.effect);
        let named: Vec<Hand> = calls
            .chain(more)
            .filter_map(|effect| match effect {
                Effect::Hand(hand) => Some(hand),
                Effect::Args => None,
            })
            .collect();
        assert_eq!(named.len(), 45, "rows whose effect is code");
        let unique: BTreeSet<Hand> = named.into_iter().collect();
        assert_eq!(unique, Hand::ALL.into_iter().collect(), "each is named by a row");
    }

    #[test]
    fn request_tables_have_one_row_a_request() {
        for table in requests::ALL {
            for list in table.rows {
                let values: BTreeSet<u64> = list.iter().map(|request| request.value).collect();
                assert_eq!(values.len(), list.len(), "{}", table.call);
            }
            let named = table::row(table::all().find(|row| row.name == table.call).unwrap().nr).unwrap();
            assert!(std::ptr::eq(named.requests.unwrap(), table), "{}", table.call);
        }
        let tables = table::all().filter(|row| row.requests.is_some()).count();
        assert_eq!(tables, requests::ALL.len());
    }
}
