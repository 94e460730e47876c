//! The block table: which blocks there are, what goes to them, which guest pages they came from. It decides what must be
//! patched; it writes nothing into the process.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::rc::Rc;

use guest::{GuestAddr, GuestRange, PAGE_SIZE};
use translate::{BlockId, CacheAddr, Link, Mode, lookup_slot};

use crate::Block;
use crate::arena::Arena;
use crate::patch::Patches;
use crate::place::{MODES, mode_index};

/// A hash for addresses: one multiplication.
#[derive(Default, Clone, Copy, Debug)]
pub(crate) struct AddressHasher(u64);

impl Hasher for AddressHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.write_u64(u64::from(byte));
        }
    }

    fn write_u64(&mut self, word: u64) {
        let mixed = (self.0 ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.0 = mixed ^ mixed >> 29;
    }
}

/// A map by address.
pub(crate) type AddressMap<T> = HashMap<u64, T, BuildHasherDefault<AddressHasher>>;

/// No node, no block.
const NONE: u32 = u32::MAX;

/// A link of a block, in the list of all that go to one guest address.
#[derive(Clone, Copy, Debug)]
struct LinkNode {
    from: BlockId,
    link: u16,
    next: u32,
    /// The block it is patched to go to, or none.
    to: u32,
}

/// A block, in the list of all that came from one page.
#[derive(Clone, Copy, Debug)]
struct PageNode {
    block: BlockId,
    next: u32,
}

/// Whether a block may be entered.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Life {
    /// It is found, linked, and in the lookup table if it was listed.
    Live,
    /// Nobody goes to it until its source is known not to have changed; then it is listed again if it was.
    Suspended { listed: bool },
    /// Never again.
    Gone,
}

/// What changes about a block.
#[derive(Clone, Copy, Debug)]
struct State {
    life: Life,
    /// Run once; never live.
    once: bool,
    /// In the lookup table.
    listed: bool,
    /// The next block of its chain there.
    chain: u32,
    /// The first of its links, which follow each other.
    links: u32,
}

#[derive(Clone, Default, Debug)]
struct Cache {
    by_pc: AddressMap<BlockId>,
    /// By guest address: the links that go there, linked or not.
    links_to: AddressMap<u32>,
    /// By lookup slot: the first block of the chain.
    chains: AddressMap<BlockId>,
}

/// The block table of one space. Copied when a space is copied and one of the two then changes.
#[derive(Clone, Default, Debug)]
pub(crate) struct Code {
    pub(crate) blocks: Vec<Rc<Block>>,
    state: Vec<State>,
    pub(crate) arenas: Vec<Arena>,
    caches: [Cache; MODES],
    link_nodes: Vec<LinkNode>,
    page_nodes: Vec<PageNode>,
    by_page: AddressMap<u32>,
}

impl Code {
    /// The number of the next block.
    pub(crate) fn next_id(&self) -> BlockId {
        BlockId(self.blocks.len() as u32)
    }

    pub(crate) fn block(&self, id: BlockId) -> Option<&Rc<Block>> {
        self.blocks.get(id.index())
    }

    /// The block that begins at `pc` in a mode's cache.
    pub(crate) fn find(&self, mode: Mode, pc: GuestAddr) -> Option<&Rc<Block>> {
        let id = self.caches[mode_index(mode)].by_pc.get(&pc.0)?;
        self.blocks.get(id.index())
    }

    /// The block whose code may hold a cache address.
    pub(crate) fn block_at(&self, at: CacheAddr) -> Option<&Rc<Block>> {
        let id = self.arenas.iter().find_map(|arena| arena.block_at(at))?;
        self.blocks.get(id.index())
    }

    /// A cache address with these low bits (those in `mask`) at which there is a block.
    pub(crate) fn block_with_low_bits(&self, bits: u64, mask: u64) -> Option<CacheAddr> {
        let candidates = self.arenas.iter().map(|arena| arena.with_low_bits(bits, mask));
        candidates.into_iter().find(|&at| self.block_at(at).is_some())
    }

