//! The one table of system calls, put together from its families. Knows no process.

pub(crate) mod build;
mod files;
mod ipc;
mod memory;
mod net;
mod process;
mod signals;
mod system;
mod time;
mod waiting;

use std::sync::LazyLock;

use crate::row::Row;

/// The newest number of the table (Linux 6.18).
pub const MAX_NUMBER: u32 = 469;

const FAMILIES: [&[Row]; 9] = [
    files::ROWS,
    memory::ROWS,
    process::ROWS,
    signals::ROWS,
    time::ROWS,
    net::ROWS,
    waiting::ROWS,
    ipc::ROWS,
    system::ROWS,
];

static BY_NUMBER: LazyLock<Vec<Option<&'static Row>>> = LazyLock::new(|| {
    let mut table = vec![None; MAX_NUMBER as usize + 1];
    for row in FAMILIES.into_iter().flatten() {
        table[row.nr as usize] = Some(row);
    }
    table
});

/// The row of a number, or `None` where Linux has no such call.
pub fn row(nr: u32) -> Option<&'static Row> {
    BY_NUMBER.get(nr as usize).copied().flatten()
}

/// All rows, by number.
pub fn all() -> impl Iterator<Item = &'static Row> {
    BY_NUMBER.iter().copied().flatten()
}

/// The name of a number, if Linux has such a call.
pub fn name(nr: u32) -> Option<&'static str> {
    row(nr).map(|row| row.name)
}

/// The number of a call by its name, for constants: `const MMAP: u32 = number("mmap");`.
///
/// # Panics
///
/// When there is no such call, which in a constant is a compile error.
pub const fn number(name: &str) -> u32 {
    let mut family = 0;
    while family < FAMILIES.len() {
        let rows = FAMILIES[family];
        let mut at = 0;
        while at < rows.len() {
            if same(rows[at].name.as_bytes(), name.as_bytes()) {
                return rows[at].nr;
            }
            at += 1;
        }
        family += 1;
    }
    panic!("no such system call")
}

const fn same(one: &[u8], other: &[u8]) -> bool {
    if one.len() != other.len() {
        return false;
    }
    let mut at = 0;
    while at < one.len() {
        if one[at] != other[at] {
            return false;
        }
        at += 1;
    }
    true
}

/// The numbers and names in a header of the kernel's, such as `unistd_64.h`; none on a machine that has no headers.
#[cfg(test)]
pub(crate) fn numbers_in(header: &str) -> Option<Vec<(u32, String)>> {
    let path = format!("/usr/include/x86_64-linux-gnu/asm/{header}");
    let text = std::fs::read_to_string(path).ok()?;
    let define = |line: &str| match line.split_whitespace().collect::<Vec<_>>()[..] {
        ["#define", name, number] => {
            let name = name.strip_prefix("__NR_")?;
            Some((number.parse().expect("a call has a number"), name.to_owned()))
        }
        _ => None,
    };
    Some(text.lines().filter_map(define).collect())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_number_has_one_row() {
        let numbers: Vec<u32> = FAMILIES.into_iter().flatten().map(|row| row.nr).collect();
        let unique: BTreeSet<u32> = numbers.iter().copied().collect();
        assert_eq!(numbers.len(), unique.len(), "a number appears twice");
        // 337 to 423 were left free when the numbers of all architectures were brought together.
        let expected: BTreeSet<u32> = (0..=336).chain(424..=MAX_NUMBER).collect();
        assert_eq!(expected.difference(&unique).collect::<Vec<_>>(), Vec::<&u32>::new(), "missing");
        assert_eq!(unique.difference(&expected).collect::<Vec<_>>(), Vec::<&u32>::new(), "unknown to Linux");
    }

    #[test]
    fn rows_within_a_family_are_sorted() {
        for rows in FAMILIES {
            assert!(rows.is_sorted_by_key(|row| row.nr), "{}", rows[0].name);
        }
    }

    #[test]
    fn numbers_are_the_kernel_headers() {
        let Some(numbers) = numbers_in("unistd_64.h") else {
            eprintln!("skipped: no kernel headers on this machine");
            return;
        };
        let compared = numbers.len();
        for (number, name) in numbers {
            assert_eq!(super::name(number), Some(name.as_str()));
        }
        assert!(compared > 350, "{compared}");
    }

    #[test]
    fn names_resolve_at_compile_time() {
        const MMAP: u32 = number("mmap");
        assert_eq!(MMAP, 9);
        assert_eq!(name(MMAP), Some("mmap"));
        assert_eq!(name(400), None);
        assert_eq!(name(u32::MAX), None);
    }
}
