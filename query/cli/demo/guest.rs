//! The demo's guest: a ledger whose balance comes out wrong. The bug is real and the compiler cannot see it.

/// The last deposits, and their sum.
#[repr(C)]
struct Ledger {
    recent: [u64; 8],
    balance: u64,
}

/// Remembers `amount` as deposit number `n`, over the oldest one.
#[inline(never)]
fn remember(ledger: &mut Ledger, n: usize, amount: u64) {
    let slot = n % 9;
    // SAFETY (so the author thought): the slot is always one of the eight.
    unsafe { *ledger.recent.get_unchecked_mut(slot) = amount };
}

#[inline(never)]
fn deposit(ledger: &mut Ledger, n: usize, amount: u64) {
    ledger.balance += amount;
    remember(ledger, n, amount);
}

fn main() {
    let ledger = Box::leak(Box::new(Ledger { recent: [0; 8], balance: 0 }));
    let mut expected = 0;
    for n in 0..9 {
        let amount = 100 + n as u64;
        deposit(ledger, n, amount);
        expected += amount;
    }
    println!("9 deposits: the balance should be {expected}");
    println!("the balance is {} (at {:p})", ledger.balance, &ledger.balance);
}