    /// The pages of `range` from which code came, live or suspended.
    pub(crate) fn pages_with_code(&self, range: GuestRange) -> Vec<GuestAddr> {
        let pages = range.pages();
        let live = |&page: &u64| self.has_code(page);
        let mut found: Vec<u64> = if pages.len() / PAGE_SIZE > self.by_page.len() as u64 {
            self.by_page
                .keys()
                .copied()
                .filter(|&page| pages.contains(GuestAddr(page)))
                .filter(live)
                .collect()
        } else {
            pages_of(pages).filter(live).collect()
        };
        found.sort_unstable();
        found.into_iter().map(GuestAddr).collect()
    }

    fn has_code(&self, page: u64) -> bool {
        let mut node = self.by_page.get(&page).copied().unwrap_or(NONE);
        while let Some(&PageNode { block, next }) = self.page_nodes.get(node as usize) {
            if self.state[block.index()].life != Life::Gone {
                return true;
            }
            node = next;
        }
        false
    }

    /// Forgets the last block if it was run once and no log speaks of it: its number is free again.
    pub(crate) fn drop_once(&mut self) {
        let once = self.state.last().is_some_and(|state| state.once);
        if once && self.blocks.last().is_some_and(|block| !block.mode.logs()) {
            self.blocks.pop();
            self.state.pop();
        }
    }

    /// Adds a block that is found by nobody (it is run once).
    pub(crate) fn add_unlisted(&mut self, block: Block) -> Rc<Block> {
        let block = Rc::new(block);
        self.blocks.push(Rc::clone(&block));
        self.state.push(State { life: Life::Gone, once: true, listed: false, chain: NONE, links: NONE });
        block
    }

    /// Adds a block, whose code waits in `patches`. The links to it and from it are patched.
    pub(crate) fn add(&mut self, block: Block, patches: &mut Patches) -> Rc<Block> {
        let block = Rc::new(block);
        self.blocks.push(Rc::clone(&block));
        self.state.push(State { life: Life::Live, once: false, listed: false, chain: NONE, links: NONE });
        self.note(&block);
        self.connect(&block, patches);
        block
    }

    /// Enters a block in the lists of links and of pages.
    fn note(&mut self, block: &Block) {
        let id = block.translated.id;
        let pages = block.translated.sources.iter().flat_map(|range| pages_of(*range));
        let mut last = None;
        for page in pages {
            if last.replace(page) != Some(page) {
                push_page(&mut self.by_page, &mut self.page_nodes, page, id);
            }
        }
        self.state[id.index()].links = self.link_nodes.len() as u32;
        let links_to = &mut self.caches[mode_index(block.mode)].links_to;
        for (index, link) in block.translated.links.iter().enumerate() {
            let next = links_to.insert(link.target.0, self.link_nodes.len() as u32).unwrap_or(NONE);
            self.link_nodes.push(LinkNode { from: id, link: index as u16, next, to: NONE });
        }
    }

    /// Makes a block known by its pc, and points links to it and from it.
    fn connect(&mut self, block: &Block, patches: &mut Patches) {
        let id = block.translated.id;
        let cache = mode_index(block.mode);
        self.caches[cache].by_pc.insert(block.translated.pc.0, id);
        for (node, link) in (self.state[id.index()].links..).zip(&block.translated.links) {
            let to = self.caches[cache].by_pc.get(&link.target.0).map_or(NONE, |to| to.0);
            self.aim(node, to, patches);
        }
        self.point_links_to(block, id.0, patches);
    }

    /// Makes a link go to a block, or to its own stub.
    fn aim(&mut self, node: u32, to: u32, patches: &mut Patches) {
        let Some(node) = self.link_nodes.get_mut(node as usize).filter(|node| node.to != to) else { return };
        node.to = to;
        let Some(link) = self.blocks[node.from.index()].translated.links.get(usize::from(node.link)) else {
            return;
        };
        let entry = self.blocks.get(to as usize).map_or(link.unlinked, |block| block.translated.entry);
        point(&mut self.arenas, link, entry, patches);
    }

