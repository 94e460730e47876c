//! Oracle: `writes` equals a brute-force list made by single-stepping, byte for byte with values, kernel writes included.
#![expect(clippy::unwrap_used, reason = "a test says what failed")]

use std::collections::BTreeMap;

use backstory_oracle::command::{backstory, record};
use backstory_oracle::programs;
use backstory_oracle::stepper::walk;
use backstory_oracle::stores::{Byte, Stores};
use guest::{GuestAddr, GuestRange};
use store::{Author, Order, Store, WriteQuery};
use trace::Trace;

#[track_caller]
fn check(name: &str) {
    let scratch = tempfile::tempdir().unwrap();
    let program = programs::build(name, scratch.path());
    let dir = scratch.path().join("trace");
    record(&dir, &[program]);
    let indexed = backstory(["index"]).arg(&dir).output().unwrap();
    assert!(indexed.status.success(), "{name}: {}", String::from_utf8_lossy(&indexed.stderr));
    let trace = Trace::open(&dir).unwrap();
    let mut expected = Stores::default();
    walk(&trace, scratch.path(), &mut expected).unwrap_or_else(|e| panic!("{name}: {e}"));
    assert!(expected.bytes.len() > 1000, "{name}: the list is not empty");
    let store = Store::open(&dir, &trace.uuid()).unwrap();
    let got = indexed_bytes(&store);
    compare(name, &got, &expected);
}

/// Every byte of every row, by (moment, address).
fn indexed_bytes(store: &Store) -> BTreeMap<(u64, u64), (u8, u64)> {
    let mut bytes = BTreeMap::new();
    let query = WriteQuery { order: Order::Ascending, ..WriteQuery::default() };
    for row in store.writes(&query).unwrap() {
        let row = row.unwrap();
        let pc = match row.author {
            Author::Code { pc } => pc.0,
            Author::Kernel { .. } => 0,
        };
        let value = store.value(&row).unwrap();
        assert_eq!(value.len() as u64, row.len, "{row:?}");
        for (i, byte) in value.into_iter().enumerate() {
            bytes.insert((row.moment.0, row.addr.0 + i as u64), (byte, pc));
        }
    }
    bytes
}

#[track_caller]
fn compare(name: &str, got: &BTreeMap<(u64, u64), (u8, u64)>, expected: &Stores) {
    for (&(moment, addr), byte) in &expected.bytes {
        if !byte.sure || expected.unsized_at.contains(&moment) {
            continue;
        }
        let Some(&(value, pc)) = got.get(&(moment, addr)) else {
            panic!("{name}: the write of {addr:#x} @{moment} by {:#x} is not in the index", byte.pc);
        };
        assert_eq!(value, byte.value, "{name}: {addr:#x} @{moment} by {:#x}", byte.pc);
        assert!(pc == 0 || pc == byte.pc, "{name}: {addr:#x} @{moment}: pc {pc:#x}, stepped {:#x}", byte.pc);
    }
    for (&(moment, addr), &(value, pc)) in got {
        if expected.unsized_at.contains(&moment) {
            continue;
        }
        let Some(Byte { value: stepped, .. }) = expected.bytes.get(&(moment, addr)) else {
            panic!(
                "{name}: the index has a write of {addr:#x} @{moment} by {pc:#x} that stepping did not see"
            );
        };
        assert_eq!(value, *stepped, "{name}: {addr:#x} @{moment}");
    }
}

#[test]
fn without_a_library() {
    check("arithmetic");
}

#[test]
fn string_instructions() {
    check("strings");
}

#[test]
fn with_a_library() {
    check("recursion");
}

/// Single-stepping cannot tell what of a scatter was stored before a fault.
#[test]
fn scatters_that_fault_halfway() {
    let scratch = tempfile::tempdir().unwrap();
    let program = programs::build("scattered", scratch.path());
    let dir = scratch.path().join("trace");
    record(&dir, &[program]);
    assert!(backstory(["index"]).arg(&dir).output().unwrap().status.success());
    let store = Store::open(&dir, &Trace::open(&dir).unwrap().uuid()).unwrap();
    let room = GuestRange::new(GuestAddr(0x1100_0000), 4 * 4096);
    let query = WriteQuery { addrs: Some(room), ..WriteQuery::default() };
    let mut words = BTreeMap::new();
    for row in store.writes(&query).unwrap() {
        let row = row.unwrap();
        let value = store.value(&row).unwrap();
        assert_eq!(value.len() % 4, 0, "{row:?}");
        for (at, word) in (row.addr.0..).step_by(4).zip(value.chunks(4)) {
            words.insert((at - room.start.0) / 4, u32::from_le_bytes(word.try_into().unwrap()));
        }
    }
    // Element 1 lies where element 13 does later; 2 is masked out.
    let at = [1, 4, 1024, 1025, 5, 6, 2048, 2049, 7, 1026, 8, 2, 3072, 9];
    let numbers = [0, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15];
    let expected: BTreeMap<u64, u32> =
        at.into_iter().zip(numbers).map(|(at, i)| (at, 0x5a00_0000 + i)).collect();
    assert_eq!(words, expected);
}

#[test]
fn with_signals_and_kernel_writes() {
    check("signals");
    check("files");
}
