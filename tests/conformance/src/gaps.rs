//! The list of known gaps: a name, a tab and a reason on each line; empty lines and lines that begin with `#` say nothing. What is in the list must
//! fail, unless its reason begins with `varies: `.

use std::collections::BTreeMap;
use std::path::Path;
use std::{fs, io};

/// Known gaps: the reason of each name.
pub(crate) type Gaps = BTreeMap<String, String>;

/// Whether the program may pass although it is in the list: what it does or prints depends on time or on turns.
pub(crate) fn varies(reason: &str) -> bool {
    reason.starts_with("varies: ")
}

/// Reads the list at `path`.
pub(crate) fn read(path: &Path) -> io::Result<Gaps> {
    parse(&fs::read_to_string(path)?).map_err(|line| {
        io::Error::new(
            io::ErrorKind::InvalidData,
            format!("{}:{line}: not NAME<TAB>REASON, or NAME twice", path.display()),
        )
    })
}

/// The gaps in `text`, or the number of the first line that is wrong.
fn parse(text: &str) -> Result<Gaps, usize> {
    let mut gaps = Gaps::new();
    for (at, line) in text.lines().enumerate().filter(|(_, line)| !line.is_empty() && !line.starts_with('#'))
    {
        let (name, reason) = line.split_once('\t').ok_or(at + 1)?;
        if reason.is_empty() || gaps.insert(name.to_owned(), reason.to_owned()).is_some() {
            return Err(at + 1);
        }
    }
    Ok(gaps)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(text: &str, expected: Result<&[(&str, &str)], usize>) {
        let expected =
            expected.map(|gaps| gaps.iter().map(|(n, r)| ((*n).to_owned(), (*r).to_owned())).collect());
        assert_eq!(parse(text), expected);
    }

    #[test]
    fn lines() {
        check("# why\n\na\tx y\nb\tz\n", Ok(&[("a", "x y"), ("b", "z")]));
        check("a\tx\nb z\n", Err(2));
        check("a\t\n", Err(1));
        check("a\tx\n\na\ty\n", Err(3));
    }

    #[test]
    fn the_list_is_well_formed() {
        assert!(parse(include_str!("../gaps.txt")).is_ok());
    }
}