    /// Points every live link to `block`'s pc at block `to`, or back at its own stub.
    fn point_links_to(&mut self, block: &Block, to: u32, patches: &mut Patches) {
        let (cache, pc) = (mode_index(block.mode), block.translated.pc.0);
        let Some(&head) = self.caches[cache].links_to.get(&pc) else { return };
        // Links of blocks that are gone are dropped on the way.
        let (mut node, mut last) = (head, NONE);
        while let Some(&LinkNode { from, next, .. }) = self.link_nodes.get(node as usize) {
            let life = self.state[from.index()].life;
            if life != Life::Gone {
                if life == Life::Live {
                    self.aim(node, to, patches);
                }
                last = node;
            } else if last == NONE {
                self.caches[cache].links_to.insert(pc, next);
            } else {
                self.link_nodes[last as usize].next = next;
            }
            node = next;
        }
    }

    /// Enters a block in the lookup table of its mode, which lies at `table`.
    pub(crate) fn list(&mut self, block: &Block, table: u32, patches: &mut Patches) {
        let id = block.translated.id;
        let state = &mut self.state[id.index()];
        if state.listed || state.life != Life::Live {
            return;
        }
        state.listed = true;
        let slot = lookup_slot(block.translated.pc);
        let chains = &mut self.caches[mode_index(block.mode)].chains;
        let head = chains.insert(slot as u64, id);
        let next = head.map_or(NONE, |head| head.0);
        // One that was listed before may still go to what came after it then.
        if next != state.chain {
            state.chain = next;
            let chain = &block.translated.chain;
            let lookup = head.map_or(chain.unlinked, |head| self.blocks[head.index()].translated.lookup);
            point(&mut self.arenas, chain, lookup, patches);
        }
        let at = u64::from(table) + 8 * slot as u64;
        patches.put(at, &block.translated.lookup.0.to_le_bytes());
    }

    fn unlist(&mut self, block: &Block, tables: &Tables, patches: &mut Patches) {
        let id = block.translated.id;
        let State { listed, chain, .. } = self.state[id.index()];
        if !listed {
            return;
        }
        self.state[id.index()].listed = false;
        let index = mode_index(block.mode);
        let slot = lookup_slot(block.translated.pc);
        let next = self.blocks.get(chain as usize).map(|next| next.translated.lookup);
        let head = self.caches[index].chains.get(&(slot as u64)).copied().unwrap_or(id);
        if head == id {
            let at = u64::from(tables.table[index]) + 8 * slot as u64;
            patches.put(at, &next.unwrap_or(tables.miss).0.to_le_bytes());
            match self.blocks.get(chain as usize) {
                Some(next) => self.caches[index].chains.insert(slot as u64, next.translated.id),
                None => self.caches[index].chains.remove(&(slot as u64)),
            };
            return;
        }
        let mut at = head;
        while self.state[at.index()].chain != id.0 {
            at = BlockId(self.state[at.index()].chain);
        }
        self.state[at.index()].chain = chain;
        let link = self.blocks[at.index()].translated.chain;
        point(&mut self.arenas, &link, next.unwrap_or(link.unlinked), patches);
    }

    /// Forgets a block: nothing goes to it any more.
    pub(crate) fn remove(&mut self, block: &Rc<Block>, tables: &Tables, patches: &mut Patches) {
        let id = block.translated.id.index();
        match self.state[id].life {
            Life::Gone => return,
            Life::Suspended { .. } => {}
            Life::Live => {
                self.hide(block, tables, patches);
                self.point_links_to(block, NONE, patches);
            }
        }
        self.state[id].life = Life::Gone;
        if let Some(arena) = self.arenas.iter_mut().find(|arena| arena.holds(block.hot)) {
            arena.give_up(u64::from(block.hot_len));
        }
    }

    /// A live block is no longer found, but for links.
    fn hide(&mut self, block: &Block, tables: &Tables, patches: &mut Patches) {
        self.unlist(block, tables, patches);
        let by_pc = &mut self.caches[mode_index(block.mode)].by_pc;
        if by_pc.get(&block.translated.pc.0) == Some(&block.translated.id) {
            by_pc.remove(&block.translated.pc.0);
        }
    }

