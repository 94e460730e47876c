//! How a `syscall` instruction, or one that reads the time stamp counter, can be rewritten so that it jumps to a stub of its own in the low region, and the bytes.
//!
//! Pure: bytes in, bytes out. Knows nothing of processes, nor of what a stub's call does; only executed sites may be
//! asked about, as most `0f 05` byte pairs on a machine are data. What cannot be rewritten is refused by name.
//!
//! - `addr`: addresses in code, addresses in the low region
//! - `text`: the code of a mapping, and where its branches with long displacements lead
//! - `decode`: instructions around a site, as far as several starts agree on them
//! - `padding`: bytes that nothing runs
//! - `entries`: what enters a range of code
//! - `relocate`: the one table of instruction classes; an instruction at another address
//! - `stub`: the code of a stub, its descriptor and literals
//! - `map`: pcs of the patched code and of the plain code, both ways
//! - `plan`: the methods; `island` is one of them
//! - `refusal`: what stands in the way
//!
//! Not seen from code bytes, so the caller's to tell ([`Facts::entries`]): tables of a `switch` in other mappings,
//! relocations, unwind entries, symbols. Not supported: shadow stacks (a relocated call pushes by itself).

mod addr;
mod decode;
mod entries;
mod island;
mod map;
mod padding;
mod plan;
mod refusal;
mod relocate;
mod stub;
mod text;

pub use addr::{CodeAddr, LowAddr};
pub use map::{PcMap, Place, Registers};
pub use plan::{Examined, Facts, Method, Plan, Site, Target, Write, jump_through, plan};
pub use refusal::{Obstacle, Refusal};
pub use stub::{MAX_STUB, Stub};
pub use text::Text;
