//! Looking for the instant at which the guest has a given state. Blocks compare it by themselves; what they find equal is
//! compared again here, whole.

use std::rc::Rc;

use guest::{GuestAddr, GuestMemory, GuestRange, Registers};
use translate::{SEARCH_WORDS, SearchAt, SearchPage};

use crate::RunError;
use crate::space::Space;

/// CF, PF, AF, ZF, SF, DF and OF.
const FLAGS: u64 = 0xCD5;

/// A state to look for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Search {
    /// The pc, the sixteen general registers, and of the flags CF, PF, AF, ZF, SF, DF and OF. The others are not compared.
    pub registers: Registers,
    /// Words of memory, eight bytes each at any alignment, at most [`Search::MAX_WORDS`]. One that is not mapped is not equal.
    /// The most telling ones first.
    pub words: Vec<(GuestAddr, u64)>,
}

impl Search {
    /// Most words.
    pub const MAX_WORDS: usize = SEARCH_WORDS;

    /// What blocks compare: all but the direction flag, which hardly ever differs alone.
    fn page(&self) -> SearchPage {
        let values: [u64; 16] = std::array::from_fn(|number| self.registers.general(number as u8));
        let mut page = SearchPage::new();
        page.registers = values;
        page.negated = values.map(u64::wrapping_neg);
        page.flags = SearchPage::flags(self.registers.eflags);
        // 0 ends the list.
        let words = self.words.iter().filter(|(at, _)| at.0 != 0);
        for ((at, &(from, value)), word) in page.addresses.iter_mut().zip(words).zip(&mut page.words) {
            (*at, *word) = (from.0, value);
        }
        page.first = page.words[0].wrapping_neg();
        page
    }

    fn at(&self) -> SearchAt {
        SearchAt { pc: self.registers.pc(), rcx: self.registers.rcx }
    }
}

/// A search, and how far it has come.
#[derive(Clone, Debug)]
pub(crate) struct Searching {
    search: Search,
    /// The instruction at the pc that is so many instructions into the run has been compared.
    compared: Option<u64>,
}

impl Space {
    /// Sets the state at which [`run`](Space::run) ends with [`Exit::Candidate`](crate::Exit::Candidate), or none. Works in all modes
    /// and leaves the mode alone. Setting another one with the same pc and rcx costs next to nothing; else, a few blocks.
    ///
    /// To be set where the flags are exact: at any exit but `LogFull` or a fault that says otherwise. An instruction with a repeat
    /// prefix is compared before its first iteration only.
    ///
    /// # Errors
    ///
    /// [`RunError::TooManyWords`].
    pub fn set_search(&mut self, search: Option<&Search>) -> Result<(), RunError> {
        let count = search.map_or(0, |search| search.words.len());
        if count > Search::MAX_WORDS {
            return Err(RunError::TooManyWords { count });
        }
        let (old, new) = (self.searched(), search.map(Search::at));
        if old != new {
            self.drop_search_blocks(old.map(|search| search.pc));
            self.drop_search_blocks(new.map(|search| search.pc));
        }
        if let Some(search) = search {
            self.slot.page_mut().search = search.page();
        }
        self.searching = search.map(|search| Searching { search: search.clone(), compared: None });
        Ok(())
    }

    /// Whether the state now is the one searched for: for the instruction that a run begins at, of which `run` says nothing.
    pub fn is_candidate(&self) -> bool {
        self.searching.as_ref().is_some_and(|searching| self.is_at(&searching.search))
    }

    /// Where blocks compare.
    pub(crate) fn searched(&self) -> Option<SearchAt> {
        self.searching.as_ref().map(|searching| searching.search.at())
    }

    /// Forgets the blocks that run through `pc` or look at it: with a search there they are not the same as without.
    pub(crate) fn drop_search_blocks(&mut self, pc: Option<GuestAddr>) {
        if let Some(pc) = pc {
            let code = Rc::make_mut(&mut self.code);
            code.remove_range(GuestRange::new(pc, 1), &self.tables, &mut self.patches);
        }
    }

    /// Whether the next instruction is the one at which a state is searched for.
    pub(crate) fn is_at_search(&self) -> bool {
        self.searched().is_some_and(|search| search.pc == self.regs.pc())
    }

    /// Nothing is told of the instruction at which a run begins.
    pub(crate) fn begin_search(&mut self) {
        if let Some(searching) = &mut self.searching {
            searching.compared = None;
        }
        self.was_compared();
    }

    /// The next instruction, if it is the searched one, was compared and differed; or its flags are no longer there to be compared.
    pub(crate) fn was_compared(&mut self) {
        let at = self.is_at_search().then_some(self.retired);
        if let Some(searching) = self.searching.as_mut().filter(|_| at.is_some()) {
            searching.compared = at;
        }
    }

    /// Whether the next instruction is the searched one and has not been compared.
    pub(crate) fn is_uncompared(&self) -> bool {
        self.is_at_search()
            && self.searching.as_ref().is_some_and(|searching| searching.compared != Some(self.retired))
    }

    /// Compares the state, unless that has been done at this instruction.
    pub(crate) fn is_new_candidate(&mut self) -> bool {
        let new = self.is_uncompared() && self.is_candidate();
        self.was_compared();
        // Before the searched instruction flags are always the guest's.
        self.flags_known |= new;
        new
    }

    fn is_at(&self, search: &Search) -> bool {
        let (now, then) = (&self.regs, &search.registers);
        let is_equal = |(at, value): &(GuestAddr, u64)| {
            let mut bytes = [0; 8];
            self.read(*at, &mut bytes).is_ok() && u64::from_le_bytes(bytes) == *value
        };
        now.rip == then.rip
            && (now.eflags ^ then.eflags) & FLAGS == 0
            && (0..16).all(|number| now.general(number) == then.general(number))
            && search.words.iter().all(is_equal)
    }
}
