//! Windows of real binaries, run plain and patched.

use patch::{Examined, Facts, Method, Refusal};

use crate::binaries::{self, Binary};
use crate::equal::{Outcome, Window};
use crate::native::{CODE_LEN, World};
use crate::scene::{HIGH, LOW, check_plan, site};

/// States each window is started from.
const TRIES: u64 = 2;
const PAGE: u64 = 0x1000;

/// What is mapped around a site: its page, the one before and the one after.
fn around(binary: &Binary, page: u64) -> Vec<u8> {
    let byte = |at: u64| binary.bytes.get(at.checked_sub(PAGE + binary.base)? as usize).copied();
    (page..page + CODE_LEN as u64).map(|at| byte(at).unwrap_or(0xCC)).collect()
}

/// Every window of every site; how many, and how many runs ended by leaving the window.
fn check(world: &World, binary: &Binary) -> (usize, usize) {
    let (mut windows, mut left) = (0, 0);
    for &at in &binary.sites {
        let page = at & !(PAGE - 1);
        let code = around(binary, page);
        for region in [HIGH, LOW] {
            let base = (region + PAGE).wrapping_sub(page - binary.base);
            let entries = binary.entries_at(base);
            let site = site(base, at - binary.base + base);
            let facts = Facts { entries: &entries, ..Facts::default() };
            let examined = match Examined::new(&binary.text, site, facts) {
                Ok(examined) => examined,
                Err(Refusal::Restorer { .. }) => continue,
                Err(other) => panic!("{other}"),
            };
            for plan in Method::ALL.into_iter().filter_map(|method| examined.by(method).ok()) {
                check_plan(&plan, site, base, &binary.bytes, &[]);
                // An island may lie further away than what is mapped.
                let mapped = region..region + CODE_LEN as u64;
                if !plan.writes.iter().all(|write| mapped.contains(&write.at.0)) {
                    continue;
                }
                let window = Window { world, base: region, code: code.clone(), plan };
                windows += 1;
                left += window.check(TRIES).iter().filter(|&&outcome| outcome == Outcome::Left).count();
            }
        }
    }
    (windows, left)
}

#[test]
fn windows_of_binaries() {
    let world = World::new();
    let scratch = tempfile::tempdir().unwrap();
    for binary in binaries::all(scratch.path()) {
        let (windows, left) = check(&world, &binary);
        println!("{}: {windows} windows, {left} of {} runs left them", binary.name, windows as u64 * TRIES);
        assert!(left as u64 * 2 > windows as u64 * TRIES || windows == 0, "{}", binary.name);
    }
}
