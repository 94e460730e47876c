//! Parts of variables and what pointers point to, by the types in the debug information: `ops.draw`, `u[7].field`, `*p`,
//! `p->field`, elements of containers among them. What a pointer holds is asked of whoever asks.

use guest::{GuestAddr, Moment, SpaceId};

use crate::containers::{self, Extent, Inside};
use crate::dwarf_types::{Member, Shape, Type, Types};
use crate::expression::{Part, Step};
use crate::lookup::{Found, ResolveError, Resolved, Symbols};
use crate::value::{Bits, Value};

/// Where the walk along an expression has come to.
struct Here<'a> {
    types: &'a Types,
    addr: GuestAddr,
    ty: Type,
    /// Size in bytes, where the type does not say.
    size: Option<u64>,
    /// Which bits, of a bit-field.
    bits: Option<Bits>,
    /// The expression so far.
    text: String,
    pointer: &'a mut dyn FnMut(GuestAddr) -> Option<GuestAddr>,
}

impl Symbols {
    /// Where the part of a variable is. `pointer` is asked what a pointer holds.
    pub(crate) fn resolve_part(
        &self,
        space: SpaceId,
        moment: Moment,
        part: &Part,
        pointer: &mut dyn FnMut(GuestAddr) -> Option<GuestAddr>,
    ) -> Result<Resolved, ResolveError> {
        let (found, name, steps) = self.find_variable(space, moment, part)?;
        let types = found.image.types();
        let typed = types.and_then(|types| Some((types, types.of_variable(found.symbol.addr)?)));
        let Some((types, ty)) = typed else { return Err(ResolveError::Untyped { name }) };
        let whole = self.resolved(&found, 0);
        let mut here = Here { types, addr: whole.addr, ty, size: None, bits: None, text: name, pointer };
        for step in steps {
            here.step(step)?;
        }
        for _ in 0..part.stars {
            here.element(0)?;
            here.text = format!("*{}", here.text);
        }
        // A reference is what it refers to.
        if let Shape::Reference(target) = types.shape(here.ty) {
            here.follow(target)?;
        }
        let addr = here.addr.wrapping_add(part.offset as u64);
        let size = here.size.or_else(|| types.size(here.ty)).unwrap_or(0);
        let value = types.value(here.ty).filter(|_| part.offset == 0);
        let value = value.map(|value| match here.bits {
            Some(_) => Value { size, bits: here.bits, ..value },
            None => value,
        });
        Ok(Resolved { addr, size, name: here.text, module: whole.module, value })
    }
}

impl Symbols {
    /// The variable that an expression is about, its name and the steps from it: names of some languages (`main.table`) look
    /// like steps.
    fn find_variable<'p>(
        &self,
        space: SpaceId,
        moment: Moment,
        part: &'p Part,
    ) -> Result<(Found<'_>, String, &'p [Step]), ResolveError> {
        if let [Step::Member(member), rest @ ..] = &part.steps[..] {
            let name = format!("{}.{member}", part.name);
            if let Ok(found) = self.find_symbol(space, moment, &name) {
                return Ok((found, name, rest));
            }
        }
        Ok((self.find_symbol(space, moment, &part.name)?, part.name.clone(), &part.steps))
    }
}

impl Here<'_> {
    fn step(&mut self, step: &Step) -> Result<(), ResolveError> {
        match step {
            Step::Member(name) => self.member(name, "."),
            Step::Through(name) => {
                let points = matches!(self.types.shape(self.ty), Shape::Pointer(Some(_)) | Shape::Array(..));
                if !points && containers::inside(self.types, self.ty).is_none() {
                    return Err(ResolveError::NoPointer { place: self.text.clone() });
                }
                self.element(0)?;
                self.member(name, "->")
            }
            Step::Index(index) => {
                self.element(*index)?;
                self.text.push_str(&format!("[{index}]"));
                Ok(())
            }
        }
    }

    fn member(&mut self, name: &str, by: &str) -> Result<(), ResolveError> {
        if let Shape::Reference(target) | Shape::Pointer(Some(target)) = self.types.shape(self.ty) {
            self.follow(target)?;
        }
        let Some(Member { offset, ty, size, bits }) = self.types.member(self.ty, name) else {
            let (place, members) = (self.text.clone(), self.types.members(self.ty));
            return Err(ResolveError::NoMember { place, name: name.to_owned(), members });
        };
        (self.addr, self.ty, self.size, self.bits) = (self.addr.wrapping_add(offset), ty, size, bits);
        self.text.push_str(&format!("{by}{name}"));
        Ok(())
    }

    /// Goes to element `index` of an array, or of what a pointer points to.
    fn element(&mut self, index: u64) -> Result<(), ResolveError> {
        let place = || self.text.clone();
        let (element, count) = match self.types.shape(self.ty) {
            Shape::Array(element, count) => (element, count),
            Shape::Pointer(Some(target)) => (target, None),
            Shape::Reference(target) => {
                self.follow(target)?;
                return self.element(index);
            }
            Shape::Pointer(None) | Shape::Other => {
                let inside = containers::inside(self.types, self.ty);
                let inside = inside.ok_or_else(|| ResolveError::NoElements { place: place() })?;
                return self.element_inside(inside, index);
            }
        };
        if let Some(count) = count.filter(|&count| index >= count) {
            return Err(ResolveError::Outside { place: place(), index, count });
        }
        let size = match index {
            0 => 0,
            _ => self.types.size(element).ok_or_else(|| ResolveError::NoElements { place: place() })?,
        };
        if matches!(self.types.shape(self.ty), Shape::Pointer(_)) {
            self.follow(element)?;
        }
        (self.addr, self.ty, self.size, self.bits) =
            (self.addr.wrapping_add(size.wrapping_mul(index)), element, None, None);
        Ok(())
    }

    /// Goes to an element of a container, or to what a smart pointer points to.
    fn element_inside(&mut self, inside: Inside, index: u64) -> Result<(), ResolveError> {
        let Inside { elements, extent } = inside;
        let start = self.addr.wrapping_add(elements.offset);
        let mut read = |addr| (self.pointer)(addr).map(|word| word.0);
        let count = match extent {
            Extent::Unknown => None,
            Extent::Length(at) => read(self.addr.wrapping_add(at)),
            Extent::End(at, size) => {
                let (start, end) = (read(start), read(self.addr.wrapping_add(at)));
                start.zip(end).and_then(|(start, end)| end.wrapping_sub(start).checked_div(size))
            }
        };
        if let Some(count) = count.filter(|&count| index >= count) {
            return Err(ResolveError::Beyond { place: self.text.clone(), index, count });
        }
        (self.addr, self.ty, self.size, self.bits) = (start, elements.ty, None, None);
        self.element(index)
    }

    /// Goes to where the pointer here points.
    fn follow(&mut self, target: Type) -> Result<(), ResolveError> {
        let addr = (self.pointer)(self.addr);
        let addr = addr.ok_or_else(|| ResolveError::Unknown { place: self.text.clone(), addr: self.addr })?;
        (self.addr, self.ty, self.size, self.bits) = (addr, target, None, None);
        Ok(())
    }
}