    /// Suspends every live block that came from a byte of `range`: see [`Code::revive`]. Links among them stay: nobody gets there.
    pub(crate) fn suspend_range(&mut self, range: GuestRange, tables: &Tables, patches: &mut Patches) {
        let mut suspended = Vec::new();
        for id in self.of_range(range) {
            let State { life, listed, .. } = self.state[id.index()];
            if life == Life::Live {
                let block = Rc::clone(&self.blocks[id.index()]);
                self.hide(&block, tables, patches);
                self.state[id.index()].life = Life::Suspended { listed };
                suspended.push(block);
            }
        }
        for block in suspended {
            self.point_links_to(&block, NONE, patches);
        }
    }

    /// Decides about the suspended blocks that came from `page`: those whose sources are not the `same` are gone; those of which
    /// nothing else is `pending` are live again, and returned.
    pub(crate) fn revive(
        &mut self,
        page: GuestAddr,
        same: impl Fn(&[GuestRange]) -> bool,
        pending: impl Fn(GuestAddr) -> bool,
        tables: &Tables,
        patches: &mut Patches,
    ) -> Vec<Rc<Block>> {
        let mut revived = Vec::new();
        for id in self.of_range(GuestRange::new(page, PAGE_SIZE)) {
            let Life::Suspended { listed } = self.state[id.index()].life else { continue };
            let block = Rc::clone(&self.blocks[id.index()]);
            let translated = &block.translated;
            let taken = self.caches[mode_index(block.mode)].by_pc.contains_key(&translated.pc.0);
            if taken || !same(&translated.sources) {
                self.remove(&block, tables, patches);
                continue;
            }
            let mut pages = translated.sources.iter().flat_map(|range| pages_of(*range));
            if pages.any(|page| pending(GuestAddr(page))) {
                continue;
            }
            self.state[id.index()].life = Life::Live;
            self.caches[mode_index(block.mode)].by_pc.insert(translated.pc.0, id);
            revived.push((block, listed));
        }
        for (block, listed) in &revived {
            self.connect(block, patches);
            if *listed {
                self.list(block, tables.table[mode_index(block.mode)], patches);
            }
        }
        revived.into_iter().map(|(block, _)| block).collect()
    }

    /// Forgets every suspended block.
    pub(crate) fn forget_suspended(&mut self, tables: &Tables, patches: &mut Patches) {
        for id in 0..self.blocks.len() {
            if matches!(self.state[id].life, Life::Suspended { .. }) {
                let block = Rc::clone(&self.blocks[id]);
                self.remove(&block, tables, patches);
            }
        }
    }

    /// Forgets every block of an arena, which then begins anew.
    pub(crate) fn clear_arena(&mut self, arena: usize, tables: &Tables, patches: &mut Patches) {
        let gone = self.blocks.iter().find(|block| !block.mode.logs()).map(|block| Rc::new(block.hollow()));
        for id in self.arenas[arena].take_blocks() {
            let block = Rc::clone(&self.blocks[id.index()]);
            self.remove(&block, tables, patches);
            // Logs speak of blocks long after.
            if let Some(gone) = gone.as_ref().filter(|_| !block.mode.logs()) {
                self.blocks[id.index()] = Rc::clone(gone);
            }
        }
        self.gather();
    }

    /// Makes the lists of links and of pages anew, without blocks that are gone.
    fn gather(&mut self) {
        let links = std::mem::take(&mut self.link_nodes);
        self.page_nodes.clear();
        self.by_page.clear();
        for cache in &mut self.caches {
            cache.links_to.clear();
        }
        for id in 0..self.blocks.len() {
            if self.state[id].life != Life::Gone {
                let block = Rc::clone(&self.blocks[id]);
                let before = self.state[id].links as usize;
                let now = self.link_nodes.len();
                self.note(&block);
                for (node, old) in self.link_nodes[now..].iter_mut().zip(links.get(before..).unwrap_or(&[])) {
                    node.to = old.to;
                }
            }
        }
    }

