//! Random numbers into a hash map.

use std::collections::HashMap;

fn main() {
    let mut sums: HashMap<u64, u64> = HashMap::new();
    let mut state = 88_172_645_463_325_252u64;
    for i in 0..20_000_000u64 {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        *sums.entry(state % 50_021).or_insert(0) += i;
    }
    let mut all: Vec<u64> = sums.into_values().collect();
    all.sort_unstable();
    println!("{} {}", all[0], all[all.len() / 2]);
}
