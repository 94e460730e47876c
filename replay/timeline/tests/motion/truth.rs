//! The whole state at a moment as one number, and a straight run that visits moments in order.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};

use guest::{GuestMemory, IMAGE_HEADER, Moment, PAGE_SIZE, SpaceId, XState};
use replayer::{Bias, Options, Replay, Silent, Until};
use timeline::Timeline;
use trace::Trace;

/// Registers, extended state and all non-zero memory of everything alive.
pub(crate) fn hash(timeline: &Timeline) -> u64 {
    let mut hasher = DefaultHasher::new();
    for view in timeline.tasks() {
        view.task.hash(&mut hasher);
        timeline.registers(view.task).unwrap().hash(&mut hasher);
        hash_xstate(timeline.xstate(view.task).unwrap(), &mut hasher);
        hash_memory(timeline.memory(view.space).unwrap(), view.space, &mut hasher);
    }
    hasher.finish()
}

/// All of it but which components the processor calls in use: while one holds its initial values, that depends on when the kernel
/// last saved it.
fn hash_xstate(mut state: XState, hasher: &mut DefaultHasher) {
    state.0[IMAGE_HEADER..][..8].fill(0);
    state.hash(hasher);
}

fn hash_memory(space: &engine::Space, id: SpaceId, hasher: &mut DefaultHasher) {
    id.hash(hasher);
    for mapping in space.mappings() {
        let mut at = mapping.range.start;
        while at < mapping.range.end {
            if let Ok(bytes) = space.read_vec(at, PAGE_SIZE as usize)
                && bytes.iter().any(|&b| b != 0)
            {
                (at, bytes).hash(hasher);
            }
            at = at.wrapping_add(PAGE_SIZE);
        }
    }
}

/// The same of a replay.
fn hash_replay(replay: &Replay) -> u64 {
    let mut hasher = DefaultHasher::new();
    for view in replay.tasks() {
        view.task.hash(&mut hasher);
        replay.registers(view.task).unwrap().hash(&mut hasher);
        hash_xstate(replay.xstate(view.task).unwrap().unwrap(), &mut hasher);
        hash_memory(replay.space(view.space).unwrap(), view.space, &mut hasher);
    }
    hasher.finish()
}

/// The state at each of these moments, by one run from the start.
pub(crate) fn straight(trace: &Trace, moments: &[Moment]) -> BTreeMap<Moment, u64> {
    let mut replay = Replay::open(trace, &Options::default()).unwrap();
    let mut sorted = moments.to_vec();
    sorted.sort_unstable();
    let mut states = BTreeMap::new();
    for moment in sorted {
        replay.run(Until::Moment(moment, Bias::NextInstruction), &mut Silent).unwrap();
        assert_eq!(replay.position().moment, moment);
        states.insert(moment, hash_replay(&replay));
    }
    states
}

/// A fixed sequence of numbers that look random.
pub(crate) fn random(seed: u64) -> impl FnMut() -> u64 {
    let mut state = seed;
    move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    }
}