    /// Forgets every block that came from a byte of `range`.
    pub(crate) fn remove_range(&mut self, range: GuestRange, tables: &Tables, patches: &mut Patches) {
        for id in self.of_range(range) {
            let block = Rc::clone(&self.blocks[id.index()]);
            self.remove(&block, tables, patches);
        }
    }

    /// The blocks, live or suspended, that came from a byte of `range`, ascending.
    fn of_range(&mut self, range: GuestRange) -> Vec<BlockId> {
        let mut found = Vec::new();
        let pages = range.pages();
        if pages.len() / PAGE_SIZE > self.by_page.len() as u64 {
            let known: Vec<u64> =
                self.by_page.keys().copied().filter(|&page| pages.contains(GuestAddr(page))).collect();
            for page in known {
                self.overlapping(page, range, &mut found);
            }
        } else {
            for page in pages_of(range) {
                self.overlapping(page, range, &mut found);
            }
        }
        found.sort_unstable();
        found.dedup();
        found
    }

    fn overlapping(&mut self, page: u64, range: GuestRange, into: &mut Vec<BlockId>) {
        let Some(head) = self.by_page.get_mut(&page) else { return };
        // Blocks that are gone are dropped on the way.
        let (mut node, mut last) = (*head, NONE);
        while let Some(&PageNode { block, next }) = self.page_nodes.get(node as usize) {
            if self.state[block.index()].life != Life::Gone {
                let sources = &self.blocks[block.index()].translated.sources;
                if sources.iter().any(|source| source.overlaps(range)) {
                    into.push(block);
                }
                last = node;
            } else if last == NONE {
                *head = next;
            } else {
                self.page_nodes[last as usize].next = next;
            }
            node = next;
        }
    }

    /// Forgets every live block of a mode for which `doomed` says so.
    pub(crate) fn remove_if(
        &mut self,
        mode: Mode,
        doomed: impl Fn(&Block) -> bool,
        tables: &Tables,
        patches: &mut Patches,
    ) {
        let ids = self.caches[mode_index(mode)].by_pc.values();
        let mut ids: Vec<BlockId> = ids.copied().filter(|id| doomed(&self.blocks[id.index()])).collect();
        ids.sort_unstable();
        for id in ids {
            let block = Rc::clone(&self.blocks[id.index()]);
            self.remove(&block, tables, patches);
        }
    }
}

/// What a lookup slot points at when nothing is listed there, and where each mode's table lies.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tables {
    pub(crate) miss: CacheAddr,
    pub(crate) table: [u32; MODES],
}

fn pages_of(range: GuestRange) -> impl Iterator<Item = u64> {
    (range.start.page().0..range.end.0).step_by(PAGE_SIZE as usize)
}

fn push_page(by_page: &mut AddressMap<u32>, nodes: &mut Vec<PageNode>, page: u64, block: BlockId) {
    let next = by_page.insert(page, nodes.len() as u32).unwrap_or(NONE);
    nodes.push(PageNode { block, next });
}

/// Makes a link go to `to`, through a stub beside it if that lies too far away.
fn point(arenas: &mut [Arena], link: &Link, to: CacheAddr, patches: &mut Patches) {
    if let Some(bytes) = link.displacement(to) {
        patches.put(link.site.0, &bytes);
        return;
    }
    let near = arenas.iter_mut().find(|arena| arena.holds(link.site));
    let Some(stub) = near.and_then(|arena| arena.take_stub(FAR_JUMP)) else { return };
    let mut code = vec![0xff, 0x25, 0, 0, 0, 0]; // jmp [rip + 0]
    code.extend_from_slice(&to.0.to_le_bytes());
    patches.put(stub.0, &code);
    if let Some(bytes) = link.displacement(stub) {
        patches.put(link.site.0, &bytes);
    }
}

/// Bytes of a jump to anywhere.
const FAR_JUMP: u64 = 14;
