//! How many sites of the binaries on this machine can be patched, by which method.

use std::ops::Range;

use patch::{CodeAddr, Examined, Facts, Method, Refusal, plan};

use crate::binaries::{self, Binary};
use crate::scene::{HIGH, LOW, check_plan, site};

/// Under what circumstances.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Case {
    /// As a shared library. Symbols and relocations are known to the caller.
    High,
    /// The same, and nothing is known.
    Unknown,
    /// As a program below 2 GiB.
    Low,
}

/// Counts of sites; those by method in the order of [`Method::ALL`].
#[derive(Clone, Copy, Default, Debug)]
struct Row {
    /// All but signal restorers.
    sites: usize,
    /// Each method for itself.
    by: [usize; 3],
    /// The method chosen, the site being the only one.
    alone: [usize; 3],
    /// The method chosen, one site after the other, all in one process.
    together: [usize; 3],
    /// Islands through relays among these.
    relayed: usize,
    longest_stub: usize,
}

impl Row {
    fn percent(&self, counts: [usize; 3]) -> f64 {
        counts.iter().sum::<usize>() as f64 * 100.0 / self.sites.max(1) as f64
    }

    fn add(&mut self, other: &Self) {
        self.sites += other.sites;
        for (mine, others) in
            [(&mut self.by, other.by), (&mut self.alone, other.alone), (&mut self.together, other.together)]
        {
            mine.iter_mut().zip(others).for_each(|(mine, other)| *mine += other);
        }
        self.relayed += other.relayed;
        self.longest_stub = self.longest_stub.max(other.longest_stub);
    }

    fn print(&self, name: &str) {
        let columns = |counts: [usize; 3]| {
            let [island, forward, backward] = counts;
            format!("{island:>6} {forward:>7} {backward:>8}")
        };
        let refused = |counts: [usize; 3]| self.sites - counts.iter().sum::<usize>();
        println!(
            "{name:<13} {:>5} | {} | {} {:>7} | {} {:>7}",
            self.sites,
            columns(self.by),
            columns(self.alone),
            refused(self.alone),
            columns(self.together),
            refused(self.together)
        );
    }
}

fn survey(binary: &Binary, case: Case) -> Row {
    let base = if case == Case::Low { LOW } else { HIGH };
    let entries = if case == Case::Unknown { Vec::new() } else { binary.entries_at(base) };
    let mut taken: Vec<Range<CodeAddr>> = Vec::new();
    let mut row = Row::default();
    for at in &binary.sites {
        let site = site(base, at - binary.base + base);
        let alone = Facts { entries: &entries, ..Facts::default() };
        let examined = match Examined::new(&binary.text, site, alone) {
            Ok(examined) => examined,
            Err(Refusal::Restorer { .. }) => continue,
            Err(other) => panic!("{}: {other}", binary.name),
        };
        row.sites += 1;
        let works = Method::ALL.map(|method| examined.by(method).is_ok());
        for (count, works) in row.by.iter_mut().zip(works) {
            *count += usize::from(works);
        }
        match works.iter().position(|&works| works) {
            Some(first) => row.alone[first] += 1,
            None => println!("{}: {}", binary.name, plan(&binary.text, site, alone).unwrap_err()),
        }
        if let Ok(plan) = plan(&binary.text, site, Facts { taken: &taken, ..alone }) {
            check_plan(&plan, site, base, &binary.bytes, &taken);
            row.together[plan.method as usize] += 1;
            row.relayed += usize::from(plan.writes.len() == 3);
            row.longest_stub = row.longest_stub.max(plan.stub.bytes.len());
            taken.extend(plan.occupied);
        }
    }
    row
}

#[test]
fn most_sites_can_be_patched() {
    let scratch = tempfile::tempdir().unwrap();
    let binaries = binaries::all(scratch.path());
    for case in [Case::High, Case::Unknown, Case::Low] {
        println!(
            "{:<13} {:>5} | {:^23} | {:^31} | {:^31}",
            format!("{case:?}"),
            "sites",
            "by",
            "alone",
            "together"
        );
        let columns = "island forward backward";
        println!("{:<19} | {columns} | {columns} refused | {columns} refused", "");
        let mut total = Row::default();
        for binary in &binaries {
            let row = survey(binary, case);
            row.print(&binary.name);
            total.add(&row);
            if binary.name == "glibc" {
                let [island, forward, backward] = row.by.map(|count| row.percent([count, 0, 0]));
                assert!(row.sites > 300 && island > 70.0 && forward > 90.0 && backward > 95.0, "{row:?}");
            }
        }
        total.print("all");
        println!(
            "{} of the islands together through relays; the longest stub has {} bytes",
            total.relayed, total.longest_stub
        );
        // An endless loop around `exit` here and there; small functions without padding between them.
        assert!(total.percent(total.alone) > 99.5 && total.percent(total.together) > 98.5, "{total:?}");
    }
}
